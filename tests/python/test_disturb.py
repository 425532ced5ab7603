"""TIDE_DEBUG_DELAY: what it does to streams and memory."""

import contextlib

import pytest
import torch
from tide._fsdp.disturb import CYCLES_PER_US, Disturber


class Stream:
    def __init__(self) -> None:
        self.waited: list[str] = []

    def wait_event(self, event: str) -> None:
        self.waited.append(event)

    def record_event(self) -> str:
        return f"after {self.waited[-1]}"


class Handle:
    """What is used of torch.cuda, noted down."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.sleeps: list[int] = []

    def Stream(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    def stream(self, stream):
        return contextlib.nullcontext()

    def _sleep(self, cycles: int) -> None:
        self.sleeps.append(cycles)


def make(monkeypatch, value: str, seed: int = 1) -> tuple[Disturber, Handle]:
    monkeypatch.setenv("TIDE_DEBUG_DELAY", value)
    handle = Handle()
    return Disturber(handle, seed), handle


@pytest.mark.parametrize("value", ["", "0", "-5", "soon"])
def test_off(monkeypatch, value):
    disturber, handle = make(monkeypatch, value)
    disturber.delay(Stream())
    assert not disturber.on and not handle.sleeps and not handle.streams


def test_delays_are_bounded_and_differ_by_rank(monkeypatch):
    sleeps = []
    for rank in (0, 1):
        disturber, handle = make(monkeypatch, "100", rank)
        for _ in range(100):
            disturber.delay(Stream())
        assert 20 < len(handle.sleeps) < 80
        assert min(handle.sleeps) >= 1
        assert max(handle.sleeps) < 100 * CYCLES_PER_US
        sleeps.append(handle.sleeps)
    assert sleeps[0] != sleeps[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_poison_is_nan_and_comes_after_the_event(monkeypatch, dtype):
    disturber, handle = make(monkeypatch, "100")
    memory = torch.zeros(16, dtype=torch.uint8)
    assert disturber.poison([memory[:8]], "last use") == "after last use"
    assert memory[:8].view(dtype).isnan().all()
    assert not memory[8:].any()
    assert [stream.waited for stream in handle.streams] == [["last use"]]
