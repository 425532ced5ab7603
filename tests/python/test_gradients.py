"""Reduced gradients have the right value, whatever asks for them."""

import pytest
import tide.fsdp
import torch
import torch.distributed as dist
from probes import (
    Sum,
    full_grad,
    modules,
    needs,
    numbered,
    shard,
    world_mesh,
)
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

MODES = ["in_place", "slot_reuse"]


def backward(model: nn.Module, *inputs) -> torch.Tensor:
    for x in inputs:
        model(x).backward()
    return full_grad(model.weight)


def assert_grad(found: torch.Tensor, want: torch.Tensor, **tolerance) -> None:
    torch.testing.assert_close(found.double(), want.double(), **tolerance)


# --- Divide factors (B1, B2) ------------------------------------------------


def run_factor(mesh_shape, factor, force_sum, mode):
    model = shard(Sum(5, 3), world_mesh(*mesh_shape))
    model.set_gradient_divide_factor(factor)
    model.set_force_sum_reduction_for_comms(force_sum)
    tide.fsdp.enable(model, mode)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = backward(model, numbered(5, 3) + rank)
    total = numbered(5, 3) * ranks + ranks * (ranks - 1) / 2
    assert_grad(found, total / factor, rtol=1e-6, atol=1e-6)
    assert tide.fsdp.report(model).groups[0].reduce_scatter.calls == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("force_sum", [False, True], ids=["premul", "sum"])
@pytest.mark.parametrize("factor", [300.0, 1.0, 4.0])
@pytest.mark.parametrize("mesh", [(4,), (2, 2)], ids=["flat", "hsdp"])
def test_divide_factor(pools, mesh, factor, force_sum, mode):
    """The sum over all ranks, divided by the factor, on every mesh."""
    pools(4).run(run_factor, mesh, factor, force_sum, mode)


@pytest.mark.parametrize("force_sum", [False, True], ids=["premul", "sum"])
@pytest.mark.parametrize("factor", [3.0, 300.0])
def test_divide_factor_three_ranks(pools, factor, force_sum):
    pools(3).run(run_factor, (3,), factor, force_sum, "in_place")


# --- Accumulation (B3, B5) --------------------------------------------------


def run_one_rank(micros):
    model = shard(Sum(3, 2))
    tide.fsdp.enable(model)
    inputs = [torch.full((3, 2), 10.0**-k) for k in range(micros)]
    found = backward(model, *inputs)
    assert_grad(found, torch.stack(inputs).double().sum(0), rtol=1e-6, atol=0)
    group = tide.fsdp.report(model).groups[0]
    assert group.all_gather.path == group.reduce_scatter.path == "stock"
    assert group.reduce_scatter.reason == "one rank shards nothing"


@pytest.mark.parametrize("micros", [1, 2, 8, 128])
def test_one_rank_adds_each_microbatch_once(pools, micros):
    pools(1).run(run_one_rank, micros)


def run_powers(mesh_shape, knob, mode):
    """Microbatch k gives 10^k: each digit of the sum shows one of them."""
    model = shard(Sum(3, 2), world_mesh(*mesh_shape))
    tide.fsdp.enable(model, mode)
    for k in range(3):
        if knob == "sync":
            model.set_requires_gradient_sync(k == 2)
        if knob == "all_reduce":
            model.set_requires_all_reduce(k == 2)
        model.set_is_last_backward(k == 2)
        model(torch.full((3, 2), 10.0**k)).backward()
    assert_grad(
        full_grad(model.weight), torch.full((3, 2), 111.0), rtol=0, atol=0
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "ranks, mesh, knob",
    [
        (2, (2,), "sync"),
        (4, (2, 2), "sync"),
        (4, (2, 2), "all_reduce"),
        (2, (2,), ""),
    ],
)
def test_every_microbatch_survives(pools, ranks, mesh, knob, mode):
    pools(ranks).run(run_powers, mesh, knob, mode)


# --- Frozen, missing, late (B6, B7) -----------------------------------------


def run_unfreeze(mode):
    model = shard(Sum(5, 3), bf16=True)
    tide.fsdp.enable(model, mode)
    model.requires_grad_(False)
    model(numbered(5, 3))  # FSDP2 settles its dtypes here, without gradients
    model.reshard()
    model.requires_grad_(True)
    # 256 + 1 is not a bf16 number: a sum in bf16 would lose the 1.
    found = backward(
        model, torch.full((5, 3), 256.0 if dist.get_rank() else 1.0)
    )
    assert found.dtype == torch.float32
    assert_grad(found, torch.full((5, 3), 257.0 / 2), rtol=0, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_unfrozen_later_is_still_reduced_in_fp32(pools, mode):
    pools(2).run(run_unfreeze, mode)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Sum(5, 3), Sum(4, 2)

    def forward(self, use_two: bool):
        loss = self.one(torch.ones(5, 3))
        return loss + self.two(torch.ones(4, 2)) if use_two else loss


def run_skipped_expert(zeros: bool, mode):
    """Rank 0 does not use expert two."""
    model = Experts()
    model = shard(model, reshard_after_forward=False)
    if zeros:
        model.set_reduce_scatter_unused_params(True)
    tide.fsdp.enable(model, mode)
    try:
        model(dist.get_rank() != 0).backward()
    except tide.Error as error:
        return error.status, str(error)
    return "ok", (full_grad(model.one.weight), full_grad(model.two.weight))


@needs("set_reduce_scatter_unused_params")
@pytest.mark.parametrize("mode", MODES)
def test_skipped_expert_counts_as_zero_when_asked(pools, mode):
    for status, grads in pools(2).run(run_skipped_expert, True, mode):
        assert status == "ok", grads
        assert torch.equal(grads[0], torch.ones(5, 3))
        assert torch.equal(grads[1], torch.full((4, 2), 0.5))


def test_skipped_expert_is_an_error_on_every_rank(pools):
    for status, text in pools(2).run(run_skipped_expert, False, "in_place"):
        assert status == "TIDE_ERR_MISMATCH", text
        assert "reduce-scatter of group '(root)'" in text


# --- Precision (B8) ---------------------------------------------------------


def run_precision(mode):
    """One rank 256, the others 0.5: bf16 partial sums would lose them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = shard(Sum(9, 5), bf16=True)
    tide.fsdp.enable(model, mode)
    mine = 256.0 if rank == ranks - 1 else 0.5
    found = backward(model, torch.full((9, 5), mine))
    want = (256.0 + 0.5 * (ranks - 1)) / ranks
    error = (found.double() - want).abs().max().item()
    assert error <= want * ranks * 2.0**-24, (error, want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks, local", [(2, 0), (3, 0), (4, 2), (8, 4)])
def test_sums_are_fp32_all_the_way(pools, ranks, local, mode):
    pools(ranks, TIDE_LOCAL_SIZE=str(local)).run(run_precision, mode)


def run_repeatable():
    """The order of summands is fixed: the same bits every time."""
    torch.manual_seed(dist.get_rank())
    x, bits = torch.randn(33, 7), set()
    for _ in range(4):
        model = shard(Sum(33, 7), bf16=True)
        tide.fsdp.enable(model)
        bits.add(full_grad_bytes(backward(model, x)))
    assert len(bits) == 1


def full_grad_bytes(grad: torch.Tensor) -> bytes:
    return grad.numpy().tobytes()


def test_sums_repeat_bit_for_bit(pools):
    pools(4, TIDE_LOCAL_SIZE="2").run(run_repeatable)


# --- One rank, no second tensor (C10) ---------------------------------------


class FullSizeDivides(TorchDispatchMode):
    """Records out-of-place divisions of tensors of `numel` elements."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel, self.seen = numel, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if (
            func.overloadpacket is torch.ops.aten.div
            and args[0].numel() == self.numel
        ):
            self.seen.append(func)
        return func(*args, **(kwargs or {}))


def run_one_rank_divide(with_tide: bool):
    model = shard(Sum(64, 3))
    model.set_gradient_divide_factor(4.0)
    if with_tide:
        tide.fsdp.enable(model)
    with FullSizeDivides(64 * 3) as recorder:
        found = backward(model, numbered(64, 3))
    assert_grad(found, numbered(64, 3) / 4, rtol=0, atol=0)
    return len(recorder.seen)


def test_one_rank_divides_in_place(pools):
    assert pools(1).run(run_one_rank_divide, False) == [1]
    assert pools(1).run(run_one_rank_divide, True) == [0]


# --- Hooks and layouts of gradients -----------------------------------------


def run_hooks(mode):
    model = shard(Sum(5, 3))
    seen = []
    model.weight.register_post_accumulate_grad_hook(
        lambda p: seen.append(full_grad(p))
    )
    model.set_all_reduce_hook(lambda output: output.mul_(2))
    tide.fsdp.enable(model, mode)
    found = backward(model, numbered(5, 3))
    assert_grad(found, numbered(5, 3) * 2, rtol=0, atol=0)
    assert len(seen) == 1 and torch.equal(seen[0], found)


@pytest.mark.parametrize("mode", MODES)
def test_all_reduce_and_accumulate_hooks(pools, mode):
    pools(2).run(run_hooks, mode)


class Transposed(nn.Module):
    """Its gradient reaches the parameter transposed, not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5, 3))

    def forward(self, x):
        return (Passed.apply(self.weight) * x).sum()


class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        return w.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.t().contiguous().t()


def run_transposed(mode):
    model = shard(Transposed())
    tide.fsdp.enable(model, mode)
    assert torch.equal(backward(model, numbered(5, 3)), numbered(5, 3))


@pytest.mark.parametrize("mode", MODES)
def test_gradient_with_other_strides(pools, mode):
    pools(2).run(run_transposed, mode)


def run_optimizer_in_backward(mode):
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    for layer in model:
        fully_shard(layer, mesh=world_mesh())
    shard(model)
    optimizers = {p: torch.optim.SGD([p], lr=1.0) for p in model.parameters()}

    def step(p) -> None:
        optimizers[p].step()
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    if mode:
        tide.fsdp.enable(model, mode)
    torch.manual_seed(2 + dist.get_rank())
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()
    return [p.to_local().detach().clone() for p in model.parameters()]


def compare_optimizer_in_backward():
    torch.manual_seed(1)
    want = run_optimizer_in_backward(None)
    for mode in MODES:
        torch.manual_seed(1)
        found = run_optimizer_in_backward(mode)
        assert all(map(torch.equal, found, want))


def test_optimizer_in_backward(pools):
    pools(2).run(compare_optimizer_in_backward)


def run_max_input_buffers(mode):
    model = shard(Sum(5, 3))
    for module in modules(model):
        module.set_reduce_scatter_max_input_buffers(3)
        module.set_separate_reduce_scatter_group(True)
    tide.fsdp.enable(model, mode)
    for _ in range(5):
        assert torch.equal(backward(model, numbered(5, 3)), numbered(5, 3))
        model.zero_grad()
    assert tide.fsdp.report(model).groups[0].reduce_scatter.calls == 5


@needs("set_reduce_scatter_max_input_buffers")
@pytest.mark.parametrize("mode", MODES)
def test_separate_group_and_more_buffers(pools, mode):
    pools(2).run(run_max_input_buffers, mode)
