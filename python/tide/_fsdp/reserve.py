"""Room in the arena for gradients that are not in it.

A gradient may miss the arena: it was accumulated, or summed by a hook, or the
arena was full when autograd allocated it. It is then copied to memory that the
communicator has set aside. A call goes in one piece where those of each rank
fit there. Else it becomes several, one after the other, whose parts depend on
sizes alone; a gradient that is too wide for one is taken part by part, each of
it some elements of every rank's shard.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tide._fsdp import wire
from tide._fsdp.device import Cuda
from tide._fsdp.gates import Span

ALIGNMENT = 256


def room_for(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def is_outside(native, grad: torch.Tensor) -> bool:
    """Whether peers cannot read it where it lies."""
    return bool(grad.nbytes) and not native.owns(grad.data_ptr(), grad.nbytes)


class Part(NamedTuple):
    """What a call reduces: some gradients, or of a single one these elements
    of every rank's shard, counted from the shard's first."""

    grads: slice
    elems: slice | None = None

    def params(self, params: tuple[wire.Param, ...], ranks: int) -> tuple:
        """As tide sees it, of a call with these parameters."""
        if self.elems is None:
            return params[self.grads]
        count = self.elems.stop - self.elems.start
        return ((1, ranks, count, params[self.grads.start][3]),)


@dataclass
class Reserve:
    """So many bytes of an arena, at this address."""

    address: int
    nbytes: int

    def holds(self, grads: Iterable[torch.Tensor]) -> bool:
        """Whether there is room for all of them at a time."""
        return sum(room_for(grad.nbytes) for grad in grads) <= self.nbytes

    def takes_whole(
        self, native, grads: list[torch.Tensor], votes: bool
    ) -> bool:
        """Whether one call can reduce them all; alike on all ranks. Where
        gradients lie is each rank's own matter, so the ranks vote, if they
        can; else sizes decide."""
        if self.holds(grads):
            return True
        return votes and native.vote(
            self.holds(g for g in grads if is_outside(native, g))
        )

    def parts(
        self, grads: list[torch.Tensor], shards: list[int], ranks: int
    ) -> Iterator[Part]:
        """Runs of gradients that fit it, each as long as can be, and parts of
        those that do not; `shards` has the elements of each one's shards."""
        start, used = 0, 0
        for i, grad in enumerate(grads):
            size = room_for(grad.nbytes)
            if used + size > self.nbytes:
                if start < i:
                    yield Part(slice(start, i))
                start, used = i, 0
            if size > self.nbytes:
                yield from self._cut(i, grad.itemsize, shards[i], ranks)
                start, size = i + 1, 0
            used += size
        if start < len(grads):
            yield Part(slice(start, len(grads)))

    def _cut(
        self, i: int, itemsize: int, shard: int, ranks: int
    ) -> Iterator[Part]:
        most = self.nbytes // (ranks * itemsize)
        aligned = ALIGNMENT // itemsize
        if most > aligned:
            most -= most % aligned
        for start in range(0, shard, most):
            elems = slice(start, min(start + most, shard))
            yield Part(slice(i, i + 1), elems)

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
            if is_outside(native, grad):
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

    def bring_part(
        self,
        device: Cuda,
        grad: torch.Tensor,
        elems: slice,
        shard: int,
        ranks: int,
        stream,
    ) -> tuple[list[int], list[Span], int]:
        """The same for some elements of every rank's shard, wherever the
        gradient lies: a row of them for each rank, zeros where it has none."""
        count = elems.stop - elems.start
        nbytes = ranks * count * grad.itemsize
        span = (self.address, self.address + nbytes)
        device.enter([span], stream)
        target = device.view(self.address, nbytes).view(grad.dtype)
        with device.on(stream):
            copied = _copy_part(target, grad.reshape(-1), elems, shard)
        return [self.address], [span], copied * grad.itemsize


def _copy_part(
    target: torch.Tensor, flat: torch.Tensor, elems: slice, shard: int
) -> int:
    """From every shard; the gradient ends inside one, or before the last.
    Elements that were copied; the rest of the target is filled with zeros."""
    count = elems.stop - elems.start
    full = flat.numel() // shard
    if full:
        rows = flat[elems.start :].as_strided((full, count), (shard, 1))
        target[: full * count].view(full, count).copy_(rows)
    tail = flat[full * shard + elems.start :][:count]
    copied = full * count + tail.numel()
    target[full * count : copied].copy_(tail)
    target[copied:].zero_()
    return copied
