"""Device memory that the host has given back while the GPU still uses it.

A caching allocator hands memory out again at once, in the order of the host.
The work that used it may still be queued, on a stream that the next user does
not know. So each range that is given back keeps the event after which it may
be written, and whoever gets an overlapping range waits for that event first.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

Span = tuple[int, int]  # first address, address behind the last


def span_of(memory: torch.Tensor | torch.UntypedStorage) -> Span:
    start, nbytes = memory.data_ptr(), memory.nbytes
    return start, start + (nbytes() if callable(nbytes) else nbytes)


def overlaps(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]


class Gates:
    """Ranges, and the events that open them, oldest first."""

    def __init__(self) -> None:
        self._closed: deque[tuple[list[Span], Any]] = deque()

    def close(self, spans: Iterable[Span], event: Any) -> None:
        """Nobody writes these ranges before the event."""
        kept = [span for span in spans if span[0] < span[1]]
        if kept:
            self._forget_opened()
            self._closed.append((kept, event))

    def take(self, spans: Iterable[Span]) -> list[Any]:
        """What the next user of these ranges has to wait for. It closes them
        again when it gives them back, so what it covers can be forgotten."""
        spans, events, left = list(spans), [], deque()
        for kept, event in self._closed:
            untouched = [k for k in kept if not _touches(k, spans)]
            if len(untouched) == len(kept):
                left.append((kept, event))
                continue
            events.append(event)
            kept = [k for k in kept if not _covered(k, spans)]
            if kept:
                left.append((kept, event))
        self._closed = left
        return events

    def newest(self) -> list[Span]:
        """The ranges closed last, if they are closed still."""
        if not self._closed or self._closed[-1][1].query():
            return []
        return self._closed[-1][0]

    def _forget_opened(self) -> None:
        while self._closed and self._closed[0][1].query():
            self._closed.popleft()

    def __len__(self) -> int:
        return len(self._closed)


def _touches(span: Span, others: list[Span]) -> bool:
    return any(overlaps(span, other) for other in others)


def _covered(span: Span, others: list[Span]) -> bool:
    return any(o[0] <= span[0] and span[1] <= o[1] for o in others)
