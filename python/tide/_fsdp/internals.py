"""PyTorch's FSDP2 internals that tide uses, named here and nowhere else."""

from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import (
    _fsdp_collectives as collectives,
)
from torch.distributed.fsdp._fully_shard import (
    _fsdp_param as param,
)
from torch.distributed.fsdp._fully_shard import (
    _fsdp_param_group as param_group,
)
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

AllGather = collectives.AllGather
AllGatherResult = collectives.AllGatherResult
DefaultAllGather = collectives.DefaultAllGather
DefaultReduceScatter = collectives.DefaultReduceScatter
FSDPParam = param.FSDPParam
FSDPParamGroup = param_group.FSDPParamGroup
ReduceScatter = collectives.ReduceScatter
ShardedState = param.ShardedState

__all__ = [
    "AllGather",
    "AllGatherResult",
    "DefaultAllGather",
    "DefaultReduceScatter",
    "FSDPMeshInfo",
    "FSDPModule",
    "FSDPParam",
    "FSDPParamGroup",
    "ReduceScatter",
    "ShardedState",
    "collectives",
    "find_groups",
    "param_group",
]


def find_groups(model) -> list[tuple[str, FSDPParamGroup]]:
    """Every parameter group below model, with its module's name.

    A module of several groups (one a mesh) numbers them; a group of several
    modules has the first one's name.
    """
    found, seen = [], set()
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        groups = _groups_of(module._get_fsdp_state())
        for i, group in enumerate(groups):
            if id(group) in seen:
                continue
            seen.add(id(group))
            label = name or "(root)"
            found.append((f"{label}#{i}" if len(groups) > 1 else label, group))
    return found


def _groups_of(state) -> list[FSDPParamGroup]:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch that knows one group a module
        groups = [state._fsdp_param_group]
    return [group for group in groups if group is not None]
