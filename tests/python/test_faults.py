"""A rank that dies, fails or strays: every other one is told, in time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tide.comm
import tide.fsdp
import torch
import torch.distributed as dist
from probes import Sum, group_of, needs, numbered, shard
from torch import nn

MODES = ["in_place", "slot_reuse"]
DEADLINE = 15.0  # seconds; TIDE_TIMEOUT_MS of the pools below


@pytest.fixture
def frail(pools):
    """A pool with a short deadline, for tests that break it."""

    def make(ranks: int, local: int = 0):
        pool = pools(
            ranks,
            TIDE_TIMEOUT_MS=str(int(DEADLINE * 1000)),
            TIDE_LOCAL_SIZE=str(local),
        )
        made.append(pool)
        return pool

    made: list = []
    yield make
    for pool in made:
        pool.kill()


def two_blocks(mode):
    model = shard(nn.Sequential(shard(Sum(64, 32)), shard(Sum(5, 3))))
    model.forward = lambda: (
        model[0](numbered(64, 32)) + model[1](numbered(5, 3))
    )
    tide.fsdp.enable(model, mode)
    return model


def train_until(model, fate) -> tuple[str, str, float]:
    """Steps until an error; fate(step) may end this rank. What was raised,
    and how long the failing step took."""
    for step in range(5):
        started = time.monotonic()
        try:
            fate(step)
            model().backward()
        except tide.Error as error:
            return error.status, str(error), time.monotonic() - started
    return "ok", "", 0.0


def run_killed(mode, victim):
    def fate(step):
        if step == 2 and dist.get_rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    return train_until(two_blocks(mode), fate)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks, local", [(2, 0), (4, 2)])
def test_rank_killed_in_training(frail, ranks, local, mode):
    results = frail(ranks, local).run(run_killed, mode, 1, allow_dead=(1,))
    for rank, result in enumerate(results):
        if rank == 1:
            assert result is None
            continue
        status, text, seconds = result
        assert status in ("TIDE_ERR_PEER", "TIDE_ERR_ABORTED"), text
        assert "rank 1" in text and f"rank {rank}" in text
        assert "of group '" in text
        assert seconds < DEADLINE  # its death was seen, not waited for


FAILING = """
import sys
import torch
import torch.distributed as dist
from probes import numbered
from test_faults import two_blocks

rank, store, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group(
    "gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2
)
model = two_blocks(mode)


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if rank == 1:
            model[0].unshard(async_op=True)  # under way when the script ends
            raise ZeroDivisionError("as planned")
        return grad


model().backward()
loss = model[1](numbered(5, 3)) + Failing.apply(model[0](numbered(64, 32)))
loss.backward()
"""


@pytest.mark.parametrize("mode", MODES)
def test_exception_on_one_rank(tmp_path, mode):
    """A script that raises in backward ends, and so do the others', within
    seconds though the deadline is minutes away."""
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TIDE_TIMEOUT_MS": "300000",
    }
    command = [sys.executable, "-W", "ignore", "-c", FAILING]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), mode],
            cwd=Path(__file__).parent,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [rank.communicate(timeout=60)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert "ZeroDivisionError: as planned" in texts[1]
    assert "tide.Error: rank 0: " in texts[0] and "rank 1" in texts[0]


def run_other_order(mode):
    """Rank 1 unshards the groups in another order."""
    model = two_blocks(mode)
    order = (1, 0) if dist.get_rank() else (0, 1)
    try:
        for i in order:
            model[i].unshard()
    except tide.Error as error:
        return error.status, str(error)
    return "ok", ""


def test_groups_in_another_order(frail):
    for status, text in frail(2).run(run_other_order, "in_place"):
        assert status == "TIDE_ERR_MISMATCH", text
        assert "all-gather of group" in text


def run_shape(mode):
    """A parameter of rank 1 has other rows: a model that differs."""
    model = shard(Sum(5 + dist.get_rank(), 3))
    tide.fsdp.enable(model, mode)
    try:
        model.unshard()
    except tide.Error as error:
        return error.status, str(error)
    return "ok", ""


def test_group_of_another_shape(frail):
    for status, text in frail(2).run(run_shape, "in_place"):
        assert status == "TIDE_ERR_MISMATCH", text


def run_after_abort(mode):
    """Every call after an abort fails at once; a new start is possible, for
    the same model and for another."""
    model = two_blocks(mode)
    model().backward()
    dist.barrier()
    kept = tide.comm.get(dist.group.WORLD)
    if dist.get_rank() == 0:
        kept.fail()
    dist.barrier()
    started = time.monotonic()
    with pytest.raises(tide.Error) as caught:
        model()
    assert time.monotonic() - started < 2
    model.reset_iter_state()
    model.zero_grad()
    tide.fsdp.disable(model)
    tide.fsdp.enable(model, mode)
    for again in (model, two_blocks(mode)):
        for _ in range(3):
            again.zero_grad()
            again().backward()
        grad = again[1].weight.grad.full_tensor()
        assert torch.equal(grad, numbered(5, 3))
        calls = tide.fsdp.report(again).groups[0].all_gather
        assert (calls.calls, calls.stock_calls) == (6, 0)
    return caught.value.status


@needs("reset_iter_state")
@pytest.mark.parametrize("mode", MODES)
def test_calls_after_abort(frail, mode):
    assert frail(2).run(run_after_abort, mode) == ["TIDE_ERR_ABORTED"] * 2


def run_one_shard_missing():
    """Rank 1's shard is too short: both ranks raise, in time."""
    model = shard(Sum(6, 3))
    tide.fsdp.enable(model)
    if dist.get_rank() == 1:
        group = group_of(model)
        short = group.fsdp_params[0]
        short._sharded_param_data = short._sharded_param_data[:-1]
        group._reset_sharded_params = True  # keep lazy_init from mending it
    try:
        model.unshard()
    except tide.Error as error:
        return error.status, str(error)
    return "ok", ""


def test_shard_of_another_size(frail):
    survivor, short = frail(2).run(run_one_shard_missing)
    assert short[0] == "TIDE_ERR_INVALID"
    assert "weight has a shard of 8 elements where 9 are due" in short[1]
    assert survivor[0] in ("TIDE_ERR_ABORTED", "TIDE_ERR_PEER"), survivor


def run_exit():
    model = two_blocks("slot_reuse")
    model().backward()
    model()
    run_exit.kept = model  # alive when the interpreter ends


def test_ranks_end_by_themselves(frail):
    """With slots, groups and communicators alive at interpreter exit."""
    pool = frail(2)
    pool.run(run_exit)
    assert pool.close() == [0, 0]
