"""What FSDP2's communication costs a step: time of the host, and of the
compute stream."""

import cProfile
import functools
import io
import pstats
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

TIMED = ("foreach_all_gather", "foreach_all_gather_copy_out", "foreach_reduce")
# What FSDP2 has on the compute stream in these is communication: waits for
# all-gathers and reduce-scatters, and layout copies.
HOOKS = ("unshard", "wait_for_unshard", "post_backward", "finalize_backward")


class HostTime:
    """The host's time in each of FSDP2's collectives: to queue them. While
    `profile` is set it sees what they spend that on, and the times are long."""

    def __init__(self) -> None:
        self.profile: cProfile.Profile | None = None
        self.seconds: dict[str, list[float]] = {}  # of each call
        self.reset()
        for name in TIMED:
            self._wrap(name, getattr(_fsdp_param_group, name))

    def _wrap(self, name: str, original) -> None:
        def timed(*args, **kwargs):
            started = time.perf_counter()
            # Of this thread alone: the backward runs in one of its own.
            run = self.profile.runcall if self.profile else _call
            result = run(original, *args, **kwargs)
            self.seconds[name].append(time.perf_counter() - started)
            return result

        setattr(_fsdp_param_group, name, timed)

    def reset(self) -> None:
        self.seconds = {name: [] for name in TIMED}

    def without_waits(self) -> dict[str, list[float]]:
        """Of each call the least of all ranks' times: calls that have hosts
        wait for one another keep those that come first, not the last one.
        Collective."""
        everyone: list = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, self.seconds)
        return {
            name: [
                min(call)
                for call in zip(*(each[name] for each in everyone), strict=True)
            ]
            for name in TIMED
        }


def per_call(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Microseconds, on average."""
    return {
        name: round(1e6 * sum(calls) / max(len(calls), 1), 1)
        for name, calls in seconds.items()
    }


def per_step(seconds: dict[str, list[float]], steps: int) -> float:
    """Milliseconds, of all of them."""
    return 1e3 * sum(map(sum, seconds.values())) / steps


def _call(function, *args, **kwargs):
    return function(*args, **kwargs)


def costliest(profile: cProfile.Profile, count: int) -> list[str]:
    """Lines of the functions that took most time themselves."""
    text = io.StringIO()
    stats = pstats.Stats(profile, stream=text)
    stats.strip_dirs().sort_stats("tottime").print_stats(count)
    return [line for line in text.getvalue().splitlines() if line.strip()]


class Exposed:
    """Exposed communication: how long the compute stream spends in the hooks
    of FSDP2 that start or await collectives, in milliseconds a step.

    A pair of timing events on the compute stream around each hook. Between
    them the stream does not compute: it waits for what overlap did not hide,
    copies in or out, or has nothing to do because the host is late. What this
    leaves out is how much slower kernels run beside a collective. Without a
    GPU it is the host's time in the hooks.

    Make it before tide is enabled, which wraps the same hooks; `on` only for
    steps whose time is not measured.
    """

    def __init__(self, device: torch.device) -> None:
        self.on = False
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[Any, Any]] = []
        self._steps: list[float] = []
        for name in HOOKS:
            self._wrap(name, getattr(_fsdp_param_group.FSDPParamGroup, name))

    def _wrap(self, name: str, original) -> None:
        @functools.wraps(original)
        def marked(*args, **kwargs):
            if not self.on:
                return original(*args, **kwargs)
            started = self._mark()
            try:
                return original(*args, **kwargs)
            finally:
                self._marks.append((started, self._mark()))

        setattr(_fsdp_param_group.FSDPParamGroup, name, marked)

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end_step(self) -> None:
        """The GPU has to be through with the step."""
        if self.on:
            pairs, self._marks = self._marks, []
            self._steps.append(sum(self._between(*pair) for pair in pairs))

    def _between(self, started: Any, ended: Any) -> float:
        if self._cuda:
            return started.elapsed_time(ended)
        return 1e3 * (ended - started)

    def milliseconds(self) -> float:
        return median(self._steps)
