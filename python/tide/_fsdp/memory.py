"""Slots under FSDP2's unsharded parameters.

FSDP2 frees an unsharded parameter by resizing its storage to nothing. Memory
that tide maps cannot be resized, so the parameters of a home override the two
methods that allocate and free: allocating occupies the slot, freeing all of
them vacates it. PyTorch's own collectives work on such parameters too, which
is why a home stays when tide is disabled: autograd may hold views of it.
"""

import ctypes
from typing import Any

import torch

ALIGNMENT = 256  # of every storage; vectorised kernels assume 16


def view_bytes(address: int, nbytes: int, owner: Any) -> torch.Tensor:
    """A uint8 tensor over memory that `owner` keeps alive."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    region = (ctypes.c_char * nbytes).from_address(address)
    region._owner = owner  # lives as long as the tensor's storage
    return torch.frombuffer(region, dtype=torch.uint8)


def storage_tensor(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor on raw's own storage: no view, its own version counter."""
    with torch.inference_mode(False), torch.no_grad():
        flat = torch.empty(0, dtype=dtype)
        numel = raw.numel() // dtype.itemsize
        return flat.set_(raw.untyped_storage(), 0, (numel,), (1,))


class Home:
    """One slot that holds the unsharded storages of a parameter group."""

    is_slot = True

    def __init__(
        self, comm, params: list, sizes: list[int], dtypes: list
    ) -> None:
        self.comm = comm
        self._index = {id(param): i for i, param in enumerate(params)}
        self._used: set[int] = set()
        self._held = False
        self._occupied = False
        offsets, total = [], 0
        for size in sizes:
            offsets.append(total)
            total += -(-size // ALIGNMENT) * ALIGNMENT
        self._slot = comm.native.slot(total) if total else None
        base = self._slot.address if self._slot else 0
        self._raw = [
            view_bytes(base + offset, size, self._slot)
            for offset, size in zip(offsets, sizes, strict=True)
        ]
        for i, (param, dtype) in enumerate(zip(params, dtypes, strict=True)):
            self._move_in(i, param, dtype)

    def _move_in(self, i: int, param, dtype: torch.dtype) -> None:
        param.all_gather_outputs = [storage_tensor(self._raw[i], dtype)]
        param.alloc_all_gather_outputs = lambda: self._alloc(i)
        param.free_unsharded_param = lambda: self._free(i)

    def _alloc(self, i: int) -> None:
        self._used.add(i)
        self._occupy()

    def _occupy(self) -> None:
        if self._slot and not self._occupied:
            self._slot.occupy()
            self._occupied = True

    def _free(self, i: int) -> None:
        self._used.discard(i)
        self._vacate_if_empty()

    def _vacate_if_empty(self) -> None:
        if self._occupied and not self._used and not self._held:
            self._slot.vacate()
            self._occupied = False

    def wrap_post_backward(self, group) -> None:
        """Keeps the slot's memory from the reshard in group.post_backward to
        its end, for the gradients to be staged there."""
        stock = group.post_backward

        def post_backward(*unused) -> None:
            self._held = True
            try:
                stock(*unused)
            finally:
                self._held = False
                self._vacate_if_empty()

        group.post_backward = post_backward

    def can_stage(self, comm, params: list, grads: list[torch.Tensor]) -> bool:
        """Whether the parameters' memory is free now, and large enough."""
        return (
            comm is self.comm
            and self._held
            and not self._used
            and all(
                grad.nbytes <= self._raw[self._index[id(param)]].numel()
                for param, grad in zip(params, grads, strict=True)
            )
        )

    def stage(
        self, params: list, grads: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Copies of the gradients, each in its parameter's memory."""
        self._occupy()
        staged = []
        for param, grad in zip(params, grads, strict=True):
            raw = self._raw[self._index[id(param)]][: grad.nbytes]
            staged.append(raw.view(grad.dtype))
            staged[-1].copy_(grad.reshape(-1))
        return staged
