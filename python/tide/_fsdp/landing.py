"""Where all-gathers land on a GPU, and where Slot-Reuse puts gradients.

FSDP2's own resizable storages stay; only where their bytes come from is
tide's choice. They are allocated as memory of the device's `home` stream, not
of the compute stream, so that an all-gather may start while the compute stream
is busy; gates keep it away from memory that is still being read. In Slot-Reuse
mode the bytes come from the arena, and once a group is resharded its gradients
are copied into the memory that it has left.
"""

import functools
from typing import Any

import torch

from tide._fsdp.arena import NoPool
from tide._fsdp.device import Cuda
from tide._fsdp.gates import Ranges, Span, span_of

# Blocks of one size that an allocation passes over because they are in use.
MOST_PASSED = 8


class Landing:
    """The unsharded storages of a parameter group on a GPU."""

    def __init__(self, device: Cuda, group: Any) -> None:
        self.device = device
        self.is_slot = False
        self._group = group
        self._comm: Any = None
        self._plan: Any = None
        self._sizes: dict[int, int] = {}
        self._copies: dict[int, torch.Tensor] = {}
        for name in ("_to_sharded", "_to_sharded_post_forward"):
            setattr(group, name, self._vacating(getattr(group, name)))

    def move(self, comm: Any, slot: bool) -> None:
        """Where the next allocations come from."""
        self._comm, self.is_slot = comm, slot

    @property
    def _pool(self) -> Any:
        return self._comm.pool if self.is_slot else NoPool

    # --- All-gather -------------------------------------------------------

    def open(
        self, params: list, plan: Any, stream: Any, ahead: bool
    ) -> list[int]:
        """Gives every parameter its memory, which `stream` may then write;
        the addresses. `ahead`: the memory that was vacated last is in use by
        what this all-gather is to run beside, so other memory is taken."""
        device = self.device
        avoid = Ranges(device.gates.newest() if ahead else ())
        fresh = not all(param.all_gather_outputs for param in params)
        if plan is not self._plan:
            self._plan = plan
            self._sizes.update(zip(map(id, params), plan.sizes, strict=True))
        passed: list[torch.UntypedStorage] = []
        with self._pool.using(), device.on(device.home):
            if fresh:
                plan.init_outputs(params, len(self._comm.ranks))
            spans = [
                _allocate(storage_of(param), size, avoid, passed)
                for param, size in zip(params, plan.sizes, strict=True)
            ]
            passed.clear()
        if fresh:  # torch fills new tensors where it is to be deterministic
            device.order(stream, device.home)
        device.enter(spans, stream)
        return [start for start, _end in spans]

    def drop(self, params: list, event: Any) -> None:
        """Frees what an all-gather landed in that nobody used."""
        spans = [span_of(storage_of(param)) for param in params]
        for param in params:
            param.free_unsharded_param()
        self.device.vacate(spans, event)

    def _vacating(self, stock: Any) -> Any:
        @functools.wraps(stock)
        def to_sharded() -> None:
            before = self._open_storages()
            stock()
            left = [span for s, span in before if s.nbytes() == 0]
            self.device.vacate(left)

        return to_sharded

    def _open_storages(self) -> list[tuple[Any, Span]]:
        storages = [
            storage_of(param)
            for param in self._group.fsdp_params
            if param.all_gather_outputs
        ]
        return [(s, span_of(s)) for s in storages if s.nbytes()]

    # --- Slot-Reuse -------------------------------------------------------

    def can_stage(self, comm: Any, params: list, grads: list) -> bool:
        """Whether the parameters' memory is vacated, and large enough."""
        return self.is_slot and all(
            storage_of(param).nbytes() == 0
            and grad.nbytes <= self._sizes.get(id(param), 0)
            for param, grad in zip(params, grads, strict=True)
        )

    def stage(
        self, params: list, grads: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Copies of the gradients in memory that parameters have left. The
        caller gives it back, with unstage, whatever happens."""
        device, staged = self.device, []
        try:
            with self._pool.using(), device.on(device.home):
                for param, grad in zip(params, grads, strict=True):
                    staged.append(self._open_copy(param, grad))
            device.enter([span_of(copy) for copy in staged], device.current())
            torch._foreach_copy_(staged, grads)
        except BaseException:
            self.unstage(staged)
            raise
        return staged

    def _open_copy(self, param: Any, grad: torch.Tensor) -> torch.Tensor:
        """A tensor like the contiguous grad that nothing has been written to,
        which torch.empty does not promise. There is one for each parameter;
        only its memory comes and goes."""
        copy = self._copies.get(id(param))
        if copy is None or not _can_hold(copy, grad):
            storage = torch.UntypedStorage(grad.nbytes, device=grad.device)
            copy = torch.empty(0, dtype=grad.dtype, device=grad.device)
            self._copies[id(param)] = copy.set_(
                storage, 0, grad.shape, grad.stride()
            )
        else:
            copy.untyped_storage().resize_(grad.nbytes)
        return copy

    def unstage(self, staged: list[torch.Tensor], event: Any = None) -> None:
        """Gives the copies' memory back; peers read it until the event, or
        nobody after what the current stream holds now."""
        spans = [span_of(copy) for copy in staged]
        for copy in staged:
            copy.untyped_storage().resize_(0)
        staged.clear()
        self.device.vacate(spans, event)


def _can_hold(copy: torch.Tensor, grad: torch.Tensor) -> bool:
    """Whether it is like the gradient, and without memory: what it has may be
    of a pool that is no longer this one."""
    return (
        copy.dtype == grad.dtype
        and copy.shape == grad.shape
        and copy.untyped_storage().nbytes() == 0
    )


def storage_of(param: Any) -> Any:
    return param.all_gather_outputs[0].untyped_storage()


def _allocate(
    storage: torch.UntypedStorage,
    size: int,
    avoid: Ranges,
    passed: list[torch.UntypedStorage],
) -> Span:
    """Resizes the storage, if it is empty, to memory outside `avoid`, and
    tells where that is. Blocks that the allocator offers from there are held
    in `passed` meanwhile."""
    if size and storage.nbytes() == 0:
        storage.resize_(size)
    span = span_of(storage)
    for _ in range(MOST_PASSED):
        if avoid.touched_by(span) is None:
            break
        storage.resize_(0)
        passed.append(torch.UntypedStorage(size, device=storage.device))
        storage.resize_(size)
        span = span_of(storage)
    return span
