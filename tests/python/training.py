"""A small model with every awkward shape, and its training, stock or tide."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import tide.fsdp
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

DEVICE = "cpu"  # or "cuda", for the GPU tests


@dataclass(frozen=True)
class Case:
    """How a model is made and trained. Defaults: plain fp32."""

    bf16: bool = False
    reduce: Any = torch.float32  # with bf16
    reshard: Any = None
    mesh: tuple[int, ...] = ()  # (): one dimension of all ranks
    shard_dim: int = 0
    width: int = 7
    hidden: int = 13
    frozen: bool = False
    unused: bool = False
    shared: bool = False
    meta: bool = False
    accumulate: str = ""  # "sync", "no_sync", "no_all_reduce"
    prefetch: bool = False
    checkpoint: bool = False
    forwards: int = 1
    evaluate: bool = False
    reload: bool = False
    divide: float | None = None
    force_sum: bool = False
    keep_in_backward: bool = False
    steps: int = 3


class Block(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.norm = nn.LayerNorm(case.width)
        self.up = nn.Linear(case.width, case.hidden)
        self.down = nn.Linear(case.hidden, case.width)
        if case.unused:
            self.spare = nn.Parameter(torch.ones(3, 2))

    def body(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    def forward(self, x):
        if self.case.checkpoint:
            return checkpoint(self.body, x, use_reentrant=False)
        return self.body(x)


class Model(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.first = nn.Linear(6, case.width)
        self.blocks = nn.ModuleList(Block(case) for _ in range(3))
        self.last = nn.Linear(case.width, 2)  # rows fewer than most ranks
        if case.shared:
            for block in self.blocks[:2]:
                block.again = block.up  # a shared module of one group

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def make_mesh(case: Case):
    if not case.mesh:
        return init_device_mesh(DEVICE, (dist.get_world_size(),))
    return init_device_mesh(
        DEVICE, case.mesh, mesh_dim_names=("replicate", "shard")
    )


def placement(case: Case):
    """Shards the weights on the case's dimension, vectors on their only."""
    if case.shard_dim == 0:
        return None
    return lambda p: Shard(case.shard_dim if p.ndim > case.shard_dim else 0)


def make_model(case: Case) -> nn.Module:
    torch.manual_seed(1)
    with torch.device("meta") if case.meta else nullcontext():
        model = Model(case)
    if case.frozen:
        model.blocks[1].norm.requires_grad_(False)
        model.blocks[1].up.weight.requires_grad_(False)
    policy = MixedPrecisionPolicy()
    if case.bf16:
        policy = MixedPrecisionPolicy(torch.bfloat16, case.reduce)
    options = {
        "mesh": make_mesh(case),
        "mp_policy": policy,
        "shard_placement_fn": placement(case),
    }
    if case.reshard is not None:
        options["reshard_after_forward"] = case.reshard
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    _set_knobs(model, case)
    return model


def _set_knobs(model: nn.Module, case: Case) -> None:
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        if case.divide is not None:
            module.set_gradient_divide_factor(case.divide)
        module.set_force_sum_reduction_for_comms(case.force_sum)
        if case.keep_in_backward:
            module.set_reshard_after_backward(False, recurse=False)
    if case.prefetch:
        blocks = list(model.blocks)
        for i, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 3])
            block.set_modules_to_backward_prefetch(
                blocks[max(i - 2, 0) : i][::-1]
            )


def fill_from_meta(model: nn.Module) -> None:
    model.to_empty(device=DEVICE)
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            local = p.to_local()
            values = torch.arange(
                local.numel(), dtype=torch.float32, device=DEVICE
            )
            local.copy_(
                torch.cos(values + i + dist.get_rank()).view_as(local) * 0.3
            )


@dataclass
class Outcome:
    params: list[torch.Tensor]
    losses: list[float]
    report: Any = None
    model: Any = None


def train(case: Case, mode: str | None) -> Outcome:
    """Trains with tide in this mode, or stock if mode is None."""
    model = make_model(case)
    if mode is not None:
        tide.fsdp.enable(model, mode)
    if case.meta:
        fill_from_meta(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = [
        run_step(model, case, step, optimizer) for step in range(case.steps)
    ]
    if case.reload:
        losses.append(_reload(model, case))
    report = tide.fsdp.report(model) if mode is not None else None
    reshard(model)
    params = [p.to_local().detach().clone() for p in model.parameters()]
    return Outcome(params, losses, report, model)


def run_step(model, case: Case, step: int, optimizer) -> float:
    micros = 3 if case.accumulate else 1
    for micro in range(micros):
        last = micro == micros - 1
        if case.accumulate == "no_sync":
            model.set_requires_gradient_sync(last)
        if case.accumulate == "no_all_reduce":
            model.set_requires_all_reduce(last)
        model.set_is_last_backward(last)
        loss = sum(
            model(make_input(step, micro, i)).float().pow(2).mean()
            for i in range(case.forwards)
        )
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if case.evaluate:
        with torch.no_grad():
            loss = loss + model(make_input(step, 7, 0)).float().sum()
    return float(loss.detach())


def make_input(step: int, micro: int, forward: int) -> torch.Tensor:
    seed = 1000 * step + 100 * micro + 10 * forward + dist.get_rank()
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(5, 6, generator=generator).to(DEVICE)


def reshard(model) -> None:
    """Registers the sharded parameters, whatever the last forward left."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _reload(model, case: Case) -> float:
    """state_dict, noise, load_state_dict: the model is what it was."""
    reshard(model)
    kept = {name: p.clone() for name, p in model.state_dict().items()}
    with torch.no_grad():
        for p in model.parameters():
            p.to_local().add_(1.0)
    model.load_state_dict(kept)
    with torch.no_grad():
        return float(model(make_input(9, 0, 0)).float().sum())


def compare(case: Case, modes=("in_place", "slot_reuse"), exact: bool = True):
    """Trains stock and in each mode on this rank and compares; the reports."""
    stock = train(case, None)
    reports = {}
    for mode in modes:
        ours = train(case, mode)
        assert_equal(ours, stock, case, exact, mode)
        reports[mode] = ours.report.to_dict()
        tide.fsdp.disable(ours.model)
    return reports


def assert_equal(ours: Outcome, stock: Outcome, case: Case, exact: bool, mode):
    low = case.bf16
    tolerance = {"rtol": 0, "atol": 0}
    if not exact:
        tolerance = {
            "rtol": 1e-2 if low else 1e-5,
            "atol": 2e-3 if low else 1e-6,
        }
    text = f"{mode}, {case}: "
    for i, (a, b) in enumerate(zip(ours.params, stock.params, strict=True)):
        torch.testing.assert_close(
            a, b, msg=lambda m, i=i: f"{text} parameter {i}: {m}", **tolerance
        )
    torch.testing.assert_close(
        torch.tensor(ours.losses),
        torch.tensor(stock.losses),
        msg=lambda m: f"{text} losses: {m}",
        **tolerance,
    )


__all__ = ["Case", "compare", "make_input", "make_model", "replace", "train"]
