"""The report: what each parameter group's collectives did, in numbers."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from tide import _tide
from tide._fsdp import arena
from tide._fsdp.state import GroupState, Path

MIB = 1 << 20
MOST_NAMED = 4  # groups in one line of the report


@dataclass
class PathReport:
    """One collective of one group.

    ``path`` is "tide" or "stock"; ``reason`` says why stock, or why some
    calls were. ``bytes`` and ``ms`` are of tide's calls in all, of this rank:
    unsharded bytes, and the calling thread's time with layout copies, which
    on a GPU is the time to queue them;
    ``stock_ms`` is the same of stock's. ``slot_calls`` of the calls had their
    gradients staged in the vacated slot; the others' were read in place, or
    copied where peers may not read; on a GPU ``staged_bytes`` counts those.
    ``buffer_bytes`` is the scratch that the plan names, which groups share;
    ``local_bytes`` and ``rail_bytes`` are what one call moves between ranks of
    a node, and off the node.
    """

    path: str
    reason: str | None
    calls: int
    bytes: int
    ms: float
    slot_calls: int
    staged_bytes: int
    stock_calls: int
    stock_ms: float
    buffer_bytes: int
    local_bytes: int
    rail_bytes: int


@dataclass
class ParamReport:
    """A parameter: its unsharded bytes as gathered, and whether it trains."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    trains: bool


@dataclass
class GroupReport:
    name: str
    mode: str
    mode_reason: str
    landing: str  # "slot" or "storage": where the all-gather lands
    setup_ms: float
    all_gather: PathReport
    reduce_scatter: PathReport
    params: list[ParamReport]


@dataclass
class Report:
    """What `tide.fsdp.report` returns; print it for a table.

    ``mode`` is what gradients do ("in_place", "slot_reuse", "stock", "mixed"
    if groups differ) and ``mode_reason`` why, of the largest group.
    ``buffer_bytes`` is the scratch of all communicators of the model,
    ``slot_bytes`` the memory that slots of the host hold now.
    """

    tide: str
    torch: str
    mode: str
    mode_reason: str
    comms: list[dict[str, Any]]
    groups: list[GroupReport] = field(default_factory=list)

    @property
    def buffer_bytes(self) -> int:
        return sum(comm["buffer_bytes"] for comm in self.comms)

    @property
    def slot_bytes(self) -> int:
        return sum(comm["slot_bytes"] for comm in self.comms)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain dicts and lists, for JSON."""
        sums = {
            "buffer_bytes": self.buffer_bytes,
            "slot_bytes": self.slot_bytes,
        }
        return {**dataclasses.asdict(self), **sums}

    def __str__(self) -> str:
        return "\n".join(
            [*self._head(), "", *_table(self.groups), *self._reasons()]
        )

    def _head(self) -> list[str]:
        lines = [f"tide {self.tide}, torch {self.torch}, mode {self.mode}"]
        if self.mode_reason:
            lines[0] += f" ({self.mode_reason})"
        lines += [_describe_comm(comm) for comm in self.comms]
        if any(comm["queued"] for comm in self.comms):
            lines.append("ms: of the host, which queues tide's calls")
        return lines

    def _reasons(self) -> list[str]:
        names: dict[str, list[str]] = {}  # of the groups, by what to say
        for group in self.groups:
            texts = []
            if self.mode == "mixed" and group.mode != "stock":
                texts.append(f"{group.mode}: {group.mode_reason}")
            if group.all_gather.reason:
                texts.append(f"all-gather stock: {group.all_gather.reason}")
            if group.reduce_scatter.reason:
                reason = group.reduce_scatter.reason
                texts.append(f"reduce-scatter stock: {reason}")
            for text in texts:
                names.setdefault(text, []).append(group.name)
        lines = [f"{_some(found)}: {text}" for text, found in names.items()]
        copied = sum(g.reduce_scatter.staged_bytes for g in self.groups) / MIB
        if copied:
            lines.append(
                f"{copied:.2f} MiB of gradients were not in the arena, and "
                "were copied there"
            )
        return ["", *lines] if lines else []


def _some(names: list[str]) -> str:
    """Names, or of many the first ones."""
    if len(names) <= MOST_NAMED:
        return ", ".join(names)
    left = len(names) - MOST_NAMED
    return f"{', '.join(names[:MOST_NAMED])} and {left} more"


def _describe_comm(comm: dict[str, Any]) -> str:
    """Scratch, and the memory that matters: on a GPU all of it is in one
    arena, on the host what slots hold now comes and goes."""
    kind, nbytes = "slots", comm["slot_bytes"]
    if comm["queued"]:
        kind, nbytes = "arena", comm["arena_bytes"]
    return (
        f"rank {comm['rank']} of {comm['ranks']}, {comm['nodes']} x "
        f"{comm['local_size']}, backend {comm['backend']}, buffers "
        f"{comm['buffer_bytes'] / MIB:.1f} MiB, {kind} {nbytes / MIB:.1f} MiB"
    )


def _table(groups: list[GroupReport]) -> list[str]:
    width = max([len(group.name) for group in groups] + [5])
    half = f"{'path':>6} {'calls':>6} {'MiB':>9} {'ms':>9}"
    lines = [
        f"{'':{width}} {'':>6} | {'all-gather':^33} | {'reduce-scatter':>23}",
        f"{'group':{width}} {'params':>6} | {half} | {half}",
    ]
    for group in groups:
        cells = " | ".join(
            f"{path.path:>6} {path.calls + path.stock_calls:>6} "
            f"{path.bytes / MIB:>9.2f} {path.ms + path.stock_ms:>9.2f}"
            for path in (group.all_gather, group.reduce_scatter)
        )
        lines.append(f"{group.name:{width}} {len(group.params):>6} | {cells}")
    return lines


def describe_path(path: Path) -> PathReport:
    plan = path.plan or {}
    always_stock = path.problem or (path.stock_calls and not path.calls)
    return PathReport(
        path="stock" if always_stock else "tide",
        reason=path.problem or path.last_stock,
        calls=path.calls,
        bytes=path.bytes,
        ms=path.seconds * 1e3,
        slot_calls=path.slot_calls,
        staged_bytes=path.staged_bytes,
        stock_calls=path.stock_calls,
        stock_ms=path.stock_seconds * 1e3,
        buffer_bytes=plan.get("buffer_bytes", 0),
        local_bytes=plan.get("local_bytes", 0),
        rail_bytes=plan.get("rail_bytes", 0),
    )


def describe_param(param) -> ParamReport:
    info = param._module_info
    dtype = param.mp_policy.param_dtype or param.sharded_param.dtype
    if not param.sharded_param.dtype.is_floating_point:
        dtype = param.sharded_param.dtype
    return ParamReport(
        name=param._param_fqn or info.param_name,
        shape=tuple(param._orig_size),
        dtype=str(dtype).removeprefix("torch."),
        bytes=param._orig_size.numel() * dtype.itemsize,
        trains=param.sharded_param.requires_grad,
    )


def describe_group(state: GroupState) -> GroupReport:
    return GroupReport(
        name=state.name,
        mode=state.mode,
        mode_reason=state.mode_reason,
        landing="slot" if state.home and state.home.is_slot else "storage",
        setup_ms=state.setup_seconds * 1e3,
        all_gather=describe_path(state.gather),
        reduce_scatter=describe_path(state.reduce),
        params=[describe_param(param) for param in state.group.fsdp_params],
    )


def _size(state: GroupState) -> int:
    return arena.unsharded_bytes(state.group)


def make_report(states: list[GroupState]) -> Report:
    comms = {id(s.comm): s.comm for s in states if s.comm is not None}
    served: dict[str, str] = {}
    for state in sorted(states, key=_size, reverse=True):
        if state.mode != "stock":
            served.setdefault(state.mode, state.mode_reason)
    mode, reason = next(iter(served.items()), ("stock", ""))
    if len(served) > 1:
        mode, reason = "mixed", "as each group's line says"
    return Report(
        tide=_tide.version(),
        torch=torch.__version__,
        mode=mode,
        mode_reason=reason,
        comms=[comm.describe() for comm in comms.values()],
        groups=[describe_group(state) for state in states],
    )
