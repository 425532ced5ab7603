"""The all-gather: shards land in the unsharded parameters themselves.

At unshard the local shards are cast and copied into tide's STAGE, once, and
the collective starts; peers pull from there into the storages that FSDP2's
parameters live in. The wait is where FSDP2 would copy out, so a prefetched
group travels while the one before computes.
"""

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tide._fsdp import agree, memory, support, wire
from tide._fsdp.internals import AllGather, AllGatherResult, ShardedState
from tide._fsdp.state import GroupState
from tide._tide import Error
from tide.errors import INVALID, make_error


class TideAllGather(AllGather):
    """Marks a group as tide's. By itself an ordinary all-gather, which is
    what groups get that go stock."""

    def __init__(self, state: GroupState) -> None:
        self.state = state

    def allocate(self, size, *, dtype, device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        return gather(
            output_tensor, input_tensor, group=group, async_op=async_op
        )


class StockResult(AllGatherResult):
    """Stock's result, and whose it is."""

    state: GroupState


class TideResult(AllGatherResult):
    """An all-gather of tide's under way. If it is dropped unused, it is
    completed and its parameters' memory is given back."""

    state: GroupState
    request: Any
    params: list

    def finish(self) -> None:
        request, self.request = self.request, None
        with self.state.comm.doing(self.state.describe("all-gather")):
            request.wait("done")
            request.close()

    def __del__(self) -> None:
        request = getattr(self, "request", None)
        if request is None:
            return
        with contextlib.suppress(Error):  # the next call will raise it
            request.close()
        if not self.state.group.is_unsharded:
            for param in self.params:
                param.free_unsharded_param()


@dataclass
class GatherPlan:
    """A tide group, and where each parameter's shard goes in STAGE."""

    group: Any
    pieces: list[tuple[int, int]]  # offset, bytes
    numels: list[int]  # of a padded shard
    sizes: list[int]  # bytes of the storages

    @classmethod
    def make(cls, group: Any) -> "GatherPlan":
        layout = group.layout()
        return cls(
            group,
            [(p["shard_offset"], p["shard_bytes"]) for p in layout],
            [p["shard_elems"] for p in layout],
            [p["storage_bytes"] for p in layout],
        )


def start_all_gather(stock, call: dict) -> AllGatherResult | None:
    """Replaces foreach_all_gather for groups whose comm is TideAllGather."""
    state: GroupState = call["all_gather_comm"].state
    started = time.perf_counter()
    problem = state.gather.problem or _call_problem(state, call)
    if problem:
        return _start_stock(state, stock, call, problem, started)
    with state.comm.doing(state.describe("all-gather")), torch.no_grad():
        result = _start(state, call["fsdp_params"], call["async_op"])
    state.gather.seconds += time.perf_counter() - started
    return result


def finish_all_gather(stock, call: dict) -> None:
    """Replaces foreach_all_gather_copy_out."""
    result = call["all_gather_result"]
    started = time.perf_counter()
    if isinstance(result, TideResult):
        result.finish()
        result.state.gather.seconds += time.perf_counter() - started
        return
    stock(**call)
    if isinstance(result, StockResult):
        result.state.gather.stock_seconds += time.perf_counter() - started


def _call_problem(state: GroupState, call: dict) -> str | None:
    """Why this call goes stock; alike on all ranks."""
    if not support.same_ranks(call["group"], state.comm.ranks):
        return "gathers over another group (reshard_after_forward=int)"
    for param in call["fsdp_params"]:
        if param.sharded_state is not ShardedState.SHARDED:
            return "resharded to another group (reshard_after_forward=int)"
        outputs = param.all_gather_outputs
        if outputs and outputs[0].dtype != _gather_dtype(param):
            return "a parameter has changed its dtype"
    return None


def _start_stock(state, stock, call, problem, started):
    state.go_stock(state.gather, problem)
    agree.check_inputs_once(state, call["fsdp_params"], call["group"])
    result = stock(**call)
    state.gather.stock_calls += 1
    if result is not None:
        result = StockResult(*result)
        result.state = state
    state.gather.stock_seconds += time.perf_counter() - started
    return result


def _gather_dtype(param) -> torch.dtype:
    return param.param_dtype or param._sharded_param_data.dtype


def _start(state: GroupState, params: list, async_op: bool) -> TideResult:
    dtypes = [_gather_dtype(param) for param in params]
    key = tuple(
        wire.sharded_param(param._orig_size, param.fsdp_placement.dim, dtype)
        for param, dtype in zip(params, dtypes, strict=True)
    )
    plan = state.plan("all-gather", key, GatherPlan.make)
    _check_shards(state, params, plan)
    _open_storages(state, params, plan, dtypes)
    request = plan.group.all_gather_begin()
    _fill(request.buffer, params, plan, dtypes)
    request.start([param.all_gather_outputs[0].data_ptr() for param in params])
    state.gather.calls += 1
    state.gather.bytes += sum(plan.sizes)
    if state.gather.plan is None:
        state.gather.plan = plan.group.stats("all_gather")
    return _make_result(state, request, params, plan, dtypes, async_op)


def _check_shards(state: GroupState, params: list, plan: GatherPlan) -> None:
    for param, numel in zip(params, plan.numels, strict=True):
        found = param._sharded_param_data.numel()
        if found != numel:
            name = param._module_info.param_name
            text = (
                f"{name} has a shard of {found} elements where {numel} are due"
            )
            raise make_error(INVALID, text)


def _open_storages(state, params, plan: GatherPlan, dtypes: list) -> None:
    """Gives every parameter the memory that its shards land in."""
    ranks = len(state.comm.ranks)
    fresh = not any(param.all_gather_outputs for param in params)
    if fresh and state.mode == "slot_reuse":
        home = memory.Home(state.comm, params, plan.sizes, dtypes)
        home.wrap_post_backward(state.group)
        state.group._tide_home = home
    for param, numel, dtype in zip(params, plan.numels, dtypes, strict=True):
        param.init_all_gather_outputs([numel], [dtype], ranks, param.device)
        param.alloc_all_gather_outputs()


def _fill(buffer, params: list, plan: GatherPlan, dtypes: list) -> None:
    """Casts the shards into STAGE: the one copy of the all-gather."""
    if not buffer:
        return
    raw = torch.frombuffer(buffer, dtype=torch.uint8)
    targets, sources = [], []
    for param, dtype, (offset, nbytes) in zip(
        params, dtypes, plan.pieces, strict=True
    ):
        if nbytes:
            targets.append(raw[offset : offset + nbytes].view(dtype))
            sources.append(param._sharded_param_data)
    torch._foreach_copy_(targets, sources)


def _make_result(state, request, params, plan, dtypes, async_op) -> TideResult:
    known = {
        "all_gather_output": torch.empty(0),
        "all_gather_event": None,
        "all_gather_work": request if async_op else None,
        "param_all_gather_input_dtypes": [[dtype] for dtype in dtypes],
        "param_all_gather_input_numels": [[numel] for numel in plan.numels],
        "all_gather_input_split_sizes": list(plan.numels),
    }
    for field in AllGatherResult._fields:
        if field not in AllGatherResult._field_defaults:
            known.setdefault(field, None)
    result = TideResult(**known)
    result.state, result.request, result.params = state, request, list(params)
    return result
