"""May this PyTorch, and this parameter group, be served by tide?

Every check answers None (yes) or the reason why not. The reasons go into the
report; `agree` makes them the same on all ranks.
"""

import contextlib
import inspect
import os
import re

import torch

from tide._fsdp import internals, wire

OLDEST, NEWEST = (2, 11), (2, 15)

# The parameters of the four functions that are replaced, as tide knows them.
SIGNATURES = {
    "foreach_all_gather": (
        "fsdp_params group async_op all_gather_copy_in_stream "
        "all_gather_stream device all_gather_comm"
    ),
    "foreach_all_gather_copy_out": "all_gather_result fsdp_params group",
    "foreach_reduce": (
        "fsdp_params unsharded_grads reduce_scatter_group "
        "reduce_scatter_stream reduce_scatter_comm orig_dtype reduce_dtype "
        "device gradient_divide_factor all_reduce_group all_reduce_stream "
        "all_reduce_grads partial_reduce_output all_reduce_hook "
        "force_sum_reduction_for_comms"
    ),
    "foreach_reduce_scatter_copy_in": (
        "unsharded_grads reduce_scatter_input world_size"
    ),
}

# Where FSDP2 looks the names up: caller, name.
LOOKUPS = (
    (internals.FSDPParamGroup.unshard, "foreach_all_gather"),
    (internals.FSDPParamGroup.wait_for_unshard, "foreach_all_gather_copy_out"),
    (internals.FSDPParamGroup.post_backward, "foreach_reduce"),
    (internals.collectives.foreach_reduce, "foreach_reduce_scatter_copy_in"),
)

# Variables that turn the caching of CUDA memory off.
NO_CACHING = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
POOL_NAMES = ("MemPool", "use_mem_pool")

PARAM_METHODS = (
    "init_all_gather_outputs",
    "alloc_all_gather_outputs",
    "free_unsharded_param",
)

# What is wrapped on the groups of a GPU.
GROUP_METHODS = (
    "pre_backward",
    "post_backward",
    "_to_sharded",
    "_to_sharded_post_forward",
)


def environment_problem(originals: dict) -> str | None:
    """Why this PyTorch cannot be served; `originals` are the four functions
    as PyTorch defines them."""
    return (
        _version_problem(torch.__version__)
        or _signature_problem(originals)
        or _lookup_problem()
        or _class_problem()
    )


def _version_problem(version: str) -> str | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    found = tuple(map(int, match.groups())) if match else (0, 0)
    if OLDEST <= found <= NEWEST:
        return None
    low, high = (".".join(map(str, v)) for v in (OLDEST, NEWEST))
    return f"torch {version} is outside {low} to {high}"


def _signature_problem(originals: dict) -> str | None:
    for name, known in SIGNATURES.items():
        function = originals.get(name)
        if function is None:
            return f"torch has no {name}"
        found = list(inspect.signature(function).parameters)
        if found != known.split():
            return f"torch's {name} has other parameters: {', '.join(found)}"
    return None


def _lookup_problem() -> str | None:
    for caller, name in LOOKUPS:
        if name not in _names_used(caller):
            return f"torch's {caller.__name__} does not call {name}"
    return None


def _names_used(function) -> set[str]:
    """The global names that a function, or one it wraps, looks up."""
    names, todo, seen = set(), [function], set()
    while todo:
        current = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        code = getattr(current, "__code__", None)
        names.update(code.co_names if code else ())
        todo.append(getattr(current, "__wrapped__", None))
        for cell in getattr(current, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # an empty cell
                todo.append(cell.cell_contents)
    return names


def _class_problem() -> str | None:
    missing = [m for m in PARAM_METHODS if not hasattr(internals.FSDPParam, m)]
    if missing:
        return f"torch's FSDPParam lacks {', '.join(missing)}"
    group = internals.FSDPParamGroup
    missing = [m for m in GROUP_METHODS if not hasattr(group, m)]
    if missing:
        return f"torch's FSDPParamGroup lacks {', '.join(missing)}"
    for base in (internals.AllGather, internals.ReduceScatter):
        if base.__abstractmethods__ != {"allocate", "__call__"}:
            return f"torch's {base.__name__} has other abstract methods"
    return None


def conflict(group) -> str | None:
    """What on this group excludes tide, an error: another owner of its
    communication."""
    gather, reduce = group._all_gather_comm, group._reduce_scatter_comm
    if type(gather) is not internals.DefaultAllGather:
        return f"its all-gather was set to {type(gather).__name__}"
    if type(reduce) is not internals.DefaultReduceScatter:
        return f"its reduce-scatter was set to {type(reduce).__name__}"
    if group._all_gather_result is not None:
        return "an unshard is under way"
    return None


def group_problem(group) -> str | None:
    """Why neither collective of a group can be tide's."""
    if not isinstance(group.mesh_info, internals.FSDPMeshInfo):
        return "not sharded (replicate only)"
    if group.device.type not in ("cpu", "cuda"):
        return f"no backend for {group.device.type} tensors"
    if group.mesh_info.shard_process_group.size() == 1:
        return "one rank shards nothing"
    return None


def allocator_problem(device_type: str) -> str | None:
    """Why torch's allocator, in this process, cannot work with tide."""
    if device_type != "cuda":
        return None
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        return f"torch's CUDA allocator is {backend}"
    for name in NO_CACHING:
        if os.environ.get(name, "0") not in ("", "0"):
            return f"{name} is set"
    missing = [n for n in POOL_NAMES if not hasattr(torch.cuda, n)]
    if missing:
        return f"torch.cuda lacks {', '.join(missing)}"
    if _expandable_segments():
        return (
            "torch's MemPool does not work with expandable_segments; take it "
            "out of PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF"
        )
    return None


def _expandable_segments() -> bool:
    """Whether they are on now, whoever switched them on."""
    settings = torch.cuda.memory._snapshot().get("allocator_settings", {})
    return bool(settings.get("expandable_segments"))


def gather_problem(group) -> str | None:
    """Why the all-gather of a group cannot be tide's."""
    for param in group.fsdp_params:
        local = param._sharded_local_tensor
        name = param._module_info.param_name
        if hasattr(local, "fsdp_pre_all_gather"):
            return f"{name} has an fsdp_pre_all_gather"
        if type(local) is not torch.Tensor:
            return f"{name} is a {type(local).__name__}"
        if param.offload_to_cpu:
            return "CPU offload"
        dtype = param.mp_policy.param_dtype or local.dtype
        if wire.dtype_name(dtype) is None:
            return f"{name} is {dtype}"
    return None


def reduce_problem(group) -> str | None:
    """Why the reduce-scatter of a group cannot be tide's, as far as its
    policy says; the dtypes of the gradients decide in the end."""
    policy = group.mp_policy
    return dtype_problem(policy.reduce_dtype or policy.param_dtype)


def dtype_problem(dtype: torch.dtype | None) -> str | None:
    if dtype is None or dtype in wire.REDUCIBLE:
        return None
    return f"reduction in {str(dtype).removeprefix('torch.')}"
