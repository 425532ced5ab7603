"""Communicators: one for each set of ranks, made over torch.distributed.

A communicator outlives the models that use it: it is kept until `close_all`
or until torch.distributed is set up anew, so that ranks never disagree on
whether one must be made.
"""

import atexit
import contextlib
import datetime
import os
import platform
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from tide import _tide
from tide.errors import PEER, add_context, make_error

# Reduce-scatters whose gradients peers may still be reading.
MAX_PARKED = 2


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
    said when it was made.
    """

    def __init__(self, native: _tide.Comm, ranks: tuple[int, ...]) -> None:
        self.native = native
        self.ranks = ranks
        self.info: dict[str, Any] = native.info()
        self.failed = False
        self._parked: deque[tuple[_tide.Request, Any, str]] = deque()

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Whatever fails in here fails on all ranks, and says at what."""
        try:
            yield
        except _tide.Error as error:
            self.fail()
            raise add_context(error, what) from error
        except BaseException:
            self.fail()
            raise

    def park(self, request: _tide.Request, keep: Any, what: str) -> None:
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
        return self.info

    def close(self) -> None:
        """Finishes what is parked and gives the native communicator up. An
        error of what is parked no longer matters: nobody waits for it."""
        with contextlib.suppress(_tide.Error):
            self.drain()
        self._parked.clear()
        self.failed = True
        self.native.close()


# Ranks: the world they belong to, weakly, and their communicator.
_kept: dict[tuple[int, ...], tuple[weakref.ref, Communicator]] = {}


def get(group: dist.ProcessGroup) -> Communicator:
    """The communicator of a process group's ranks. Collective over it.

    Raises tide.Error: TIDE_ERR_UNSUPPORTED where no backend can serve these
    ranks, TIDE_ERR_PEER when one does not come, and as tide_comm_create.
    """
    ranks = tuple(dist.get_process_group_ranks(group))
    world, kept = _kept.get(ranks, (None, None))
    usable = (
        kept is not None and not kept.failed and world() is dist.group.WORLD
    )
    with naming(group, "tide communicator"):
        votes = exchange(group, b"1" if usable else b"0")
        if kept is not None and all(vote == b"1" for vote in votes):
            return kept
        if kept is not None:
            kept.close()
        native = _tide.Comm(
            group.rank(), len(ranks), lambda data: exchange(group, data)
        )
    made = Communicator(native, ranks)
    _kept[ranks] = (weakref.ref(dist.group.WORLD), made)
    return made


def close_all() -> None:
    """Closes every communicator. Slots in use keep theirs until they go."""
    while _kept:
        _ranks, (_world, kept) = _kept.popitem()
        kept.close()


@atexit.register
def _leave_all() -> None:
    """At the end of the process peers see at once that it has gone, and, if
    it goes in the middle of a call, that the call fails."""
    while _kept:
        _ranks, (_world, kept) = _kept.popitem()
        kept.native.leave()


@contextlib.contextmanager
def naming(group: dist.ProcessGroup, what: str) -> Iterator[None]:
    """An error in here says which rank, on which host, was doing what."""
    try:
        yield
    except _tide.Error as error:
        raise add_context(error, f"{where(group)}: {what}") from None


def where(group: dist.ProcessGroup) -> str:
    """Who this process is, for messages: rank, ranks, host."""
    host = platform.node()
    return f"rank {group.rank()} of {group.size()} (host {host})"


def exchange(group: dist.ProcessGroup, data: bytes) -> list[bytes]:
    """Every rank's bytes, in rank order; their lengths may differ.

    Raises tide.Error, TIDE_ERR_PEER, when a rank does not come in time.
    """
    try:
        lengths = _gather(group, torch.tensor([len(data)]))
        longest = max(int(length) for length in lengths)
        padded = data.ljust(max(longest, 1), b"\0")
        parts = _gather(
            group, torch.frombuffer(bytearray(padded), dtype=torch.uint8)
        )
    except RuntimeError as error:
        seconds = deadline_ms() / 1000
        text = f"the ranks did not meet within {seconds:g} s ({error})"
        raise make_error(PEER, text) from None
    return [
        bytes(part.tolist())[: int(length)]
        for part, length in zip(parts, lengths, strict=True)
    ]


def _gather(
    group: dist.ProcessGroup, tensor: torch.Tensor
) -> list[torch.Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    work = dist.all_gather(parts, tensor, group=group, async_op=True)
    work.wait(datetime.timedelta(milliseconds=deadline_ms()))
    return parts
