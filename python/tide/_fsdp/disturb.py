"""TIDE_DEBUG_DELAY: makes missing order between streams show.

With the variable set to a number of microseconds, every stream that tide
queues work on is held up at random for up to so long, and memory that has been
given back is filled with NaN once its last user is through. Results must not
change.
"""

import os
import random
from typing import Any

import torch

NAN_BYTE = 0xFF  # of every floating dtype that is all ones
CYCLES_PER_US = 1500  # of torch.cuda._sleep; about, on any GPU of today
MOST_US = 1_000_000


def longest_delay() -> int:
    """Microseconds; 0 is off."""
    try:
        value = int(os.environ.get("TIDE_DEBUG_DELAY", ""))
    except ValueError:
        return 0
    return min(max(value, 0), MOST_US)


class Disturber:
    """What the debug mode does to streams and memory; nothing when off."""

    def __init__(self, handle: Any, seed: int) -> None:
        self.longest = longest_delay()
        self.random = random.Random(seed)
        self._handle = handle
        self._poisoning = handle.Stream() if self.on else None

    @property
    def on(self) -> bool:
        return self.longest > 0

    def delay(self, stream: Any) -> None:
        """Holds the stream up, every other time."""
        if self.on and self.random.random() < 0.5:
            cycles = self.random.randrange(self.longest) * CYCLES_PER_US
            with self._handle.stream(stream):
                self._handle._sleep(max(cycles, 1))

    def poison(self, views: list[torch.Tensor], event: Any) -> Any:
        """Fills memory with NaN after the event; the event after that."""
        stream = self._poisoning
        stream.wait_event(event)
        with self._handle.stream(stream):
            for view in views:
                view.fill_(NAN_BYTE)
        return stream.record_event()
