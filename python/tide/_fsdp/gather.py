"""The all-gather: shards land in the unsharded parameters themselves.

At unshard the local shards are cast and copied into tide's STAGE, once, and
the collective starts; peers pull from there into the storages that FSDP2's
parameters live in. The wait is where FSDP2 would copy out, so a prefetched
group travels while the one before computes. On a GPU the copy runs in FSDP2's
copy-in stream, and its all-gather stream holds the collective.
"""

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from tide._fsdp import agree, wire
from tide._fsdp.internals import AllGather, AllGatherResult, ShardedState
from tide._fsdp.landing import Landing
from tide._fsdp.memory import Home
from tide._fsdp.router import ROUTER, in_backward
from tide._fsdp.state import GroupState
from tide._tide import Error
from tide.errors import INVALID, make_error


class TideAllGather(AllGather):
    """Marks a group as tide's. By itself an ordinary all-gather, which is
    what groups get that go stock."""

    def __init__(self, state: GroupState) -> None:
        self.state = state

    def allocate(self, size, *, dtype, device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        return gather(
            output_tensor, input_tensor, group=group, async_op=async_op
        )


class StockResult(AllGatherResult):
    """Stock's result, and whose it is."""

    state: GroupState


class TideResult(AllGatherResult):
    """An all-gather of tide's under way. If it is dropped unused, it is
    completed and its parameters' memory is given back."""

    state: GroupState
    request: Any  # on the host
    params: list
    finished: bool

    def finish(self) -> None:
        """The work that follows finds the parameters complete."""
        self.finished = True
        if self.request is None:
            self.state.device.current().wait_event(self.all_gather_event)
            return
        request, self.request = self.request, None
        with self.state.doing("all-gather"):
            request.wait("done")
            request.close()

    def __del__(self) -> None:
        if getattr(self, "finished", True):
            return
        if self.request is not None:
            with contextlib.suppress(Error):  # the next call will raise it
                self.request.close()
        if self.state.group.is_unsharded:
            return
        if self.request is None:
            self.state.home.drop(self.params, self.all_gather_event)
            return
        for param in self.params:
            param.free_unsharded_param()


@dataclass
class GatherPlan:
    """A tide group, and where each parameter's shard goes in STAGE."""

    group: Any
    pieces: list[tuple[int, int]]  # offset, bytes
    numels: list[int]  # of a padded shard
    sizes: list[int]  # bytes of the storages
    dtypes: tuple[torch.dtype, ...]
    nbytes: int  # of STAGE
    fields: dict[str, Any]  # of an AllGatherResult, the same in every call
    kept: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    @classmethod
    def make(
        cls, group: Any, dtypes: tuple[torch.dtype, ...], empty: torch.Tensor
    ) -> "GatherPlan":
        layout = group.layout()
        numels = [p["shard_elems"] for p in layout]
        known = {
            "all_gather_output": empty,
            "param_all_gather_input_dtypes": [[dtype] for dtype in dtypes],
            "param_all_gather_input_numels": [[numel] for numel in numels],
        }
        return cls(
            group,
            [(p["shard_offset"], p["shard_bytes"]) for p in layout],
            numels,
            [p["storage_bytes"] for p in layout],
            dtypes,
            group.shard_bytes,
            {**dict.fromkeys(_required_fields()), **known},
        )

    def init_outputs(self, params: list, ranks: int) -> None:
        """Flat tensors for the unsharded parameters that have none yet."""
        for param, numel, dtype in zip(
            params, self.numels, self.dtypes, strict=True
        ):
            param.init_all_gather_outputs([numel], [dtype], ranks, param.device)

    def targets(self, state: GroupState, request: Any) -> list[torch.Tensor]:
        """Views of STAGE for the shards that are not empty, in their dtypes.
        On a GPU STAGE has few addresses, and views are dear."""
        address = state.device.stage_address(request)
        if address not in self.kept:
            raw = state.device.stage(request, self.nbytes)
            views = [
                raw[offset : offset + nbytes].view(dtype)
                for dtype, (offset, nbytes) in zip(
                    self.dtypes, self.pieces, strict=True
                )
                if nbytes
            ]
            if not address:
                return views
            self.kept[address] = views
        return self.kept[address]


def start_all_gather(stock, call: dict) -> AllGatherResult | None:
    """Replaces foreach_all_gather for groups whose comm is TideAllGather."""
    state: GroupState = call["all_gather_comm"].state
    started = time.perf_counter()
    ROUTER.reset_after_error()
    with ROUTER.suspended():
        dtypes = tuple(map(_gather_dtype, call["fsdp_params"]))
        problem = state.gather.problem or _call_problem(state, call, dtypes)
        if problem:
            return _start_stock(state, stock, call, problem, started)
        with state.doing("all-gather"), torch.no_grad():
            result = _start(state, call, dtypes)
    state.gather.seconds += time.perf_counter() - started
    return result


def finish_all_gather(stock, call: dict) -> None:
    """Replaces foreach_all_gather_copy_out."""
    result = call["all_gather_result"]
    started = time.perf_counter()
    if isinstance(result, TideResult):
        result.finish()
        result.state.gather.seconds += time.perf_counter() - started
        return
    with ROUTER.suspended():
        stock(**call)
    if isinstance(result, StockResult):
        result.state.gather.stock_seconds += time.perf_counter() - started


def _call_problem(state: GroupState, call: dict, dtypes: tuple) -> str | None:
    """Why this call goes stock; alike on all ranks."""
    if not state.is_served(call["group"]):
        return "gathers over another group (reshard_after_forward=int)"
    for param, dtype in zip(call["fsdp_params"], dtypes, strict=True):
        if param.sharded_state is not ShardedState.SHARDED:
            return "resharded to another group (reshard_after_forward=int)"
        outputs = param.all_gather_outputs
        if outputs and outputs[0].dtype != dtype:
            return "a parameter has changed its dtype"
    if state.device.capturing():
        return "in a CUDA graph capture"
    return None


def _start_stock(state, stock, call, problem, started):
    state.go_stock(state.gather, problem)
    agree.check_inputs_once(state, call["fsdp_params"], call["group"])
    result = stock(**call)
    state.gather.stock_calls += 1
    if result is not None:
        result = StockResult(*result)
        result.state = state
    state.gather.stock_seconds += time.perf_counter() - started
    return result


def _gather_dtype(param) -> torch.dtype:
    return param.param_dtype or param._sharded_param_data.dtype


def _start(state: GroupState, call: dict, dtypes: tuple) -> TideResult:
    params, device = call["fsdp_params"], state.device
    filling, stream = (
        call["all_gather_copy_in_stream"],
        call["all_gather_stream"],
    )
    plan = _plan(state, params, dtypes)
    shards = [param._sharded_param_data for param in params]
    _check_shards(params, shards, plan)
    request = plan.group.all_gather_begin()
    device.await_phase(request, "free", filling)
    device.delay(filling)
    with device.on(filling):
        _fill(plan.targets(state, request), shards)
    addresses = _open_storages(state, call, plan)
    device.order(stream, filling)
    device.delay(stream)
    device.start(request, addresses, stream)
    state.gather.calls += 1
    state.gather.bytes += sum(plan.sizes)
    if state.gather.plan is None:
        state.gather.plan = plan.group.stats("all_gather")
    return _make_result(state, request, plan, call)


def _fill(targets: list[torch.Tensor], shards: list[torch.Tensor]) -> None:
    """Casts the shards into STAGE: the one copy of the all-gather."""
    if targets:
        torch._foreach_copy_(targets, [s for s in shards if s.numel()])


def _plan(state: GroupState, params: list, dtypes: tuple) -> GatherPlan:
    """A group's parameters and their sizes stay, their dtypes may change."""

    def make() -> GatherPlan:
        group = state.native_group(
            tuple(
                wire.sharded_param(p._orig_size, p.fsdp_placement.dim, dtype)
                for p, dtype in zip(params, dtypes, strict=True)
            )
        )
        return GatherPlan.make(group, dtypes, state.device.empty())

    return state.plan(("all-gather", dtypes), make)


def _check_shards(
    params: list, shards: list[torch.Tensor], plan: GatherPlan
) -> None:
    found_all = [shard.numel() for shard in shards]
    if found_all == plan.numels:
        return
    for param, found, numel in zip(params, found_all, plan.numels, strict=True):
        if found != numel:
            name = param._module_info.param_name
            text = (
                f"{name} has a shard of {found} elements where {numel} are due"
            )
            raise make_error(INVALID, text)


def _open_storages(
    state: GroupState, call: dict, plan: GatherPlan
) -> list[int]:
    """Gives every parameter the memory that its shards land in; where."""
    params, stream = call["fsdp_params"], call["all_gather_stream"]
    if state.device.queued:
        if state.home is None:
            state.group._tide_home = Landing(state.device, state.group)
        home, slot = state.home, state.mode == "slot_reuse"
        home.move(state.comm, slot)
        ahead = not call["async_op"] and (slot or not in_backward())
        return home.open(params, plan, stream, ahead)
    fresh = not any(param.all_gather_outputs for param in params)
    if fresh and state.mode == "slot_reuse":
        home = Home(state.comm, params, plan.sizes, plan.dtypes)
        home.wrap_post_backward(state.group)
        state.group._tide_home = home
    plan.init_outputs(params, len(state.comm.ranks))
    for param in params:
        param.alloc_all_gather_outputs()
    return [param.all_gather_outputs[0].data_ptr() for param in params]


def _landed(state: GroupState, request: Any, call: dict) -> Any:
    """The event of a GPU's all-gather; the host keeps the request for it."""
    device, stream = state.device, call["all_gather_stream"]
    if not device.queued:
        return None
    if call["async_op"]:  # the stream is the compute stream, and goes on
        stream = device.landed
    device.await_phase(request, "done", stream)
    request.close()
    return stream.record_event()


def _make_result(state, request, plan: GatherPlan, call: dict) -> TideResult:
    changing = {
        "all_gather_input_split_sizes": list(plan.numels),
        "all_gather_event": _landed(state, request, call),
        "all_gather_work": request if call["async_op"] else None,
    }
    result = TideResult(**{**plan.fields, **changing})
    result.state, result.params = state, list(call["fsdp_params"])
    result.request = None if state.device.queued else request
    result.finished = False
    return result


def _required_fields() -> list[str]:
    """Those of an AllGatherResult in this PyTorch, known to tide or not."""
    defaults = AllGatherResult._field_defaults
    return [name for name in AllGatherResult._fields if name not in defaults]
