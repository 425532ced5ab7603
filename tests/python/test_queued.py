"""The order that tide gives a GPU's streams, on a stand-in without a GPU."""

import contextlib
import functools
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import standin
import tide.comm
import tide.fsdp
import torch
import torch.distributed as dist
from tide._fsdp import reserve as reserves
from tide._fsdp.device import _OnStream
from tide._fsdp.gates import Gates, Ranges
from tide._fsdp.internals import find_groups
from tide._fsdp.landing import Landing, storage_of
from tide._fsdp.reduce import ReduceCall, ReducePlan
from tide._fsdp.router import ROUTER
from training import (
    Case,
    Outcome,
    assert_equal,
    make_model,
    reshard,
    run_step,
    train,
)

MODES = ["in_place", "slot_reuse"]
CASES = {
    "plain": Case(bf16=True),
    "fp32": Case(),
    "frozen_and_unused": Case(bf16=True, frozen=True, unused=True),
    "accumulate": Case(bf16=True, accumulate="sync"),
    "accumulate_no_sync": Case(bf16=True, accumulate="no_sync"),
    "no_reshard": Case(bf16=True, reshard=False),
    "prefetch": Case(bf16=True, prefetch=True),
    "checkpoint": Case(bf16=True, checkpoint=True),
    "evaluate": Case(bf16=True, evaluate=True),
    "two_forwards": Case(bf16=True, forwards=2),
    "shard_dim_1": Case(bf16=True, shard_dim=1, width=8, hidden=12),
}


# Weights large enough for addresses that come again.
LARGE = Case(bf16=True, width=256, hidden=384)


def train_queued(
    case: Case, mode: str, reserve: int = 8 << 20
) -> tuple[Outcome, standin.StandIn]:
    model = make_model(case)
    tide.fsdp.enable(model, mode)
    device = standin.install(model, reserve)
    model._get_fsdp_state()._lazy_init()
    standin.replace_streams(model, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(case.steps):
        before = device.pool.entered
        losses.append(run_step(model, case, step, optimizer))
        assert device.pool.entered > before and not device.pool.active
    report = tide.fsdp.report(model)
    reshard(model)
    params = [p.to_local().detach().clone() for p in model.parameters()]
    return Outcome(params, losses, report, model), device


def compare_queued(case: Case, mode: str, reserve: int = 8 << 20):
    ours, device = train_queued(case, mode, reserve)
    assert_equal(ours, train(case, None), case, True, mode)
    tide.fsdp.disable(ours.model)
    assert not device.races, device.races[:5]
    return ours.report.to_dict(), device.waits


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_no_memory_is_used_out_of_order(pools, name, mode):
    for report, _waits in pools(2).run(compare_queued, CASES[name], mode):
        for group in report["groups"]:
            assert group["all_gather"]["calls"] > 0
            assert group["all_gather"]["stock_calls"] == 0
            reduce = group["reduce_scatter"]
            assert reduce["calls"] > 0 and reduce["stock_calls"] == 0
            landing = "slot" if mode == "slot_reuse" else "storage"
            assert group["landing"] == landing


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_used_again(pools, mode):
    """Without which the test above would have nothing to find."""
    for _report, waits in pools(2).run(compare_queued, LARGE, mode):
        assert waits > 0


def count_plans(mode):
    ours, _device = train_queued(CASES["accumulate"], mode)
    states = [group._tide_state for _name, group in find_groups(ours.model)]
    counts = [len(state.plans) for state in states]
    tide.fsdp.disable(ours.model)
    return counts


@pytest.mark.parametrize("mode", MODES)
def test_plans_are_made_once(pools, mode):
    """One of each collective, whatever the number of steps."""
    for counts in pools(2).run(count_plans, mode):
        assert counts and set(counts) == {2}


def find_races_without_gates(mode):
    whole = Gates.take
    Gates.take = lambda self, spans: []
    try:
        ours, device = train_queued(LARGE, mode)
    finally:
        Gates.take = whole
    tide.fsdp.disable(ours.model)
    return len(device.races)


@pytest.mark.parametrize("mode", MODES)
def test_without_gates_there_are_races(pools, mode):
    assert all(pools(2).run(find_races_without_gates, mode))


@contextlib.contextmanager
def calls_counted():
    """The native calls of each reduce-scatter."""
    whole, counts = ReduceCall._start, []

    def start(call, group, addresses, out, output, *rest):
        if out == output.data_ptr():
            counts.append(0)
        counts[-1] += 1
        return whole(call, group, addresses, out, output, *rest)

    tide.comm.close_all()
    with mock.patch.object(ReduceCall, "_start", start):
        yield counts
    tide.comm.close_all()


def staged_bytes(report) -> int:
    return sum(g["reduce_scatter"]["staged_bytes"] for g in report["groups"])


def compare_in_parts(case: Case, mode: str, reserve: int):
    with calls_counted() as counts:
        report, _waits = compare_queued(case, mode, reserve)
    return max(counts), staged_bytes(report)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["plain", "fp32", "accumulate_no_sync"])
def test_gradients_too_many_for_the_reserve(pools, name, mode):
    """It takes one of the larger gradients at a time."""
    found = pools(2).run(compare_in_parts, CASES[name], mode, 1024)
    assert all(parts > 1 and staged > 0 for parts, staged in found)
    assert found[0] == found[1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name", ["plain", "fp32", "accumulate_no_sync", "shard_dim_1"]
)
def test_gradients_too_wide_for_the_reserve(pools, name, mode):
    found = pools(2).run(compare_in_parts, CASES[name], mode, 96)
    params = 6
    assert all(parts > params and staged > 0 for parts, staged in found)
    assert found[0] == found[1]


def compare_reserves(case: Case, mode: str):
    """However little room there is, it is the same."""
    outcomes = []
    for reserve in (8 << 20, 128):
        tide.comm.close_all()
        ours, device = train_queued(case, mode, reserve)
        assert not device.races, device.races[:5]
        tide.fsdp.disable(ours.model)
        outcomes.append(ours)
    tide.comm.close_all()
    assert_equal(*outcomes, case, True, mode)
    assert_equal(ours, train(case, None), case, False, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("name", ["plain", "accumulate_no_sync"])
def test_parts_of_uneven_shards(pools, ranks, name, mode):
    """Rows that do not divide, vectors, and ranks without any."""
    pools(ranks).run(compare_reserves, CASES[name], mode)


@pytest.mark.parametrize("mode", MODES)
def test_parts_with_rails(pools, mode):
    pool = pools(4, TIDE_LOCAL_SIZE="2")
    pool.run(compare_reserves, CASES["accumulate_no_sync"], mode)


def compare_inside(case: Case, mode: str, outside: list[int]):
    """All gradients lie where peers can read them, but for those of these
    ranks."""
    mine = dist.get_rank() in outside
    with (
        mock.patch.object(reserves, "is_outside", lambda *_: mine),
        calls_counted() as counts,
    ):
        report, _waits = compare_queued(case, mode, 256)
    return set(counts), staged_bytes(report)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_in_the_arena_take_one_call(pools, mode):
    """However many, and however little room there is for others."""
    for case in (CASES["plain"], LARGE):
        found = pools(2).run(compare_inside, case, mode, [])
        assert found == [({1}, 0)] * 2


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_one_rank_miss_the_arena(pools, mode):
    """All ranks cut the call up, where one has to."""
    (mine, _), (theirs, staged) = pools(2).run(
        compare_inside, CASES["plain"], mode, [1]
    )
    assert mine == theirs and max(mine) > 1 and staged > 0


def fail_before_a_vote(mode: str):
    """A rank that fails elsewhere leaves nobody waiting for its answer."""
    tide.comm.close_all()
    case = CASES["plain"]
    model = make_model(case)
    tide.fsdp.enable(model, mode)
    device = standin.install(model, 256)
    model._get_fsdp_state()._lazy_init()
    standin.replace_streams(model, device)
    optimizer = torch.optim.SGD(model.parameters())
    (_name, group), *_ = find_groups(model)
    started = time.monotonic()
    if dist.get_rank() == 0:
        with pytest.raises(tide.Error):
            run_step(model, case, 0, optimizer)
    else:

        def fail(*_):
            raise Unplanned

        with (
            mock.patch.object(ReducePlan, "split", fail),
            pytest.raises(Unplanned),
        ):
            run_step(model, case, 0, optimizer)
    assert time.monotonic() - started < 10
    dist.barrier()  # or closing would tell the other
    ROUTER.reset()
    tide.comm.close_all()


@pytest.mark.parametrize("mode", MODES)
def test_nobody_waits_for_a_rank_that_has_failed(pools, mode):
    pools(2).run(fail_before_a_vote, mode)


class Streams:
    """torch.cuda, as far as it sets streams; only device 3 is asked for."""

    def __init__(self) -> None:
        self.set = "before"

    def current_stream(self, index: int) -> str:
        assert index == 3
        return self.set

    def set_stream(self, stream: str) -> None:
        self.set = stream


def test_the_current_stream_is_put_back():
    handle, seen = Streams(), []
    on = functools.partial(_OnStream, handle, 3)
    with contextlib.suppress(Unplanned), on("outer"):
        with on("inner"):
            seen.append(handle.set)
        seen.append(handle.set)
        raise Unplanned
    assert [*seen, handle.set] == ["inner", "outer", "before"]


def test_copies_of_gradients_follow_them():
    """Shape and dtype may change from call to call; memory is given back."""
    device, param = standin.StandIn(), object()
    group = SimpleNamespace(_to_sharded=None, _to_sharded_post_forward=None)
    landing = Landing(device, group)
    landing.move(SimpleNamespace(pool=device.pool), True)
    for shape, dtype in (
        ((3, 4), torch.bfloat16),
        ((3, 4), torch.bfloat16),
        ((3, 4), torch.float32),
        ((4, 3), torch.float32),
        ((0, 3), torch.float32),
    ):
        grad = torch.rand(shape).to(dtype)
        (copy,) = staged = landing.stage([param], [grad])
        assert torch.equal(copy, grad) and copy.dtype == dtype
        assert copy.data_ptr() != grad.data_ptr() or not grad.numel()
        landing.unstage(staged, device.reduces.record_event())
        assert not staged and copy.untyped_storage().nbytes() == 0


def test_copies_in_use_are_left_alone():
    """Their memory may be of an arena that is no longer the group's."""
    device, other, param = standin.StandIn(), standin.Pool(), object()
    group = SimpleNamespace(_to_sharded=None, _to_sharded_post_forward=None)
    landing = Landing(device, group)
    landing.move(SimpleNamespace(pool=device.pool), True)
    (first,) = landing.stage([param], [torch.ones(3, 4)])
    landing.move(SimpleNamespace(pool=other), True)
    (second,) = landing.stage([param], [torch.zeros(3, 4)])
    assert other.entered == 1 and first.data_ptr() != second.data_ptr()
    assert torch.equal(first, torch.ones(3, 4))


class Unplanned(Exception):
    pass


# Where a backward fails, and in which calls: with gradients staged, or while
# they are.
FAILURES = {
    "staging": (
        standin.StandIn,
        "enter",
        lambda device, spans, stream: stream is standin.Handle.compute,
    ),
    "output": (ReduceCall, "allocate", lambda call, *_: call.staged),
    "collective": (ReduceCall, "_start", lambda *_: True),
    "second_part": (
        ReduceCall,
        "_start",
        lambda call, group, grads, out, output, *_: out != output.data_ptr(),
    ),
}


def fail_at(place):
    owner, name, here = FAILURES[place]
    whole = getattr(owner, name)

    def failing(*args):
        if here(*args):
            dist.barrier()  # each rank fails by itself
            raise Unplanned
        return whole(*args)

    return mock.patch.object(owner, name, failing)


def fail_in_backward(place):
    """No copy keeps its memory, and the next one is where it should be."""
    tide.comm.close_all()
    case = CASES["plain"]
    model = make_model(case)
    tide.fsdp.enable(model, "slot_reuse")
    device = standin.install(model, 1024)
    model._get_fsdp_state()._lazy_init()
    standin.replace_streams(model, device)
    optimizer = torch.optim.SGD(model.parameters())
    with fail_at(place), pytest.raises(Unplanned):
        run_step(model, case, 0, optimizer)
    groups = [group for _name, group in find_groups(model)]
    (group,) = [g for g in groups if g._tide_home._copies]
    home, params = group._tide_home, group.fsdp_params
    copies = [home._copies[id(param)] for param in params]
    left = [copy.untyped_storage() for copy in copies]
    assert not any(s.nbytes() for s in (*left, *map(storage_of, params)))
    pool = standin.Pool()
    home.move(SimpleNamespace(pool=pool), True)
    grads = [torch.rand(copy.shape).to(copy.dtype) for copy in copies]
    staged = home.stage(params, grads)
    assert pool.entered == 1 and not device.races
    for copy, grad in zip(staged, grads, strict=True):
        assert torch.equal(copy, grad)
    home.unstage(staged)
    tide.comm.close_all()


@pytest.mark.parametrize("place", FAILURES)
def test_failures_leave_no_copies(pools, place):
    pools(2).run(fail_in_backward, place)


# --- Gates ------------------------------------------------------------------


def test_ranges_find_the_last_that_is_touched():
    ranges = Ranges([(30, 40), (10, 20), (25, 25), (20, 25)])
    assert ranges.touched_by((0, 10)) is None
    assert ranges.touched_by((25, 30)) is None
    assert ranges.touched_by((0, 11)) == (10, 20)
    assert ranges.touched_by((12, 13)) == (10, 20)
    assert ranges.touched_by((19, 21)) == (20, 25)
    assert ranges.touched_by((0, 100)) == (30, 40)
    assert ranges.touched_by((40, 100)) is None
    assert ranges.touched_by((0, 0)) is None
    assert Ranges([]).touched_by((0, 100)) is None


class Happened:
    def __init__(self, done: bool = False) -> None:
        self.done = done

    def query(self) -> bool:
        return self.done


def test_gates_find_what_overlaps():
    gates, a, b = Gates(), Happened(), Happened()
    gates.close([(100, 200), (300, 400)], a)
    gates.close([(150, 160)], b)
    assert gates.newest() == [(150, 160)]
    assert gates.take([(0, 100), (200, 300), (0, 0)]) == []
    assert gates.take([(199, 201)]) == [a]  # a part: the rest is closed still
    assert gates.take([(120, 155)]) == [a, b]
    assert gates.take([(300, 400)]) == [a]
    assert gates.take([(300, 400)]) == []  # its user closes it again
    assert gates.take([(0, 1000)]) == [a, b]
    assert len(gates) == 0 and gates.newest() == []


def test_gates_forget_what_has_opened():
    gates, first, second = Gates(), Happened(), Happened()
    gates.close([(0, 10)], first)
    gates.close([(5, 5)], Happened())  # nothing to close
    gates.close([(10, 20)], second)
    assert len(gates) == 2
    second.done = True
    assert gates.newest() == []
    gates.close([(20, 30)], Happened())
    assert len(gates) == 3  # the oldest is closed still, and the order stays
    first.done = True
    gates.close([(30, 40)], Happened())
    assert len(gates) == 2
