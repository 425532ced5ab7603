"""A GPU for tests on the CPU: streams that keep order, not time.

Work is done at once, by the host backend, but every stream and event carries a
vector clock, and every use of memory that tide hands around is noted with the
clock of its stream. Two uses that overlap, one of them a write, and that no
chain of waits puts in order, are a race: on a GPU they might run at once.
"""

import contextlib
import ctypes

import torch
from tide._fsdp.device import Cuda
from tide._fsdp.gates import overlaps
from tide._fsdp.internals import find_groups
from tide._fsdp.memory import view_bytes
from tide._fsdp.reserve import Reserve
from tide._fsdp.router import ROUTER

M_MMAP_THRESHOLD = -3  # of mallopt


class Event:
    def __init__(self, clock: dict) -> None:
        self.clock = clock

    def query(self) -> bool:
        return False  # the GPU is slow: nothing has happened yet


class Stream:
    names = iter(range(1_000_000))

    def __init__(self) -> None:
        self.name = next(Stream.names)
        self.clock = {self.name: 0}

    def tick(self) -> tuple[int, int]:
        self.clock[self.name] += 1
        return self.name, self.clock[self.name]

    def record_event(self) -> Event:
        self.tick()
        return Event(dict(self.clock))

    def wait_event(self, event: Event | None) -> None:
        if not isinstance(event, Event):  # PyTorch's stubs of the CPU
            return
        for name, count in event.clock.items():
            self.clock[name] = max(self.clock.get(name, 0), count)

    def wait_stream(self, other) -> None:
        self.wait_event(Handle.mine(other).record_event())


class Handle:
    """What tide uses of torch.cuda."""

    Stream = Stream
    stream = staticmethod(torch.cpu.stream)
    compute = Stream()

    @staticmethod
    def mine(stream) -> Stream:
        return stream if isinstance(stream, Stream) else Handle.compute

    @staticmethod
    def current_stream(index: int | None = None) -> Stream:
        return Handle.mine(torch.cpu.current_stream())

    @staticmethod
    def set_stream(stream) -> None:
        torch.cpu._current_stream = stream

    @staticmethod
    def is_current_stream_capturing() -> bool:
        return False

    @staticmethod
    def _sleep(cycles: int) -> None:
        Handle.current_stream().tick()


class StandIn(Cuda):
    """The device layer over all that; `races` has what was found."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), Handle)
        self.gathers, self.reduces = Stream(), Stream()  # tide's own
        self.uses: list[tuple[tuple, bool, tuple[int, int]]] = []
        self.races: list[str] = []
        self.waits = 0
        self.pool = Pool()
        self.reducing = -1  # the name of FSDP2's reduce-scatter stream

    def use(self, spans, stream: Stream, write: bool, what: str) -> None:
        now = stream.tick()
        for span in spans:
            for other, wrote, (name, count) in self.uses:
                ordered = stream.clock.get(name, 0) >= count
                if overlaps(span, other) and (write or wrote) and not ordered:
                    self.races.append(f"{what} at {span[0]:#x}")
            self.uses.append((span, write, now))

    # --- The device layer -------------------------------------------------

    def view(self, address: int, nbytes: int) -> torch.Tensor:
        return view_bytes(address, nbytes, None)

    def stage_address(self, request) -> int:
        return 0

    def stage(self, request, nbytes: int) -> torch.Tensor:
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(request.buffer, dtype=torch.uint8)

    def await_phase(self, request, phase: str, stream) -> None:
        if phase != "free":
            request.wait(phase)
            own = self.gathers if request is self.gather else self.reduces
            stream.wait_stream(own)

    def enter(self, spans, stream) -> None:
        before = dict(stream.clock)
        super().enter(spans, stream)
        self.waits += before != stream.clock
        self.entered = list(spans)
        if stream.name in (Handle.compute.name, self.reducing):
            self.use(spans, stream, True, "staging")  # of gradients

    def start(self, request, addresses, stream) -> None:
        self.gathers.wait_stream(stream)
        self.use(self.entered, self.gathers, True, "landing")
        self.gather = request
        request.start(addresses)

    def reduce(self, group, arguments, stream):
        self.reduces.wait_stream(stream)
        self.gather = None
        return group.reduce_scatter(*arguments)

    def vacate(self, spans, event=None) -> None:
        spans = [span for span in spans if span[0] < span[1]]
        if event is None:
            self.use(spans, Handle.compute, False, "use")
        elif self.reduces.name in event.clock:  # peers have read them by then
            now = self.reduces.name, event.clock[self.reduces.name]
            self.uses += [(span, False, now) for span in spans]
        super().vacate(spans, event)


class Pool:
    """Stands in for the arena's pool, which no thread may enter twice."""

    def __init__(self) -> None:
        self.active, self.entered = False, 0

    @contextlib.contextmanager
    def using(self):
        assert not self.active
        self.active = True
        self.entered += 1
        try:
            yield
        finally:
            self.active = False


def install(model, reserve: int) -> StandIn:
    """Makes a model of tide's, before its first step, use a stand-in, with so
    many bytes for gradients outside the arena, which are all of them. Large
    blocks are mapped and unmapped, so that their addresses come again."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 65536)
    standin = StandIn()
    for _name, group in find_groups(model):
        state = group._tide_state
        state.device, comm = standin, state.comm
        comm.__dict__["pool"] = standin.pool
        if not comm.reserve.nbytes:
            comm.reserve = Reserve(comm.native.memory_take(reserve), reserve)
        if state.mode == "in_place":
            ROUTER.wrap(state)
    return standin


def replace_streams(model, standin: StandIn) -> None:
    """Streams that keep order, instead of PyTorch's stubs for the CPU."""
    context = model._get_fsdp_state()._comm_ctx
    for name in (
        "all_gather_copy_in_stream",
        "all_gather_stream",
        "reduce_scatter_stream",
        "all_reduce_stream",
    ):
        setattr(context, name, Stream())
    standin.reducing = context.reduce_scatter_stream.name


__all__ = ["StandIn", "install", "replace_streams"]
