"""What differs between tensors of the host and of a GPU.

On the host FSDP2's streams are stubs and a call has done its work when it
returns. On a GPU a call queues work, streams and events order it, and nothing
here waits for the GPU.
"""

import contextlib
from typing import Any

import torch
import torch.distributed as dist

from tide._fsdp.disturb import Disturber
from tide._fsdp.gates import Gates, Span

_cuda: dict[int, "Cuda"] = {}


def get(device: torch.device) -> "Host | Cuda":
    """The device layer of a parameter group's tensors."""
    if device.type == "cpu":
        return HOST
    index = device.index
    if index is None:
        index = torch.cuda.current_device()
    if index not in _cuda:
        with torch.cuda.device(index):
            _cuda[index] = Cuda(torch.device("cuda", index))
    return _cuda[index]


class Host:
    queued = False

    def on(self, stream: Any) -> Any:
        return contextlib.nullcontext()

    def order(self, stream: Any, after: Any) -> None:
        """Work that `stream` gets from now on runs after that of `after`."""

    def await_phase(self, request: Any, phase: str, stream: Any) -> None:
        """The stream goes on after the request's phase; the host at once."""

    def delay(self, stream: Any) -> None:
        """Where the debug mode may hold a stream up."""

    def stage_address(self, request: Any) -> int:
        """Where STAGE is, if views of it may be kept; else 0."""
        return 0

    def stage(self, request: Any, nbytes: int) -> torch.Tensor:
        """The bytes of an all-gather's STAGE."""
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(request.buffer, dtype=torch.uint8)

    def start(self, request: Any, addresses: list[int], stream: Any) -> None:
        """The all-gather runs after what the stream holds now."""
        request.start(addresses)

    def reduce(self, group: Any, arguments: tuple, stream: Any) -> Any:
        """Starts a reduce-scatter; it runs after what the stream holds now."""
        return group.reduce_scatter(*arguments)

    def empty(self) -> torch.Tensor:
        return torch.empty(0)

    def capturing(self) -> bool:
        return False


HOST = Host()


class _Window:
    """Device memory, as torch.as_tensor likes to be told of it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class _OnStream:
    """What torch.cuda.stream is where the stream's device is current, and
    without asking twice which one is: torch takes longer for that than for all
    the rest."""

    __slots__ = ("_before", "_handle", "_index", "_stream")

    def __init__(self, handle: Any, index: int | None, stream: Any) -> None:
        self._handle, self._index, self._stream = handle, index, stream

    def __enter__(self) -> None:
        self._before = self._handle.current_stream(self._index)
        self._handle.set_stream(self._stream)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._handle.set_stream(self._before)


class Cuda:
    """A GPU: its streams, and who may write which memory when.

    `home` is the stream that the allocator knows as the owner of the memory
    that all-gathers land in; it runs nothing, but stays behind the last user
    of all that it was given back, for an allocator that unmaps memory. `landed`
    carries the events of all-gathers that FSDP2 wants beside its own streams.
    `handle` is torch.cuda, or a stand-in in tests.
    """

    queued = True

    def __init__(self, device: torch.device, handle: Any = torch.cuda) -> None:
        self.device = device
        self.handle = handle
        self.gates = Gates()
        self.home = handle.Stream()
        self.landed = handle.Stream()
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.disturber = Disturber(handle, seed=rank)
        self._empty = torch.empty(0, device=device)

    def on(self, stream: Any) -> Any:
        return _OnStream(self.handle, self.device.index, stream)

    def current(self) -> Any:
        return self.handle.current_stream(self.device.index)

    def order(self, stream: Any, after: Any) -> None:
        if stream is not after:
            stream.wait_stream(after)

    def await_phase(self, request: Any, phase: str, stream: Any) -> None:
        request.stream_wait(phase, stream.cuda_stream)

    def delay(self, stream: Any) -> None:
        self.disturber.delay(stream)

    def view(self, address: int, nbytes: int) -> torch.Tensor:
        """A uint8 tensor over device memory; it keeps nothing alive."""
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8, device=self.device)
        return torch.as_tensor(_Window(address, nbytes), device=self.device)

    def stage_address(self, request: Any) -> int:
        return request.stage

    def stage(self, request: Any, nbytes: int) -> torch.Tensor:
        return self.view(request.stage, nbytes)

    def start(self, request: Any, addresses: list[int], stream: Any) -> None:
        request.start(addresses, stream.cuda_stream)

    def reduce(self, group: Any, arguments: tuple, stream: Any) -> Any:
        return group.reduce_scatter(*arguments, stream.cuda_stream)

    def empty(self) -> torch.Tensor:
        return self._empty

    def capturing(self) -> bool:
        return self.handle.is_current_stream_capturing()

    # --- Memory that changes hands ---------------------------------------

    def enter(self, spans: list[Span], stream: Any) -> None:
        """The stream may write these ranges from here on."""
        for event in self.gates.take(spans):
            stream.wait_event(event)

    def vacate(self, spans: list[Span], event: Any = None) -> None:
        """The host has given these ranges back. They are in use until the
        event, or until what the current stream holds now is done."""
        spans = [span for span in spans if span[0] < span[1]]
        if not spans:
            return
        if event is None:
            event = self.current().record_event()
        if self.disturber.on:
            views = [self.view(start, end - start) for start, end in spans]
            event = self.disturber.poison(views, event)
        self.home.wait_event(event)
        self.gates.close(spans, event)
