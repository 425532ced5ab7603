"""The measurements of bench/ that need no GPU, or say that they do."""

import cProfile
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tide._fsdp.internals import param_group

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"


def test_symm_mem_needs_a_gpu():
    done = subprocess.run(
        [sys.executable, str(BENCH / "fsdp_step.py"), "symm_mem"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and not done.stdout
    text = "symm_mem needs a GPU: its memory is NCCL's\n"
    assert done.stderr.endswith(text)


class Clock:
    """Seconds, which pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def let_pass(self, seconds: float) -> float:
        self.now += seconds
        return seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def times(monkeypatch, clock):
    """bench/fsdp_times.py. FSDP2's functions only let the clock pass."""
    monkeypatch.syspath_prepend(str(BENCH))
    module = importlib.import_module("fsdp_times")
    monkeypatch.setattr(module, "time", clock)
    for name in module.TIMED:
        monkeypatch.setattr(param_group, name, clock.let_pass)
    group = param_group.FSDPParamGroup
    for name in module.HOOKS:
        monkeypatch.setattr(group, name, lambda self, s: clock.let_pass(s))
    return module


def test_host_time_is_of_a_call(times, clock):
    host = times.HostTime()
    first, second, *_rest = times.TIMED
    assert getattr(param_group, first)(seconds=2e-6) == 2e-6
    getattr(param_group, first)(4e-6)
    clock.let_pass(1.0)  # between calls
    assert times.per_call(host.seconds)[first] == 3.0
    assert times.per_call(host.seconds)[second] == 0.0
    assert times.per_step(host.seconds, 2) == pytest.approx(3e-3)
    host.reset()
    getattr(param_group, second)(5e-6)
    assert times.per_call(host.seconds)[first] == 0.0
    assert times.per_call(host.seconds)[second] == 5.0


def test_whose_host_comes_last_does_not_wait(times, monkeypatch):
    """Of three calls each rank is quick in one, and both in the last."""
    host = times.HostTime()
    first, second, *_rest = times.TIMED
    for seconds in (2e-6, 9e-6, 1e-6):
        getattr(param_group, first)(seconds)
    theirs = {**host.seconds, first: [8e-6, 3e-6, 1e-6]}

    def gather(everyone, mine):
        everyone[:] = [mine, theirs]

    monkeypatch.setattr(times.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(times.dist, "all_gather_object", gather)
    own = host.without_waits()
    assert times.per_call(own)[first] == 2.0
    assert own[second] == []


def test_profile_sees_what_a_collective_calls(times, clock):
    host = times.HostTime()
    host.profile = cProfile.Profile()
    assert getattr(param_group, times.TIMED[0])(seconds=3e-6) == 3e-6
    assert times.per_call(host.seconds)[times.TIMED[0]] == 3.0
    profile, host.profile = host.profile, None
    getattr(param_group, times.TIMED[0])(1e-6)  # not seen
    lines = times.costliest(profile, 10)
    assert any(line.split()[0] == "1" and "let_pass" in line for line in lines)


def test_exposed_time_is_of_a_step(times, clock):
    exposed = times.Exposed(torch.device("cpu"))
    hooks = [getattr(param_group.FSDPParamGroup, name) for name in times.HOOKS]
    for on, seconds in ((True, 1), (True, 9), (False, 100), (True, 2)):
        exposed.on = on
        for hook in hooks:
            assert hook(SimpleNamespace(), seconds) == seconds
            clock.let_pass(50)  # the model computes
        exposed.end_step()
    assert exposed.milliseconds() == pytest.approx(2e3 * len(hooks))
