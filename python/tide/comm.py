"""Communicators: one for each set of ranks, made over torch.distributed.

A communicator outlives the models that use it: it is kept until `close_all`
or until torch.distributed is set up anew, so that ranks never disagree on
whether one must be made.
"""

import atexit
import contextlib
import datetime
import functools
import os
import platform
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from tide import _tide
from tide._fsdp import arena
from tide._fsdp.reserve import Reserve
from tide.errors import MEMORY, PEER, UNSUPPORTED, add_context, make_error

# Reduce-scatters whose gradients peers may still be reading.
MAX_PARKED = 2

HOST = torch.device("cpu")

# A request, what peers still read of it, and whose it is, for errors.
_Parked = tuple[_tide.Request, Any, Callable[[], str]]


def deadline_ms() -> int:
    """The deadline of every wait, as libtide reads it."""
    try:
        value = int(os.environ.get("TIDE_TIMEOUT_MS", ""))
    except ValueError:
        value = 0
    return value if 1 <= value <= 86_400_000 else 120_000


class Communicator:
    """A native communicator and the reduce-scatters it still has to finish.

    ``native`` is the _tide.Comm, ``ranks`` the global ranks, ``info`` what it
    said when it was made, ``device`` where its tensors are.
    """

    def __init__(
        self,
        native: _tide.Comm,
        ranks: tuple[int, ...],
        device: torch.device = HOST,
    ) -> None:
        self.native = native
        self.ranks = ranks
        self.device = device
        self.asked = 0  # bytes of the reserve, even if there was no room
        self.reserve = Reserve(0, 0)
        self.info: dict[str, Any] = native.info()
        self.failed = False
        self._parked: deque[_Parked] = deque()

    @functools.cached_property
    def pool(self) -> arena.ArenaPool:
        """torch memory from the arena; on a GPU only."""
        return arena.ArenaPool(self.native, self.device)

    def doing(self, what: Callable[[], str]) -> "_Doing":
        """Whatever fails in here fails on all ranks, and says at what."""
        return _Doing(self, what)

    def park(
        self, request: _tide.Request, keep: Any, what: Callable[[], str]
    ) -> None:
        """Keeps `keep` alive until peers have read it; `what` is for errors
        that show only then."""
        self._parked.append((request, keep, what))

    def make_room(self) -> None:
        """Finishes the oldest parked requests, before another starts."""
        while len(self._parked) >= MAX_PARKED:
            self._finish_oldest()

    def drain(self) -> None:
        """Finishes every parked request."""
        while self._parked:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        request, _keep, what = self._parked.popleft()
        with self.doing(what):
            request.close()

    def fail(self) -> None:
        """Makes every rank's calls fail: this rank cannot go on."""
        self.failed = True
        self.native.abort()

    def describe(self) -> dict[str, Any]:
        """What it says now, or said last."""
        with contextlib.suppress(_tide.Error):
            self.info = self.native.info()
        self.info["reserve_bytes"] = self.reserve.nbytes
        return self.info

    def close(self) -> None:
        """Finishes what is parked and gives the native communicator up. An
        error of what is parked no longer matters: nobody waits for it."""
        with contextlib.suppress(_tide.Error):
            self.drain()
        self._parked.clear()
        self.failed = True
        self.__dict__.pop("pool", None)  # and what it keeps of the arena
        if self.reserve.nbytes:
            self.native.memory_give(self.reserve.address)
            self.reserve = Reserve(0, 0)
        self.native.close()


class _Doing:
    """What Communicator.doing is. Names are made up when they are needed."""

    __slots__ = ("_comm", "_what")

    def __init__(self, comm: Communicator, what: Callable[[], str]) -> None:
        self._comm, self._what = comm, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            return
        self._comm.fail()
        if isinstance(error, _tide.Error):
            raise add_context(error, self._what()) from error


# Ranks and type of device: the world they belong to, weakly, and their
# communicator. Those whose arenas were too small for a later model go on
# serving the earlier one.
_Key = tuple[tuple[int, ...], str]
_kept: dict[_Key, tuple[weakref.ref, Communicator]] = {}
_outgrown: list[Communicator] = []


def get(
    group: dist.ProcessGroup,
    device: torch.device = HOST,
    arena_bytes: int = 0,
    reserve_bytes: int = 0,
) -> Communicator:
    """The communicator of a process group's ranks for tensors of a device,
    with an arena of so many bytes at least (0: the default, on the host) and
    so many of them reserved, if it has them. Collective over the group.

    Raises tide.Error: TIDE_ERR_UNSUPPORTED where no backend can serve these
    ranks, TIDE_ERR_PEER when one does not come, and as tide_comm_create.
    """
    ranks = tuple(dist.get_process_group_ranks(group))
    world, kept = _kept.get((ranks, device.type), (None, None))
    alive = kept is not None and not kept.failed and world() is dist.group.WORLD
    enough = (
        alive
        and kept.info["arena_bytes"] >= arena_bytes
        and kept.asked >= reserve_bytes
    )
    with naming(group, "tide communicator"):
        votes = exchange(group, bytes([alive, enough]))
        if kept is not None and all(vote == b"\1\1" for vote in votes):
            return kept
        _kept.pop((ranks, device.type), None)
        if kept is not None and all(vote[0] for vote in votes):
            _outgrown.append(kept)
        elif kept is not None:
            kept.close()
        made = _make(group, ranks, device, arena_bytes)
        _set_aside(made, reserve_bytes)
    _kept[ranks, device.type] = (weakref.ref(dist.group.WORLD), made)
    return made


def _make(
    group: dist.ProcessGroup,
    ranks: tuple[int, ...],
    device: torch.device,
    arena_bytes: int,
) -> Communicator:
    def meet(data: bytes) -> list[bytes]:
        return exchange(group, data)

    if device.type == "cpu":
        return Communicator(_tide.Comm(group.rank(), len(ranks), meet), ranks)
    with torch.cuda.device(device):  # the native side takes the current one
        torch.cuda.empty_cache()  # room for the arena, which torch would keep
        native = _tide.Comm(
            group.rank(),
            len(ranks),
            meet,
            backend=device.type,
            arena_bytes=arena_bytes,
        )
    return Communicator(native, ranks, device)


def _set_aside(made: Communicator, nbytes: int) -> None:
    """The arena is new: it has this room on every rank, or on none."""
    made.asked = nbytes
    if not nbytes:
        return
    try:
        address = made.native.memory_take(nbytes)
    except _tide.Error as error:
        if error.status != MEMORY:
            raise
        return
    made.reserve = Reserve(address, nbytes)


def close_all() -> None:
    """Closes every communicator. Slots in use keep theirs until they go."""
    for kept in _take_all():
        kept.close()


def _take_all() -> Iterator[Communicator]:
    while _kept:
        _key, (_world, kept) = _kept.popitem()
        yield kept
    while _outgrown:
        yield _outgrown.pop()


@atexit.register
def _leave_all() -> None:
    """At the end of the process peers see at once that it has gone, and, if
    it goes in the middle of a call, that the call fails."""
    for kept in _take_all():
        kept.native.leave()


@contextlib.contextmanager
def naming(group: dist.ProcessGroup, what: str) -> Iterator[None]:
    """An error in here says which rank, on which host, was doing what. Not
    that these ranks cannot be served: all have agreed on that, and on why."""
    try:
        yield
    except _tide.Error as error:
        if error.status == UNSUPPORTED:
            raise
        raise add_context(error, f"{where(group)}: {what}") from None


def where(group: dist.ProcessGroup) -> str:
    """Who this process is, for messages: rank, ranks, host."""
    host = platform.node()
    return f"rank {group.rank()} of {group.size()} (host {host})"


def on_one_machine(group: dist.ProcessGroup) -> bool:
    """As communicators will see it. Collective over the group."""
    mine = _tide.machine().to_bytes(8, "little")
    with naming(group, "tide communicator"):
        return len(set(exchange(group, mine))) == 1


def exchange(group: dist.ProcessGroup, data: bytes) -> list[bytes]:
    """Every rank's bytes, in rank order; their lengths may differ.

    Raises tide.Error, TIDE_ERR_PEER, when a rank does not come in time.
    """
    device = _exchange_device(group)
    try:
        lengths = _gather(group, torch.tensor([len(data)], device=device))
        longest = max(int(length) for length in lengths)
        padded = bytearray(data.ljust(max(longest, 1), b"\0"))
        whole = torch.frombuffer(padded, dtype=torch.uint8)
        parts = _gather(group, whole.to(device))
    except RuntimeError as error:
        seconds = deadline_ms() / 1000
        text = f"the ranks did not meet within {seconds:g} s ({error})"
        raise make_error(PEER, text) from None
    return [
        bytes(part.tolist())[: int(length)]
        for part, length in zip(parts, lengths, strict=True)
    ]


def _exchange_device(group: dist.ProcessGroup) -> torch.device:
    """Where tensors live that the group can exchange: the host, if it can."""
    types = {device.type for device in group._device_types}
    if "cpu" in types or not types:
        return HOST
    return torch.device("cuda", torch.cuda.current_device())


def _gather(
    group: dist.ProcessGroup, tensor: torch.Tensor
) -> list[torch.Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    work = dist.all_gather(parts, tensor, group=group, async_op=True)
    work.wait(datetime.timedelta(milliseconds=deadline_ms()))
    return parts
