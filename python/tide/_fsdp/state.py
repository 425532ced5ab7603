"""What tide keeps of one FSDP2 parameter group."""

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from tide._fsdp import device, wire

log = logging.getLogger("tide")

# Kept of one group: each set of parameters that had gradients has one.
MOST_PLANS = 256


@dataclass
class Path:
    """One collective of one group: which way it goes, and how often it did.

    ``problem`` is why it always goes stock, ``last_stock`` why a single call
    did. Seconds are of the calling thread, layout copies included.
    """

    problem: str | None = None
    last_stock: str | None = None
    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    slot_calls: int = 0  # of calls: gradients went through the slot
    staged_bytes: int = 0  # of gradients copied to a GPU's reserve
    stock_calls: int = 0
    stock_seconds: float = 0.0
    plan: dict[str, Any] | None = None

    def count(self, nbytes: int, started: float) -> None:
        """A call by tide that began at `started` has ended."""
        self.calls += 1
        self.bytes += nbytes
        self.seconds += time.perf_counter() - started

    def count_stock(self, started: float) -> None:
        self.stock_calls += 1
        self.stock_seconds += time.perf_counter() - started


class GroupState:
    """Name, way and numbers of a group, and the plans it has made."""

    def __init__(self, name: str, group: Any) -> None:
        self.name = name
        self.group = group
        self.device: Any = device.HOST  # until it is known to be served
        self.comm: Any = None  # tide.comm.Communicator, unless all is stock
        self.mode = "stock"
        self.mode_reason = ""
        self.gather = Path()
        self.reduce = Path()
        self.setup_seconds = 0.0
        self.plans: dict[tuple, Any] = {}  # may be dropped
        self.native_groups: dict[tuple[wire.Param, ...], Any] = {}
        self.inputs_checked = False
        self.unwrap: Any = None  # undoes what was put around group's hooks

    @property
    def gradient_pool(self) -> Any:
        """The pool that the group's gradients should come from, if any."""
        return self.comm.pool if self.mode == "in_place" else None

    @property
    def home(self) -> Any:
        """The memory of the group's parameters, where that is tide's choice:
        a slot, or on a GPU a landing. It outlives this state."""
        return getattr(self.group, "_tide_home", None)

    def plan(self, key: tuple, make: Callable[[], Any]) -> Any:
        """What has been made for this key, or is made now. Keys may name
        parameters; what is dear is kept by their shapes, in native_groups."""
        found = self.plans.get(key)
        if found is None:
            started = time.perf_counter()
            found = make()
            if len(self.plans) >= MOST_PLANS:
                self.plans.clear()
            self.plans[key] = found
            self.setup_seconds += time.perf_counter() - started
        return found

    def native_group(self, params: tuple[wire.Param, ...]) -> Any:
        """The communicator's group of such parameters: one of these shapes
        and dtypes, whichever parameters they are of."""
        found = self.native_groups.get(params)
        if found is None:
            found = self.comm.native.group(params, self.name)
            self.native_groups[params] = found
        return found

    def is_served(self, group: dist.ProcessGroup | None) -> bool:
        """Whether the ranks of a process group are the communicator's."""
        if group is None:
            return False
        return group is self.group.mesh_info.shard_process_group or (
            tuple(dist.get_process_group_ranks(group)) == self.comm.ranks
        )

    def doing(self, operation: str) -> Any:
        """Communicator.doing, for an operation of this group."""
        return self.comm.doing(self.describing(operation))

    def describing(self, operation: str) -> Callable[[], str]:
        return functools.partial(self.describe, operation)

    def go_stock(self, path: Path, reason: str) -> None:
        """Notes a call that goes stock; the log hears each reason once."""
        if reason not in (path.problem, path.last_stock):
            path.last_stock = reason
            kind = "all-gather" if path is self.gather else "reduce-scatter"
            log.info("%s of %s goes stock: %s", kind, self.name, reason)

    def describe(self, operation: str) -> str:
        """Who was doing what. libtide's own messages number the ranks of the
        shard group, which are not always the global ones."""
        ranks, me = self.comm.ranks, dist.get_rank()
        shard_rank = ranks.index(me)
        text = f"rank {me}: {operation} of group '{self.name}'"
        if ranks[0] == 0 and ranks[-1] == len(ranks) - 1:
            return text
        span = f"{ranks[0]} to {ranks[-1]}"
        return f"{text}: as rank {shard_rank} of {len(ranks)} ({span})"
