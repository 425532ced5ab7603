"""tide.fsdp: enable, disable, report, and what goes stock."""

import warnings

import pytest
import tide.comm
import tide.fsdp
import torch
import torch.distributed as dist
from probes import (
    Sum,
    group_of,
    modules,
    needs,
    numbered,
    shard,
    world_mesh,
)
from tide._fsdp import patch, support
from tide.errors import make_error
from torch import nn
from torch.distributed.fsdp._fully_shard import (
    _fsdp_collectives as collectives,
)
from torch.distributed.fsdp._fully_shard import (
    _fsdp_param_group as param_group,
)
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
NAMES = ["foreach_all_gather", "foreach_all_gather_copy_out", "foreach_reduce"]


def error_of(function, *args) -> tuple[str, str]:
    try:
        function(*args)
    except tide.Error as error:
        return error.status, str(error)
    return "ok", ""


# --- Reversible (G3) --------------------------------------------------------


def installed() -> list:
    found = [getattr(param_group, name) for name in NAMES]
    return [*found, collectives.foreach_reduce_scatter_copy_in]


def run_alternating(mode):
    """Steps with tide on, off, on again equal stock's."""
    for state in list(patch._enabled):  # of models that earlier tests left
        patch.remove(state)
    case, before = Case(bf16=True, steps=6), installed()
    stock = train(case, None)
    model = make_model(case)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(case.steps):
        if step in (1, 4):
            tide.fsdp.enable(model, mode)
            assert all(map(lambda a, b: a is not b, installed(), before))
        if step == 3:
            tide.fsdp.disable(model)
            tide.fsdp.disable(model)  # nothing to do
            assert all(map(lambda a, b: a is b, installed(), before))
            check_stock_comms(model)
        losses.append(run_step(model, case, step, optimizer))
    reshard(model)
    params = [p.to_local().detach().clone() for p in model.parameters()]
    assert_equal(Outcome(params, losses), stock, case, True, mode)
    tide.fsdp.disable(model)


def check_stock_comms(model) -> None:
    for module in modules(model):
        group = group_of(module)
        assert type(group._all_gather_comm) is collectives.DefaultAllGather
        assert (
            type(group._reduce_scatter_comm) is collectives.DefaultReduceScatter
        )


@pytest.mark.parametrize("mode", MODES)
def test_enable_and_disable_between_steps(pools, mode):
    pools(2).run(run_alternating, mode)


def run_slots_without_tide():
    """Parameters in slots, made on the first step, under stock's calls."""
    case = Case(bf16=True, steps=4)
    stock = train(case, None)
    model = make_model(case)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    tide.fsdp.enable(model, "slot_reuse")
    losses = [run_step(model, case, 0, optimizer)]
    report = tide.fsdp.report(model)
    assert {group.landing for group in report.groups} == {"slot"}
    tide.fsdp.disable(model)
    losses += [run_step(model, case, step, optimizer) for step in range(1, 4)]
    reshard(model)
    params = [p.to_local().detach().clone() for p in model.parameters()]
    assert_equal(Outcome(params, losses), stock, case, True, "slots")


def test_slots_serve_stock_too(pools):
    pools(2).run(run_slots_without_tide)


# --- Conflicts (G3) ---------------------------------------------------------


class UsersAllGather(collectives.DefaultAllGather):
    pass


def run_conflicts():
    model = shard(Sum(5, 3))
    if dist.get_rank() == 1:
        model.set_custom_all_gather(UsersAllGather())
    first = error_of(tide.fsdp.enable, model)
    model.set_custom_all_gather(collectives.DefaultAllGather())
    tide.fsdp.enable(model)
    second = error_of(tide.fsdp.enable, model)
    refused = []
    for setter in (
        lambda: model.set_symm_mem_for_comm(),
        lambda: model.set_allocate_memory_from_process_group_for_comm(True),
    ):
        try:
            setter()
        except AssertionError as error:
            refused.append(str(error))
    return first, second, refused


@needs("set_symm_mem_for_comm")
def test_conflicting_owners(pools):
    for first, second, refused in pools(2).run(run_conflicts):
        assert first[0] == "TIDE_ERR_INVALID"
        assert (
            "rank 1: (root): its all-gather was set to UsersAllGather"
            in first[1]
        )
        assert (
            second[0] == "TIDE_ERR_INVALID" and "enabled already" in second[1]
        )
        assert len(refused) == 2
        assert all("TideAllGather" in text for text in refused)


def run_replaced_later():
    """A user's comm set after enable is honoured: that group goes stock."""
    model = shard(Sum(5, 3))
    tide.fsdp.enable(model)
    model.set_custom_all_gather(UsersAllGather())
    model(numbered(5, 3)).backward()
    group = tide.fsdp.report(model).groups[0]
    assert (group.all_gather.calls, group.reduce_scatter.calls) == (0, 1)
    tide.fsdp.disable(model)
    fsdp_group = group_of(model)
    assert type(fsdp_group._all_gather_comm) is UsersAllGather


def test_users_comm_set_later_is_kept(pools):
    pools(2).run(run_replaced_later)


# --- Ranks that differ ------------------------------------------------------


def run_different_modes():
    model = shard(Sum(5, 3))
    return error_of(tide.fsdp.enable, model, MODES[dist.get_rank()])


def test_ranks_ask_for_different_modes(pools):
    for status, text in pools(2).run(run_different_modes):
        assert status == "TIDE_ERR_MISMATCH"
        assert "rank 0 has in_place, rank 1 slot_reuse" in text
        assert "host" in text


def run_absent_rank():
    model = shard(Sum(5, 3))
    if dist.get_rank() == 1:
        return error_of(lambda: None)
    return error_of(tide.fsdp.enable, model)


def test_rank_that_does_not_enable(pools):
    pool = pools(2, TIDE_TIMEOUT_MS="1500")
    (status, text), _ = pool.run(run_absent_rank, timeout=20)
    pool.kill()  # gloo may be out of step now
    assert status == "TIDE_ERR_PEER"
    assert "did not meet within 1.5 s" in text and "rank 0 of 2" in text


def run_local_problem():
    """One rank's reason against a group holds on all of them."""
    whole, model = support.gather_problem, shard(Sum(5, 3))
    if dist.get_rank() == 1:
        support.gather_problem = lambda group: "a fault of this machine"
    try:
        tide.fsdp.enable(model)
    finally:
        support.gather_problem = whole
    model(numbered(5, 3)).backward()
    assert torch.equal(model.weight.grad.full_tensor(), numbered(5, 3))
    return tide.fsdp.report(model).groups[0].all_gather.reason


def test_one_ranks_reason_is_everyones(pools):
    reasons = pools(2).run(run_local_problem)
    assert reasons == ["rank 1: a fault of this machine"] * 2


# --- This PyTorch (G2) ------------------------------------------------------


def run_other_torch(what):
    case, version, whole = Case(), torch.__version__, param_group.foreach_reduce

    def wrapped(*args, **kwargs):
        return whole(*args, **kwargs)

    if what == "version":
        torch.__version__ = "2.10.1"
    else:
        param_group.foreach_reduce = wrapped
    try:
        with pytest.warns(UserWarning, match="everything goes stock"):
            ours = train(case, "in_place")
    finally:
        torch.__version__, param_group.foreach_reduce = version, whole
    assert_equal(ours, train(case, None), case, True, what)
    reasons = {group.all_gather.reason for group in ours.report.groups}
    assert {group.all_gather.path for group in ours.report.groups} == {"stock"}
    return reasons.pop()


def test_torch_of_another_version(pools):
    for reason in pools(2).run(run_other_torch, "version"):
        assert reason == "torch 2.10.1 is outside 2.11 to 2.15"


def test_somebody_else_has_patched_fsdp(pools):
    for reason in pools(2).run(run_other_torch, "patched"):
        assert reason.startswith("foreach_reduce was replaced by")


def run_no_backend():
    """Ranks that no backend can serve: an ordinary run, and the reason."""

    def refuse(*unused):
        raise make_error("TIDE_ERR_UNSUPPORTED", "these ranks are far apart")

    tide.comm.close_all()
    whole, tide.comm._make = tide.comm._make, refuse
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ours = train(Case(), "auto")
    finally:
        tide.comm._make = whole
    assert_equal(ours, train(Case(), None), Case(), True, "no backend")
    reasons = {group.reduce_scatter.reason for group in ours.report.groups}
    own = [str(w.message) for w in caught if "tide" in str(w.message)]
    return reasons, own


def test_ranks_without_a_backend(pools):
    (reasons, said), (others, other) = pools(2).run(run_no_backend)
    assert reasons == others == {"these ranks are far apart"}
    what = "all 4 groups that 2 ranks share go stock"
    assert said == [f"tide: {what}: these ranks are far apart"]
    assert other == []  # one rank says so for all


# --- Bad calls --------------------------------------------------------------


def run_bad_calls():
    with pytest.raises(ValueError, match="mode is one of auto, in_place"):
        tide.fsdp.enable(nn.Linear(1, 1), "fast")
    with pytest.raises(ValueError, match="fully_shard"):
        tide.fsdp.enable(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="enable has not been called"):
        tide.fsdp.report(shard(Sum(5, 3)))
    model = shard(Sum(5, 3))
    tide.fsdp.enable(model)
    model.unshard(async_op=True)
    status, text = error_of(tide.fsdp.disable, model)
    assert status == "TIDE_ERR_INVALID" and "unshard under way" in text


def test_bad_calls(pools):
    pools(2).run(run_bad_calls)


def run_parked():
    """Gradients in place are let go when backward ends."""
    model = shard(nn.Sequential(*[shard(Sum(5, 3)) for _ in range(4)]))
    model.forward = lambda x: sum(layer(x) for layer in model)
    tide.fsdp.enable(model, "in_place")
    comm, most = tide.comm.get(dist.group.WORLD), []
    for layer in model:
        layer.weight.register_post_accumulate_grad_hook(
            lambda p: most.append(len(comm._parked))
        )
    model(numbered(5, 3)).backward()
    assert len(most) == 4 and max(most) == 2
    assert not comm._parked


def test_gradients_are_parked_for_two_groups_at_most(pools):
    pools(2).run(run_parked)


# --- Unshards that nobody waits for -----------------------------------------


def run_dropped(mode):
    """An unshard that no forward uses is completed and given back."""
    model = shard(nn.Sequential(shard(Sum(5, 3, value=2.0)), Sum(4, 2)))
    model.forward = lambda x: model[1](x)
    tide.fsdp.enable(model, mode)
    for _ in range(3):
        model[0].unshard(async_op=True)  # dropped when backward is finalised
        model(numbered(4, 2)).backward()
        assert tide.fsdp.report(model).slot_bytes == 0
    handle = model[0].unshard(async_op=True)
    handle.wait()
    assert torch.equal(model[0].weight, torch.full((5, 3), 2.0))
    calls = {g.name: g.all_gather.calls for g in tide.fsdp.report(model).groups}
    assert calls == {"(root)": 3, "0": 4}
    storage = group_of(model[0]).fsdp_params[0]
    model[0].reshard()
    if mode == "in_place":
        assert storage.all_gather_outputs[0].untyped_storage().size() == 0


@pytest.mark.parametrize("mode", MODES)
def test_dropped_unshard(pools, mode):
    pools(2).run(run_dropped, mode)


class Broken(nn.Module):
    """Raises in its forward while `broken`."""

    broken = False

    def forward(self, x):
        if Broken.broken:
            raise ZeroDivisionError("as planned")
        return x


def run_reset(mode):
    """A forward fails half-way on every rank; the next iteration is right."""
    model = nn.Sequential(nn.Linear(4, 6), Broken(), nn.Linear(6, 3))
    for p in model.parameters():
        nn.init.constant_(p, 0.5)
    for layer in (model[0], model[2]):
        shard(layer)
    shard(model)
    model[0].set_modules_to_forward_prefetch([model[2]])
    tide.fsdp.enable(model, mode)
    Broken.broken = True
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(1, 4))
    Broken.broken = False
    model.reset_iter_state()
    out = model(torch.ones(1, 4))
    out.sum().backward()
    assert torch.equal(out, torch.full((1, 3), 8.0))
    assert torch.equal(
        model[0].weight.grad.full_tensor(), torch.full((6, 4), 1.5)
    )


@needs("reset_iter_state")
@pytest.mark.parametrize("mode", MODES)
def test_iteration_that_failed(pools, mode):
    pools(2).run(run_reset, mode)


def run_spoiled_results():
    """What FSDP2 gets is its own: tide does not look at it again."""
    model = shard(Sum(6, 3, value=2.0))
    tide.fsdp.enable(model)
    group = group_of(model)
    for _ in range(3):
        handle = model.unshard(async_op=True)
        sizes = group._all_gather_result.all_gather_input_split_sizes
        assert sizes == [9]
        sizes.clear()
        handle.wait()
        assert torch.equal(model.weight, torch.full((6, 3), 2.0))
        model.reshard()
    calls = tide.fsdp.report(model).groups[0].all_gather
    tide.fsdp.disable(model)
    return calls.calls, calls.stock_calls


def test_results_are_fsdp2s_own(pools):
    assert pools(2).run(run_spoiled_results) == [(3, 0)] * 2


def run_inference(mode):
    """The first forward ever is in inference mode; training still works."""
    model = shard(Sum(5, 3, value=1.0))
    tide.fsdp.enable(model, mode)
    with torch.inference_mode():
        assert float(model(numbered(5, 3))) == float(numbered(5, 3).sum())
    model.reshard()
    model(numbered(5, 3)).backward()
    assert torch.equal(model.weight.grad.full_tensor(), numbered(5, 3))


def test_inference_first(pools):
    pools(2).run(run_inference, "slot_reuse")


def run_many_models():
    """Communicators are shared by models of the same ranks."""
    for _ in range(6):
        model = shard(Sum(5, 3), world_mesh())
        tide.fsdp.enable(model)
        model(numbered(5, 3)).backward()
    mine, other = tide.fsdp.report(model), shard(Sum(2, 2), world_mesh())
    tide.fsdp.enable(other)
    assert mine.comms == tide.fsdp.report(other).comms


def test_models_share_a_communicator(pools):
    pools(2).run(run_many_models)
