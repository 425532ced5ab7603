"""The all-gather: shards land in the unsharded parameters themselves.

At unshard the local shards are cast and copied into tide's STAGE, once, and
the collective starts; peers pull from there into the storages that FSDP2's
parameters live in. The wait is where FSDP2 would copy out, so a prefetched
group travels while the one before computes. On a GPU the copy runs in FSDP2's
copy-in stream, and its all-gather stream holds the collective.
"""

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from tide._fsdp import agree, support, wire
from tide._fsdp.internals import AllGather, AllGatherResult, ShardedState
from tide._fsdp.landing import Landing
from tide._fsdp.memory import Home
from tide._fsdp.router import ROUTER, in_backward
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
    request: Any  # on the host
    params: list
    finished: bool

    def finish(self) -> None:
        """The work that follows finds the parameters complete."""
        self.finished = True
        if self.request is None:
            self.state.device.current().wait_event(self.all_gather_event)
            return
        request, self.request = self.request, None
        with self.state.comm.doing(self.state.describe("all-gather")):
            request.wait("done")
            request.close()

    def __del__(self) -> None:
        if getattr(self, "finished", True):
            return
        if self.request is not None:
            with contextlib.suppress(Error):  # the next call will raise it
                self.request.close()
        if self.state.group.is_unsharded:
            return
        if self.request is None:
            self.state.home.drop(self.params, self.all_gather_event)
            return
        for param in self.params:
            param.free_unsharded_param()


@dataclass
class GatherPlan:
    """A tide group, and where each parameter's shard goes in STAGE."""

    group: Any
    pieces: list[tuple[int, int]]  # offset, bytes
    numels: list[int]  # of a padded shard
    sizes: list[int]  # bytes of the storages
    dtypes: list[torch.dtype]
    nbytes: int  # of STAGE
    kept: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    @classmethod
    def make(cls, group: Any, dtypes: list[torch.dtype]) -> "GatherPlan":
        layout = group.layout()
        return cls(
            group,
            [(p["shard_offset"], p["shard_bytes"]) for p in layout],
            [p["shard_elems"] for p in layout],
            [p["storage_bytes"] for p in layout],
            dtypes,
            group.shard_bytes,
        )

    def targets(self, state: GroupState, request: Any) -> list[torch.Tensor]:
        """Views of STAGE for the shards that are not empty, in their dtypes.
        On a GPU STAGE has few addresses, and views are dear."""
        address = state.device.stage_address(request)
        if address not in self.kept:
            raw = state.device.stage(request, self.nbytes)
            views = [
                raw[offset : offset + nbytes].view(dtype)
                for dtype, (offset, nbytes) in zip(
                    self.dtypes, self.pieces, strict=True
                )
                if nbytes
            ]
            if not address:
                return views
            self.kept[address] = views
        return self.kept[address]


def start_all_gather(stock, call: dict) -> AllGatherResult | None:
    """Replaces foreach_all_gather for groups whose comm is TideAllGather."""
    state: GroupState = call["all_gather_comm"].state
    started = time.perf_counter()
    ROUTER.reset_after_error()
    with ROUTER.suspended():
        problem = state.gather.problem or _call_problem(state, call)
        if problem:
            return _start_stock(state, stock, call, problem, started)
        with state.comm.doing(state.describe("all-gather")), torch.no_grad():
            result = _start(state, call)
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
    with ROUTER.suspended():
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
    if state.device.capturing():
        return "in a CUDA graph capture"
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


def _start(state: GroupState, call: dict) -> TideResult:
    params, device = call["fsdp_params"], state.device
    filling, stream = (
        call["all_gather_copy_in_stream"],
        call["all_gather_stream"],
    )
    plan = _plan(state, params)
    _check_shards(params, plan)
    request = plan.group.all_gather_begin()
    device.await_phase(request, "free", filling)
    device.delay(filling)
    with device.on(filling):
        _fill(plan.targets(state, request), params)
    _open_storages(state, call, plan)
    device.order(stream, filling)
    device.delay(stream)
    addresses = [param.all_gather_outputs[0].data_ptr() for param in params]
    device.start(request, addresses, stream)
    state.gather.calls += 1
    state.gather.bytes += sum(plan.sizes)
    if state.gather.plan is None:
        state.gather.plan = plan.group.stats("all_gather")
    return _make_result(state, request, plan, call)


def _fill(targets: list[torch.Tensor], params: list) -> None:
    """Casts the shards into STAGE: the one copy of the all-gather."""
    shards = [param._sharded_param_data for param in params]
    if targets:
        torch._foreach_copy_(targets, [s for s in shards if s.numel()])


def _plan(state: GroupState, params: list) -> GatherPlan:
    dtypes = [_gather_dtype(param) for param in params]
    key = tuple(
        wire.sharded_param(param._orig_size, param.fsdp_placement.dim, dtype)
        for param, dtype in zip(params, dtypes, strict=True)
    )
    return state.plan(
        ("all-gather", *dtypes), key, lambda g: GatherPlan.make(g, dtypes)
    )


def _check_shards(params: list, plan: GatherPlan) -> None:
    for param, numel in zip(params, plan.numels, strict=True):
        found = param._sharded_param_data.numel()
        if found != numel:
            name = param._module_info.param_name
            text = (
                f"{name} has a shard of {found} elements where {numel} are due"
            )
            raise make_error(INVALID, text)


def _open_storages(state: GroupState, call: dict, plan: GatherPlan) -> None:
    """Gives every parameter the memory that its shards land in."""
    params, stream = call["fsdp_params"], call["all_gather_stream"]
    if state.device.queued:
        if state.home is None:
            state.group._tide_home = Landing(state.device, state.group)
        state.home.move(state.comm, state.mode == "slot_reuse")
        slot = state.home.is_slot
        ahead = not call["async_op"] and (slot or not in_backward())
        state.home.open(params, plan, stream, ahead)
        return
    fresh = not any(param.all_gather_outputs for param in params)
    if fresh and state.mode == "slot_reuse":
        home = Home(state.comm, params, plan.sizes, plan.dtypes)
        home.wrap_post_backward(state.group)
        state.group._tide_home = home
    ranks = len(state.comm.ranks)
    for param, numel, dtype in zip(
        params, plan.numels, plan.dtypes, strict=True
    ):
        param.init_all_gather_outputs([numel], [dtype], ranks, param.device)
        param.alloc_all_gather_outputs()


def _landed(state: GroupState, request: Any, call: dict) -> Any:
    """The event of a GPU's all-gather; the host keeps the request for it."""
    device, stream = state.device, call["all_gather_stream"]
    if not device.queued:
        return None
    if call["async_op"]:  # the stream is the compute stream, and goes on
        stream = device.landed
    device.await_phase(request, "done", stream)
    request.close()
    return stream.record_event()


def _make_result(state, request, plan: GatherPlan, call: dict) -> TideResult:
    known = {
        "all_gather_output": state.device.empty(),
        "all_gather_event": _landed(state, request, call),
        "all_gather_work": request if call["async_op"] else None,
        "param_all_gather_input_dtypes": [[dtype] for dtype in plan.dtypes],
        "param_all_gather_input_numels": [[numel] for numel in plan.numels],
        "all_gather_input_split_sizes": list(plan.numels),
    }
    for field_name in AllGatherResult._fields:
        if field_name not in AllGatherResult._field_defaults:
            known.setdefault(field_name, None)
    result = TideResult(**known)
    result.state, result.params = state, list(call["fsdp_params"])
    result.request = None if state.device.queued else request
    result.finished = False
    return result
