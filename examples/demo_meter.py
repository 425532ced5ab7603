"""What the demo measures, from outside FSDP2 and tide alike.

Both are timed by the same wrappers around the functions that FSDP2's parameter
groups call, so that the layout copies count as part of the collective. For
stock FSDP2 the buffers are measured too, as its tensors come and go; tide
reports its own.
"""

import mmap
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from torch import Tensor
from torch.distributed.fsdp._fully_shard import (
    _fsdp_collectives,
    _fsdp_param_group,
)

TIMED = {
    "foreach_all_gather": "ag_ms",
    "foreach_all_gather_copy_out": "ag_ms",
    "foreach_reduce": "rs_ms",
}


class Barrier:
    """Ranks of one machine meet by counters in a shared file. Who waits
    sleeps, and all leave within POLL_SECONDS of each other; gloo's barrier
    takes longer than some of the collectives that it would align."""

    POLL_SECONDS = 1e-4

    def __init__(self, path: Path, rank: int, ranks: int):
        with path.open("ab") as file:  # every rank makes it large enough
            file.truncate(8 * ranks)
        with path.open("r+b") as file:
            self.counters = memoryview(mmap.mmap(file.fileno(), 8 * ranks))
        self.counters = self.counters.cast("q")
        self.rank = rank

    def wait(self) -> None:
        self.counters[self.rank] += 1
        mine = self.counters[self.rank]
        while min(self.counters) < mine:
            time.sleep(self.POLL_SECONDS)


class CollectiveTimer:
    """Sums the time spent in each collective; install it after tide.

    With `align`, ranks meet in the barrier before and after each of them,
    which is not counted: what remains is the collective, without the wait for
    ranks that still compute, and without ranks that compute already.
    """

    def __init__(self, barrier: Barrier):
        self.barrier = barrier
        self.align = False
        self.total = dict.fromkeys(TIMED.values(), 0.0)
        for name, key in TIMED.items():
            original = getattr(_fsdp_param_group, name)
            setattr(_fsdp_param_group, name, self.timed(original, key))

    def timed(self, function: Callable, key: str) -> Callable:
        def wrapper(*args, **kwargs):
            if self.align:
                self.barrier.wait()
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.total[key] += (time.perf_counter() - start) * 1e3
            if self.align:
                self.barrier.wait()
            return result

        return wrapper

    def take(self) -> dict[str, float]:
        """Milliseconds since the last call."""
        taken = self.total
        self.total = dict.fromkeys(taken, 0.0)
        return taken


class StockBuffers:
    """Peak bytes of the flat tensors that stock FSDP2 makes.

    Counted while they live: the gathered flat output, the flat cast of the
    local shards that goes in, and the packed input of the reduce-scatter. The
    reduce-scatter's output is not: it becomes the gradient.
    """

    def __init__(self):
        self.live = 0
        self.peak = 0
        self.watch_all_gather()
        self.watch_reduce_scatter()

    def watch_all_gather(self) -> None:
        original = _fsdp_param_group.foreach_all_gather

        def wrapper(*args, **kwargs):
            result = original(*args, **kwargs)
            if result is not None:
                output = result.all_gather_output
                self.hold(output)
                cast = sum(result.all_gather_input_split_sizes)
                self.note(cast * output.element_size())
            return result

        _fsdp_param_group.foreach_all_gather = wrapper

    def watch_reduce_scatter(self) -> None:
        original = _fsdp_collectives.foreach_reduce_scatter_copy_in

        def wrapper(grads, packed, world_size):
            self.hold(packed)
            return original(grads, packed, world_size)

        _fsdp_collectives.foreach_reduce_scatter_copy_in = wrapper

    def hold(self, tensor: Tensor) -> None:
        """Counts a tensor until it is freed."""
        self.live += tensor.nbytes
        weakref.finalize(tensor, self.release, tensor.nbytes)
        self.note(0)

    def release(self, nbytes: int) -> None:
        self.live -= nbytes

    def note(self, passing: int) -> None:
        """Updates the peak, with `passing` bytes that are gone already."""
        self.peak = max(self.peak, self.live + passing)


def peak_rss_mib() -> float:
    """The most memory this process has had resident, shared pages included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM in /proc/self/status")
