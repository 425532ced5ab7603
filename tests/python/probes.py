"""Models whose unsharded values and gradients are known in advance."""

import pytest
import torch
import torch.distributed as dist
from tide._fsdp import internals
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


class Sum(nn.Module):
    """The sum of weight * input: the weight's gradient is the input."""

    def __init__(self, *shape: int, value: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, value))

    def forward(self, x):
        return (self.weight * x).sum()


def world_mesh(*shape: int):
    names = ("replicate", "shard") if len(shape) == 2 else None
    shape = shape or (dist.get_world_size(),)
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def shard(
    model: nn.Module, mesh=None, bf16: bool = False, **options
) -> nn.Module:
    policy = MixedPrecisionPolicy()
    if bf16:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    fully_shard(model, mesh=mesh or world_mesh(), mp_policy=policy, **options)
    return model


def needs(name: str):
    """Skips a test on a torch whose FSDP2 modules have no such method."""
    return pytest.mark.skipif(
        not hasattr(FSDPModule, name), reason=f"this torch has no {name}"
    )


def group_of(module: FSDPModule):
    """The only parameter group of a module itself."""
    groups = internals.find_groups(module)
    return next(g for _name, g in groups if module in g.modules)


def modules(model: nn.Module) -> list[FSDPModule]:
    return [m for m in model.modules() if isinstance(m, FSDPModule)]


def full_grad(param) -> torch.Tensor:
    return param.grad.full_tensor()


def numbered(*shape: int) -> torch.Tensor:
    """Values that small dtypes hold, different at every index."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32) % 251 - 125).view(shape)
