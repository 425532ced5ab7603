"""What tide keeps of a group: plans, names for errors, ranks that it serves."""

from types import SimpleNamespace

import pytest
import tide.fsdp
import torch
import torch.distributed as dist
from probes import Sum, full_grad, group_of, numbered, shard
from tide._fsdp import state as states
from tide._fsdp.reduce import ReducePlan
from tide._fsdp.reserve import Reserve
from tide._fsdp.state import GroupState
from tide.comm import Communicator
from tide.errors import PEER, make_error
from torch import nn


class Native:
    """Stands in for a _tide.Comm: counts the groups that it makes."""

    def __init__(self) -> None:
        self.made: list[tuple] = []
        self.aborted = False

    def info(self) -> dict:
        return {"one_machine": False}

    def group(self, params: tuple, name: str) -> object:
        self.made.append(params)
        return object()

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def state(monkeypatch):
    """Of rank 3, in a communicator of ranks 2 and 3."""
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    made = GroupState("blocks.0", None)
    made.comm = Communicator(Native(), (2, 3))
    return made


# --- Plans ------------------------------------------------------------------


def test_equal_shapes_share_a_native_group(state):
    one, two = (1, 4, 3, "bf16"), (1, 4, 3, "f32")
    found = [state.native_group(params) for params in ((one, one), (one, two))]
    assert found[0] is not found[1]
    assert state.native_group((one, one)) is found[0]
    assert state.comm.native.made == [(one, one), (one, two)]


def test_parts_of_a_call_share_native_groups(state):
    state.comm.reserve = Reserve(0, 1024)
    grads = ((1, 16, 8, "f32"),) * 5
    plan = ReducePlan(grads, state.native_group(grads), 2)
    parts = plan.split(state, [torch.zeros(16, 8) for _ in grads])
    assert [part.grads for part, _group in parts] == [
        slice(0, 2),
        slice(2, 4),
        slice(4, 5),
    ]
    assert parts[0][1] is parts[1][1] is not parts[2][1]
    assert state.comm.native.made == [grads, grads[:2], grads[:1]]


def test_parts_of_a_gradient_share_a_native_group(state):
    """Of 33 rows a rank's shard has 17, of 8 elements; 64 fit for each."""
    state.comm.reserve = Reserve(0, 512)
    grads = ((1, 33, 8, "f32"), (1, 1, 4, "f32"))
    plan = ReducePlan(grads, state.native_group(grads), 2)
    parts = plan.split(state, [torch.zeros(33, 8), torch.zeros(1, 4)])
    assert [part.elems for part, _group in parts] == [
        slice(0, 64),
        slice(64, 128),
        slice(128, 136),
        None,
    ]
    assert parts[0][1] is parts[1][1]
    assert state.comm.native.made == [
        grads,
        ((1, 2, 64, "f32"),),
        ((1, 2, 8, "f32"),),
        grads[1:],
    ]


def test_plans_do_not_grow_without_bound(state):
    made = []
    for key in range(3 * states.MOST_PLANS):
        for _ in range(2):
            state.plan((key,), lambda key=key: made.append(key) or key + 1)
        assert 0 < len(state.plans) <= states.MOST_PLANS
    assert made == list(range(3 * states.MOST_PLANS))


class Experts(nn.Module):
    """Equal ones, of which some are used at a time."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Sum(5, 3) for _ in range(count))

    def forward(self, x, chosen):
        return sum(self.experts[i](x) for i in chosen)


def run_experts(mode):
    """Six of the subsets of four experts, with room for four plans."""
    states.MOST_PLANS, most = 4, states.MOST_PLANS
    try:
        model = shard(Experts(4))
        tide.fsdp.enable(model, mode)
        kept = group_of(model)._tide_state
        for first in range(3):
            for second in range(first + 1, 4):
                model(numbered(5, 3), (first, second)).backward()
                for i, expert in enumerate(model.experts):
                    grad = expert.weight.grad
                    assert (grad is not None) == (i in (first, second))
                for i in (first, second):
                    grad = full_grad(model.experts[i].weight)
                    assert torch.equal(grad, numbered(5, 3))
                model.zero_grad()
                assert len(kept.plans) <= 4
        counts = kept.reduce.calls, kept.reduce.stock_calls
        tide.fsdp.disable(model)
    finally:
        states.MOST_PLANS = most
    return counts, sorted(map(len, kept.native_groups))


@pytest.mark.parametrize("mode", ["in_place", "slot_reuse"])
def test_subsets_of_experts(pools, mode):
    """One native group for the all-gather, one for any two gradients."""
    for counts, native in pools(2).run(run_experts, mode):
        assert counts == (6, 0) and native == [2, 4]


# --- Errors -----------------------------------------------------------------


def test_errors_of_tide_say_at_what(state):
    with pytest.raises(tide.Error) as caught, state.doing("reduce-scatter"):
        raise make_error(PEER, "rank 0 is gone")
    text = "rank 3: reduce-scatter of group 'blocks.0': as rank 1 of 2 (2 to 3)"
    assert text in str(caught.value) and "rank 0 is gone" in str(caught.value)
    assert caught.value.status == PEER
    assert state.comm.failed and state.comm.native.aborted


def test_other_errors_stay_as_they_are(state):
    def describe():
        raise AssertionError("nobody asked")

    with pytest.raises(ZeroDivisionError) as caught, state.comm.doing(describe):
        raise ZeroDivisionError("as planned")
    assert str(caught.value) == "as planned"
    assert state.comm.failed and state.comm.native.aborted


def test_names_are_made_for_errors_only(state):
    asked = []
    with state.comm.doing(lambda: asked.append(1) or "a call"):
        pass
    assert not asked and not state.comm.failed
    with pytest.raises(tide.Error, match="a call"):  # noqa: SIM117
        with state.comm.doing(lambda: asked.append(1) or "a call"):
            raise make_error(PEER, "")
    assert asked == [1]


# --- Ranks ------------------------------------------------------------------


def test_served_are_the_same_ranks(state, monkeypatch):
    """The group's own, the same ones in another group, other ones, none."""
    own, again, alone = (
        SimpleNamespace(ranks=ranks) for ranks in ([2, 3], [2, 3], [3])
    )
    mesh = SimpleNamespace(shard_process_group=own)
    state.group = SimpleNamespace(mesh_info=mesh)
    monkeypatch.setattr(
        dist, "get_process_group_ranks", lambda group: group.ranks
    )
    served = [state.is_served(group) for group in (own, again, alone, None)]
    assert served == [True, True, False, False]
