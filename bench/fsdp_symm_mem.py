"""FSDP2's own collectives on NCCL's symmetric memory: a baseline.

Buffers of all-gathers and inputs of reduce-scatters lie in memory that is
registered as symmetric windows, so that NCCL takes its copy-engine all-gather
and its symmetric reduce-scatter kernel. Three ways, the first that works on
all ranks:

1. FSDPModule.set_symm_mem_for_comm, from torch 2.12.
2. Custom comms over one buffer of ncclMemAlloc memory, registered once by
   ProcessGroupNCCL.register_mem_pool(symm=True). torch 2.11 takes this one: its
   symmetric memory makes a device communicator when ranks meet, in the way of
   NCCL 2.28, which NCCL 2.29 and newer refuse.
3. FSDPModule.set_allocate_memory_from_process_group_for_comm: memory that NCCL
   has registered, but not as symmetric.

Reductions are sums that are divided afterwards, as PyTorch asks for here.
"""

import math
import os
from collections.abc import Callable

import ranks_on_gpu
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from tide._fsdp.internals import find_groups
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    AllGather,
    ReduceScatter,
)

ALIGNMENT = 2 << 20
TRIAL = 1 << 20  # elements of a rank
Install = Callable[[], None]


def prepare() -> None:
    """Before NCCL starts: copy engines where there is a choice, no multicast.
    Raises RuntimeError where there is no GPU."""
    if not torch.cuda.is_available():
        raise RuntimeError("symm_mem needs a GPU: its memory is NCCL's")
    os.environ.setdefault("NCCL_CTA_POLICY", "2")  # no CTAs if possible
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"


def enable(model: FSDPModule, device: torch.device) -> str:
    """Which way the model goes from now on. Collective, before the first
    step; raises RuntimeError on all ranks if no way works."""
    groups = [group for _name, group in find_groups(model)]
    ranks = groups[0].mesh_info.shard_process_group
    dist.all_reduce(torch.zeros(1, device=device), group=ranks)
    torch.cuda.synchronize()  # there is an NCCL communicator from here on
    modules = [m for m in model.modules() if isinstance(m, FSDPModule)]
    ways = {
        "set_symm_mem_for_comm": _by_torch,
        "register_mem_pool(symm=True)": _by_window,
        "set_allocate_memory_from_process_group_for_comm": _by_process_group,
    }
    for how, attempt in ways.items():
        reason, install = "another rank", None
        try:
            install = attempt(modules, groups, ranks, device)
        except Exception as error:  # all ranks try the next way
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if ranks_on_gpu.everyone(install is not None):
            for module in modules:
                module.set_force_sum_reduction_for_comms(True)
            install()
            return how
        print(f"symm_mem: not {how}: {reason}", flush=True)
    raise RuntimeError("symm_mem: no way works with this torch and NCCL")


def kernels_of(step: Callable[[], None]) -> list[str]:
    """Names of NCCL's kernels in a step, and of copies, its own among them."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        step()
        torch.cuda.synchronize()
    names = {event.name for event in profile.events()}
    return sorted(n[:90] for n in names if "nccl" in n or "Memcpy" in n)


def _by_torch(modules: list, groups: list, ranks, device) -> Install:
    if not hasattr(FSDPModule, "set_symm_mem_for_comm"):
        raise RuntimeError(f"torch {torch.__version__} has none")
    symm_mem.set_backend("NCCL")
    with torch.cuda.use_mem_pool(symm_mem.get_mem_pool(device)):
        memory = torch.empty(8 * TRIAL, dtype=torch.uint8, device=device)
    symm_mem.rendezvous(memory, group=ranks.group_name)

    def install() -> None:
        for module in modules:
            module.set_symm_mem_for_comm()

    return install


def _by_window(modules: list, groups: list, ranks, device) -> Install:
    buffers = _Buffers(groups, ranks, device)
    _try(buffers, ranks, device)
    gather, reduce = _Gather(buffers), _Reduce(buffers)

    def install() -> None:
        for module in modules:
            module.set_custom_all_gather(gather)
            module.set_custom_reduce_scatter(reduce)

    return install


def _by_process_group(modules: list, groups: list, ranks, device) -> Install:
    backend = ranks._get_backend(device)
    if not backend.supports_tensor_alloc(device):
        raise RuntimeError("the process group cannot allocate here")
    backend.allocate_tensor(TRIAL, dtype=torch.uint8, device=device)

    def install() -> None:
        for module in modules:
            module.set_allocate_memory_from_process_group_for_comm(True)

    return install


class _Buffers:
    """Two all-gather buffers and one reduce-scatter input, each as large as
    the largest group needs, in one segment: registering it is collective, and
    segments might differ in order between ranks. It lasts until the end.

    The order of streams is FSDP2's own, as for memory that its allocator
    hands out again. Its copy-in stream has waited for a copy-out when the
    all-gather after the next is queued, so that all-gathers may alternate.
    The compute stream has waited for a reduce-scatter when the next one's
    input is written.
    """

    def __init__(self, groups: list, ranks, device: torch.device) -> None:
        gathered = max(_unsharded_bytes(g, "param_dtype") for g in groups)
        packed = max(_unsharded_bytes(g, "reduce_dtype") for g in groups)
        total = 2 * gathered + packed
        backend = ranks._get_backend(device)
        self._pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(self._pool):
            memory = torch.empty(total, dtype=torch.uint8, device=device)
        backend.register_mem_pool(self._pool, symm=True)
        *self._gathers, self._input = memory.split([gathered, gathered, packed])
        self.input_bytes = packed

    def gather(self, size, dtype: torch.dtype) -> torch.Tensor:
        self._gathers.reverse()
        return _carve(self._gathers[0], size, dtype)

    def reduce(self, size, dtype: torch.dtype) -> torch.Tensor:
        return _carve(self._input, size, dtype)


def _unsharded_bytes(group, kind: str) -> int:
    """Of a group's padded parameters, in a dtype of its policy."""
    ranks, total = group.mesh_info.shard_process_group.size(), 0
    for param in group.fsdp_params:
        policy = param.mp_policy
        dtype = getattr(policy, kind) or policy.param_dtype
        dtype = dtype or param.sharded_param.dtype
        total += param._sharded_param_data.numel() * ranks * dtype.itemsize
    return -(-total // ALIGNMENT) * ALIGNMENT


def _carve(buffer: torch.Tensor, size, dtype: torch.dtype) -> torch.Tensor:
    nbytes = math.prod(size) * dtype.itemsize
    if nbytes > buffer.numel():
        raise RuntimeError(f"symm_mem: {nbytes} bytes of {buffer.numel()}")
    return buffer[:nbytes].view(dtype).view(size)


class _Gather(AllGather):
    def __init__(self, buffers: _Buffers) -> None:
        self._buffers = buffers

    def allocate(self, size, *, dtype, device) -> torch.Tensor:
        return self._buffers.gather(size, dtype)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        return dist.all_gather_into_tensor(
            output_tensor, input_tensor, group=group, async_op=async_op
        )


class _Reduce(ReduceScatter):
    """Of what FSDP2 allocates for a call, the input comes first. The output
    becomes the gradients of the shards, which live on."""

    def __init__(self, buffers: _Buffers) -> None:
        self._buffers = buffers
        self._output_is_next = False

    def allocate(self, size, *, dtype, device) -> torch.Tensor:
        output = self._output_is_next
        self._output_is_next = not output
        if output:
            return torch.empty(*size, dtype=dtype, device=device)
        return self._buffers.reduce(size, dtype)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        return dist.reduce_scatter_tensor(
            output_tensor, input_tensor, group=group, op=op, async_op=async_op
        )


def _try(buffers: _Buffers, ranks, device: torch.device) -> None:
    """Both collectives on the registered memory; checks their results."""
    me, count = ranks.rank(), ranks.size()
    numel = min(TRIAL, buffers.input_bytes // (4 * count))
    gathered = buffers.gather((numel * count,), torch.bfloat16)
    packed = buffers.reduce((numel * count,), torch.float32)
    each = torch.arange(count, device=device)
    gathered.view(count, -1)[me].fill_(me)
    packed.view(count, -1).copy_((each + me)[:, None])
    output = packed.new_empty(numel)
    mine = gathered.view(count, -1)[me]
    dist.all_gather_into_tensor(gathered, mine, group=ranks)
    dist.reduce_scatter_tensor(output, packed, group=ranks)
    summed = int(each.sum()) + count * me
    good = (gathered.view(count, -1) == each[:, None]).all()
    if not bool(good & (output == summed).all()):
        raise RuntimeError("collectives on registered memory are wrong")
