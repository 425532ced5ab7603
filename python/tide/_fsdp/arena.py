"""torch memory from a communicator's arena, where peers can read it.

A MemPool of torch's caching allocator whose segments tide carves. When the
arena is full the pool gets ordinary device memory, which is never wrong: a
gradient there is copied to the arena before peers read it.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tide import _tide

KIB, MIB = 1 << 10, 1 << 20
# What the pool's segments may waste.
SLACK = 1.25
# What a reduce-scatter uses on one node, and beside others.
SCRATCH, SCRATCH_OF_NODES = 80 * MIB, 240 * MIB


@functools.cache
def _functions() -> torch.cuda.memory.CUDAPluggableAllocator:
    """libtide's malloc and free. Pools need them as long as they have memory
    out, which is longer than they live."""
    return torch.cuda.memory.CUDAPluggableAllocator(
        _tide.__file__, "tide_pool_malloc", "tide_pool_free"
    )


class ArenaPool:
    """A pool over the arena of a communicator. Its memory may outlive the
    communicator, which keeps the arena as long as any is in use."""

    def __init__(self, native: _tide.Comm, device: torch.device) -> None:
        self._native = native
        self._device = device
        self._pool = torch.cuda.MemPool(_functions().allocator())

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """This thread's allocations come from the arena. Never nested."""
        self._native.pool_select()
        with torch.cuda.use_mem_pool(self._pool, self._device):
            yield


class NoPool:
    """The allocator's own memory."""

    using = staticmethod(contextlib.nullcontext)


@dataclass(frozen=True)
class Demand:
    """What the groups of one communicator ask of its arena, in bytes."""

    groups: list[tuple[int, bool]]  # unsharded bytes; stays unsharded
    ranks: int
    parameter: int  # the widest gradient of a single one
    one_machine: bool = True

    @property
    def largest(self) -> int:
        return max((size for size, _stays in self.groups), default=0)

    @property
    def scratch(self) -> int:
        """STAGE, twice the local shards, and what a reduce-scatter uses."""
        local = min(self.ranks, _local_ranks(self.ranks))
        sums = SCRATCH if local == self.ranks else SCRATCH_OF_NODES
        return 2 * -(-self.largest // local) + sums

    @property
    def reserve(self) -> int:
        """Room for gradients that are not in the arena: a small group's;
        those of a large one take turns. Where ranks cannot vote, all of them
        always do, and go in fewer calls with room for any single one."""
        room = min(self.largest, 64 * MIB)
        if not self.one_machine:
            room = max(room, self.parameter)
        return room + 64 * KIB

    @property
    def in_place(self) -> int:
        """The gradients of two groups are alive at a time, with whatever else
        the backward allocates meanwhile."""
        two = sum(sorted(size for size, _stays in self.groups)[-2:])
        return two + max(two // 2, 64 * MIB)

    @property
    def slots(self) -> int:
        """Memory for three groups, and for those that stay unsharded."""
        passing = max((s for s, stays in self.groups if not stays), default=0)
        return 3 * passing + sum(s for s, stays in self.groups if stays)

    def total(self, mode: str) -> int:
        """An arena that is large enough for the mode."""
        asked = os.environ.get("TIDE_ARENA_MIB", "")
        if asked.isdigit() and int(asked) > 0:
            return int(asked) * MIB
        pool = self.slots if mode == "slot_reuse" else self.in_place
        total = int(SLACK * pool) + self.reserve + self.scratch
        return -(-total // (2 * MIB)) * 2 * MIB

    def choose(self, mode: str, size: int, arena_bytes: int) -> tuple[str, str]:
        """The mode of a group of `size` unsharded bytes, and why."""
        if mode != "auto":
            return mode, "as asked"
        room = max(arena_bytes - self.scratch - self.reserve, 0)
        figures = f"{2 * size / MIB:.0f} of {room / MIB:.0f} MiB"
        if 2 * size <= room:
            return "in_place", f"auto: gradients fit the arena twice: {figures}"
        return (
            "slot_reuse",
            f"auto: gradients do not fit the arena twice: {figures}",
        )


def demand_of(groups: list, ranks: int, one_machine: bool = True) -> Demand:
    """What FSDP2's parameter groups ask for."""
    return Demand(
        [(unsharded_bytes(group), _stays(group)) for group in groups],
        ranks,
        max((widest_gradient(group) for group in groups), default=0),
        one_machine,
    )


def unsharded_bytes(group) -> int:
    """Of a group's parameters in the dtype they are gathered in."""
    total = 0
    for param in group.fsdp_params:
        dtype = param.mp_policy.param_dtype or param.sharded_param.dtype
        total += param._orig_size.numel() * dtype.itemsize
    return total


def widest_gradient(group) -> int:
    """Bytes of the largest gradient of a parameter, in its own dtype or, when
    it was accumulated, in the dtype it is reduced in."""
    widest = 0
    for param in group.fsdp_params:
        policy, dtype = param.mp_policy, param.sharded_param.dtype
        width = max(
            (policy.param_dtype or dtype).itemsize,
            (policy.reduce_dtype or dtype).itemsize,
        )
        widest = max(widest, param._orig_size.numel() * width)
    return widest


def _stays(group) -> bool:
    """Whether parameters stay unsharded from forward to backward."""
    return group.post_forward_mesh_info is None


def _local_ranks(ranks: int) -> int:
    """Ranks of a node, as launchers and tide's own variable say."""
    for name in ("TIDE_LOCAL_SIZE", "LOCAL_WORLD_SIZE"):
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    return ranks
