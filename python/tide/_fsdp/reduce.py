"""The reduce-scatter: gradients are read where they lie.

Stock foreach_reduce keeps its work: divide factors, the HSDP all-reduce,
hooks, accumulation. Only its packed input is gone. `allocate` returns an
empty tensor that carries a ticket, the copy-in puts the gradients into the
ticket, and the collective reads them from there. FSDP2 keeps the ticket until
its reduce-scatter's event, so on a GPU gradients live just as long as that.
"""

import functools
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from tide._fsdp import support, wire
from tide._fsdp.internals import ReduceScatter
from tide._fsdp.reserve import Part
from tide._fsdp.router import ROUTER
from tide._fsdp.state import GroupState
from tide.errors import INVALID, make_error

ReduceOp = dist.ReduceOp


class TideReduceScatter(ReduceScatter):
    """Marks a group as tide's; an ordinary reduce-scatter unless a call was
    announced by `reduce`, which is what groups get that go stock."""

    def __init__(self, state: GroupState) -> None:
        self.state = state
        self.call: ReduceCall | None = None
        self.divisor: float | None = None  # of the packed input, in place
        self._started = 0.0

    def allocate(self, size, *, dtype, device) -> torch.Tensor:
        self._started = self._started or time.perf_counter()
        if self.call is not None:
            return self.call.allocate(size, dtype, device)
        tensor = torch.empty(*size, dtype=dtype, device=device)
        if self.divisor is not None:
            tensor._tide_divisor, self.divisor = self.divisor, None
        return tensor

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        if self.call is not None:
            self.call.run(output_tensor, input_tensor, op)
            self.state.reduce.count(self.call.nbytes, self._started)
            return None
        scatter = getattr(
            dist, "reduce_scatter_single", dist.reduce_scatter_tensor
        )
        work = scatter(
            output_tensor, input_tensor, group=group, op=op, async_op=async_op
        )
        self.state.reduce.count_stock(self._started)
        return work

    def end_call(self) -> None:
        self.call, self.divisor, self._started = None, None, 0.0


@dataclass
class ReducePlan:
    """The tide group of some gradients; on a GPU also the parts that are
    reduced one after the other, where that is needed, and their groups."""

    grads: tuple[wire.Param, ...]
    group: Any
    ranks: int
    parts: list[tuple[Part, Any]] | None = None

    @functools.cached_property
    def shards(self) -> list[int]:
        """Elements of each gradient's shards."""
        return [wire.shard_elems(grad, self.ranks) for grad in self.grads]

    def split(self, state: GroupState, grads: list) -> list[tuple[Part, Any]]:
        """The parts, alike on all ranks: one, or as sizes ask for."""
        comm, reserve = state.comm, state.comm.reserve
        votes = comm.info["one_machine"]
        if reserve.takes_whole(comm.native, grads, votes):
            return [(Part(slice(0, len(grads))), self.group)]
        if self.parts is None:
            self.parts = [
                (part, state.native_group(part.params(self.grads, self.ranks)))
                for part in reserve.parts(grads, self.shards, self.ranks)
            ]
        return self.parts

    def bring_in(
        self, state: GroupState, part: Part, grads: list, stream: Any
    ) -> tuple:
        """As Reserve.bring_in, a part of the gradients."""
        reserve, device = state.comm.reserve, state.device
        if part.elems is None:
            mine = grads[part.grads]
            return reserve.bring_in(device, state.comm.native, mine, stream)
        i = part.grads.start
        return reserve.bring_part(
            device, grads[i], part.elems, self.shards[i], self.ranks, stream
        )


@dataclass
class ReduceCall:
    """One reduce-scatter, from its announcement to its output."""

    state: GroupState
    params: list
    plan: ReducePlan
    ranks: int
    grad_dtype: torch.dtype
    divide_factor: float | None
    keep: list[torch.Tensor] | None = None  # gradients that are read in place
    staged: list[torch.Tensor] | None = None  # or their copies in the slot
    copied: Any = None  # the event after which those are complete, on a GPU
    allocations: int = 0

    @property
    def nbytes(self) -> int:
        elements = self.plan.group.out_elems * self.ranks
        return elements * self.grad_dtype.itemsize

    def allocate(self, size, dtype, device) -> torch.Tensor:
        """First the packed input, which is a ticket; then the output."""
        numel = math.prod(size)
        due = self.plan.group.out_elems * (
            self.ranks if self.allocations == 0 else 1
        )
        self.allocations += 1
        if self.allocations > 2 or numel != due:
            text = f"FSDP2 asked for {numel} elements where {due} were due"
            raise make_error(INVALID, text)
        if self.allocations == 2:
            return torch.empty(*size, dtype=dtype, device=device)
        ticket = torch.empty(0, dtype=dtype, device=device)
        ticket._tide_call = self
        return ticket

    def take(self, grads: list[torch.Tensor]) -> None:
        """The gradients, instead of packing them: into the vacated slot if
        there is one, else they stay where they are until peers have read."""
        grads = [grad.contiguous() for grad in grads]
        state, home = self.state, self.state.home
        if (
            state.mode == "slot_reuse"
            and home is not None
            and home.can_stage(state.comm, self.params, grads)
        ):
            self.staged = home.stage(self.params, grads)
            if state.device.queued:
                self.copied = state.device.current().record_event()
            state.reduce.slot_calls += 1
        else:
            self.keep = grads

    def run(self, output: torch.Tensor, ticket: torch.Tensor, op) -> None:
        grads = self.staged or self.keep
        if getattr(ticket, "_tide_call", None) is not self or not grads:
            raise make_error(INVALID, "FSDP2 reduces something else")
        run = self._queue if self.state.device.queued else self._complete
        run(grads, output, self._scale(op))

    def _complete(self, grads: list, output, scale: float) -> None:
        """On the host: returns with the output complete."""
        comm, what = self.state.comm, self.state.describing("reduce-scatter")
        comm.make_room()
        with comm.doing(what):
            addresses = [grad.data_ptr() for grad in grads]
            request = self._start(
                self.plan.group,
                addresses,
                output.data_ptr(),
                output,
                scale,
                None,
            )
            comm.park(request, self.keep, what)
            request.wait("done")
        _drain_after_backward(comm)

    def _queue(self, grads: list, output, scale: float) -> None:
        """On a GPU: in FSDP2's reduce-scatter stream, the current one. What
        follows there runs after peers have read the gradients."""
        device = self.state.device
        stream, out = device.current(), output.data_ptr()
        device.delay(stream)
        with self.state.doing("reduce-scatter"):
            for part, group in self.plan.split(self.state, grads):
                addresses, spans, copied = self.plan.bring_in(
                    self.state, part, grads, stream
                )
                request = self._start(
                    group, addresses, out, output, scale, stream
                )
                device.await_phase(request, "reads", stream)
                read = stream.record_event()
                device.vacate(spans, read)
                device.await_phase(request, "done", stream)
                request.close()
                out += group.out_elems * output.dtype.itemsize
                self.state.reduce.staged_bytes += copied
            if self.staged is not None:
                self.state.home.unstage(self.staged, read)

    def _start(
        self, group, addresses: list[int], out: int, output, scale, stream
    ) -> Any:
        arguments = (
            addresses,
            wire.dtype_name(self.grad_dtype),
            out,
            wire.dtype_name(output.dtype),
            scale,
        )
        return self.state.device.reduce(group, arguments, stream)

    def __del__(self) -> None:
        """In the debug mode, gradients that are let go become NaN."""
        device = self.state.device
        if self.keep and device.queued and device.disturber.on:
            with torch.no_grad():
                for grad in self.keep:
                    grad.fill_(torch.nan)

    def give_back(self, stream: Any) -> None:
        """After an error: the copies in the slot that no collective has let
        go. The reduce-scatter stream may read some of them already."""
        device = self.state.device
        if self.staged and device.queued:
            device.order(stream, device.current())
            self.state.home.unstage(self.staged, stream.record_event())

    def release(self, result: tuple) -> tuple:
        """FSDP2 lets the compute stream wait for the second item, the event
        of the reduce-scatter, before it lets the gradients go. Copies in the
        slot have gates of their own, and the gradients are free already."""
        if self.copied is None:
            return result
        return (result[0], self.copied, *result[2:])

    def _scale(self, op) -> float:
        if op == ReduceOp.AVG:
            return 1.0 / self.ranks
        if op == ReduceOp.SUM:
            return 1.0
        return 1.0 / self.divide_factor  # PREMUL_SUM, which hides its factor


def reduce(stock, call: dict):
    """Replaces foreach_reduce for groups whose comm is TideReduceScatter."""
    comm: TideReduceScatter = call["reduce_scatter_comm"]
    state = comm.state
    _settle_dtypes(call)
    with ROUTER.suspended():
        problem = state.reduce.problem or _call_problem(state, call)
        if problem:
            state.go_stock(state.reduce, problem)
            return _reduce_stock(stock, call, comm)
        ours = comm.call = _announce(state, call)
        try:
            return ours.release(stock(**call))
        finally:
            comm.end_call()
            ours.give_back(call["reduce_scatter_stream"])


def copy_in(stock, call: dict) -> None:
    """Replaces foreach_reduce_scatter_copy_in."""
    packed = call["reduce_scatter_input"]
    ours = getattr(packed, "_tide_call", None)
    if ours is not None:
        with torch.no_grad():
            ours.take(call["unsharded_grads"])
        return
    stock(**call)
    packed.div_(packed._tide_divisor)


def _settle_dtypes(call: dict) -> None:
    """A group that was frozen when FSDP2 settled its dtypes has none. Take
    those of the parameters, or a bf16 sum would pass for the fp32 asked for."""
    params = call["fsdp_params"]
    if call["orig_dtype"] is None and params:
        call["orig_dtype"] = params[0].orig_dtype
        call["reduce_dtype"] = params[0].reduce_dtype


def _call_problem(state: GroupState, call: dict) -> str | None:
    """Why this call goes stock; alike on all ranks."""
    group = call["reduce_scatter_group"]
    if not state.is_served(group):
        return "reduces over another group"
    dtypes = {grad.dtype for grad in call["unsharded_grads"]}
    if len(dtypes) != 1:
        return "gradients of several dtypes"
    dtype = dtypes.pop()
    if state.device.capturing():
        return "in a CUDA graph capture"
    problem = support.dtype_problem(call["reduce_dtype"])
    return problem or support.dtype_problem(dtype)


def _announce(state: GroupState, call: dict) -> ReduceCall:
    """The call that `allocate`, the copy-in and the collective will see."""
    params, dtype = call["fsdp_params"], call["unsharded_grads"][0].dtype
    ranks = len(state.comm.ranks)

    def make() -> ReducePlan:
        grads = tuple(
            wire.gradient(p._orig_size, p.fsdp_placement.dim, ranks, dtype)
            for p in params
        )
        return ReducePlan(grads, state.native_group(grads), ranks)

    with state.doing("reduce-scatter"):
        plan = state.plan(("reduce-scatter", dtype, *params), make)
        if state.reduce.plan is None:
            names = map(wire.dtype_name, (dtype, call["reduce_dtype"] or dtype))
            state.reduce.plan = plan.group.stats("reduce_scatter", *names)
    return ReduceCall(
        state,
        list(params),
        plan,
        ranks,
        dtype,
        call["gradient_divide_factor"],
    )


def _reduce_stock(stock, call: dict, comm: TideReduceScatter):
    """Stock's way. With one rank, stock would divide into a second tensor of
    full size; the packed gradients are divided where they are instead."""
    group, dtype = call["reduce_scatter_group"], call["reduce_dtype"]
    if (
        group is not None
        and group.size() == 1
        and call["all_reduce_group"] is None
        and not call["force_sum_reduction_for_comms"]
        and (dtype or call["unsharded_grads"][0].dtype) in wire.REDUCIBLE
    ):
        comm.divisor = call["gradient_divide_factor"]
        call["gradient_divide_factor"] = None
    try:
        return stock(**call)
    finally:
        comm.end_call()


def _drain_after_backward(comm) -> None:
    """What is parked goes when backward ends, not in the next step."""
    try:
        Variable._execution_engine.queue_callback(comm.drain)
    except RuntimeError:  # not inside backward: a pipeline schedule's call
        comm.drain()
