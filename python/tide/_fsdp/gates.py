"""Device memory that the host has given back while the GPU still uses it.

A caching allocator hands memory out again at once, in the order of the host.
The work that used it may still be queued, on a stream that the next user does
not know. So each range that is given back keeps the event after which it may
be written, and whoever gets an overlapping range waits for that event first.
"""

from bisect import bisect_left
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


class Ranges:
    """Ranges that do not overlap each other, in the order of addresses."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = sorted(span for span in spans if span[0] < span[1])
        self._starts = [span[0] for span in self._spans]

    def touched_by(self, span: Span) -> Span | None:
        """The last of them that overlaps the span, if one does. No other one
        can cover the span."""
        at = bisect_left(self._starts, span[1]) - 1
        if at >= 0 and overlaps(self._spans[at], span):
            return self._spans[at]
        return None


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
        """What the next user of these ranges has to wait for; they do not
        overlap. It closes them again when it gives them back, so what it
        covers can be forgotten."""
        taken, events, left = Ranges(spans), [], deque()
        for kept, event in self._closed:
            touched = [taken.touched_by(span) for span in kept]
            if any(touched):
                events.append(event)
                kept = [
                    span
                    for span, other in zip(kept, touched, strict=True)
                    if other is None or not _covers(other, span)
                ]
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


def _covers(span: Span, other: Span) -> bool:
    return span[0] <= other[0] and other[1] <= span[1]
