"""Meshes and policies beyond plain sharding over all ranks."""

import pytest
import tide.fsdp
import torch
import torch.distributed as dist
from probes import Sum, full_grad, modules, numbered, shard, world_mesh
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_common
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

MODES = ["in_place", "slot_reuse"]


def steps(model, count: int = 3) -> tuple[list[float], list[torch.Tensor]]:
    """A few SGD steps; the losses, and the parameters as they are then."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(count):
        generator = torch.Generator().manual_seed(
            10 * step + dist.get_rank() // 2
        )
        loss = model(torch.randn(3, 8, generator=generator)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    for module in modules(model):
        module.reshard()
    return losses, [p.to_local().detach().clone() for p in model.parameters()]


def assert_same(ours, stock, **tolerance) -> None:
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    for a, b in zip(ours[1], stock[1], strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    assert ours[0] == pytest.approx(stock[0], rel=1e-6)


# --- Tensor parallel: parameters are DTensors already -----------------------


def make_parallel():
    torch.manual_seed(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    return shard(model, mesh["dp"])


def compare_parallel(mode):
    stock = steps(make_parallel())
    model = make_parallel()
    tide.fsdp.enable(model, mode)
    assert_same(steps(model), stock)
    group = tide.fsdp.report(model).groups[0]
    assert group.all_gather.calls == group.reduce_scatter.calls == 3
    assert group.all_gather.stock_calls == group.reduce_scatter.stock_calls == 0


@pytest.mark.parametrize("mode", MODES)
def test_tensor_parallel(pools, mode):
    pools(4).run(compare_parallel, mode)


# --- Two parameter groups in one module (C3) --------------------------------


def make_two_groups():
    torch.manual_seed(1)
    mesh = world_mesh(2, 2)
    model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
    expert = _fsdp_common.FSDPMeshInfo(mesh["shard"], shard_mesh_dim=0)
    experts = set(model[2].parameters())

    def place(p):
        if p not in experts:
            return None
        return _fsdp_common.ShardPlacementResult(None, expert)

    fully_shard(model, mesh=world_mesh(), shard_placement_fn=place)
    return model


def compare_two_groups(mode):
    stock = steps(make_two_groups())
    model = make_two_groups()
    tide.fsdp.enable(model, mode)
    assert_same(steps(model), stock, rtol=1e-5, atol=1e-6)
    report = tide.fsdp.report(model)
    assert [group.name for group in report.groups] == ["(root)#0", "(root)#1"]
    for group in report.groups:
        assert group.all_gather.calls > 0 and group.reduce_scatter.calls == 3
    assert report.slot_bytes == 0


@pytest.mark.skipif(
    not hasattr(_fsdp_common, "ShardPlacementResult"),
    reason="this torch has one group a module",
)
@pytest.mark.parametrize("mode", MODES)
def test_two_groups_in_one_module(pools, mode):
    pools(4).run(compare_two_groups, mode)


# --- What goes stock --------------------------------------------------------


def run_replicate():
    model = nn.Sequential(Sum(5, 3), Sum(4, 2))
    replicate(model[0], mesh=world_mesh())
    fully_shard(model[1], mesh=world_mesh())
    tide.fsdp.enable(model)
    (model[0](numbered(5, 3)) + model[1](numbered(4, 2))).backward()
    model[1].reshard()
    assert torch.equal(full_grad(model[1].weight), numbered(4, 2))
    return {g.name: g.all_gather.reason for g in tide.fsdp.report(model).groups}


def test_replicated_modules(pools):
    for reasons in pools(2).run(run_replicate):
        assert reasons == {"0": "not sharded (replicate only)", "1": None}


def run_offload(mode):
    policy = CPUOffloadPolicy(pin_memory=False)
    model = shard(Sum(5, 3, value=2.0), offload_policy=policy)
    tide.fsdp.enable(model, mode)
    for _ in range(2):
        assert float(model(numbered(5, 3))) == 2 * float(numbered(5, 3).sum())
    model(numbered(5, 3)).backward()
    assert torch.equal(full_grad(model.weight), numbered(5, 3))
    group = tide.fsdp.report(model).groups[0]
    assert group.all_gather.path == "stock"
    assert group.all_gather.reason == "CPU offload"
    assert group.reduce_scatter.calls == 1


@pytest.mark.parametrize("mode", MODES)
def test_cpu_offload(pools, mode):
    pools(2).run(run_offload, mode)


# --- Knobs of FSDP2 ---------------------------------------------------------


def make_layers():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
    for layer in (model[0], model[2]):
        shard(layer)
    return shard(model)


def turn_knob(model, knob: str) -> None:
    if knob == "async_unshard":
        model._set_unshard_async_op(True)
    if knob == "no_unshard_in_backward":
        model[0].set_unshard_in_backward(False)
        model[0].set_reshard_after_forward(False)
    if knob == "keep_after_backward":
        model.set_reshard_after_backward(False)
    if knob == "compile":
        model[0].compile(backend="eager")


def compare_knob(knob, mode):
    results = []
    for chosen in (None, mode):
        model = make_layers()
        turn_knob(model, knob)
        if chosen:
            tide.fsdp.enable(model, chosen)
        results.append(steps(model))
    assert_same(results[1], results[0])
    calls = [g.reduce_scatter.calls for g in tide.fsdp.report(model).groups]
    assert calls == [3, 3]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "knob",
    [
        "async_unshard",
        "no_unshard_in_backward",
        "keep_after_backward",
        "compile",
    ],
)
def test_knobs(pools, knob, mode):
    pools(2).run(compare_knob, knob, mode)
