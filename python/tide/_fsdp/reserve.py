"""Room in the arena for gradients that are not in it.

A gradient may miss the arena: it was accumulated, or summed by a hook, or the
arena was full when autograd allocated it. It is then copied to memory that the
communicator has set aside. A call whose gradients are too many for it becomes
several calls, one after the other. That depends on sizes alone, so that all
ranks do it alike; which gradients are copied is each rank's own matter.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tide._fsdp.device import Cuda
from tide._fsdp.gates import Span

ALIGNMENT = 256


def room_for(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass
class Reserve:
    """So many bytes of an arena, at this address."""

    address: int
    nbytes: int

    def chunks(self, grads: list[torch.Tensor]) -> Iterator[slice]:
        """Runs of gradients that fit it, each as long as can be."""
        start, used = 0, 0
        for i, grad in enumerate(grads):
            size = room_for(grad.nbytes)
            if used and used + size > self.nbytes:
                yield slice(start, i)
                start, used = i, 0
            used += size
        yield slice(start, len(grads))

    def bring_in(
        self,
        device: Cuda,
        native,
        grads: list[torch.Tensor],
        stream,
    ) -> tuple[list[int], list[Span], int]:
        """Copies those that are outside, in the stream. Where peers find each
        gradient, what was written of the reserve, and the bytes copied."""
        addresses, outside, at = [], [], self.address
        for grad in grads:
            address = grad.data_ptr()
            if grad.nbytes and not native.owns(address, grad.nbytes):
                outside.append((grad, at))
                address = at
                at += room_for(grad.nbytes)
            addresses.append(address)
        if not outside:
            return addresses, [], 0
        span = (self.address, at)
        device.enter([span], stream)
        targets = [
            device.view(where, grad.nbytes).view(grad.dtype)
            for grad, where in outside
        ]
        with device.on(stream):
            torch._foreach_copy_(
                targets, [grad.reshape(-1) for grad, _where in outside]
            )
        return addresses, [span], sum(grad.nbytes for grad, _ in outside)
