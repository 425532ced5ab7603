"""tide for FSDP2: direct-landing all-gather, unpacked reduce-scatter.

    fully_shard(model, ...)
    tide.fsdp.enable(model)

A parameter group that tide cannot serve goes PyTorch's own way, the same on
all ranks; `report` says which and why. docs/fsdp2.md has the support table.
"""

import logging
import warnings
from collections.abc import Callable

import torch.distributed as dist
from torch import nn

from tide import comm as comms
from tide import errors
from tide._fsdp import agree, arena, device, internals, patch, support
from tide._fsdp.gather import TideAllGather
from tide._fsdp.reduce import TideReduceScatter
from tide._fsdp.report import (
    GroupReport,
    ParamReport,
    PathReport,
    Report,
    make_report,
)
from tide._fsdp.router import ROUTER
from tide._fsdp.state import GroupState
from tide._tide import Error

__all__ = [
    "GroupReport",
    "ParamReport",
    "PathReport",
    "Report",
    "disable",
    "enable",
    "report",
]

MODES = ("auto", "in_place", "slot_reuse")
NOT_SELECTED = "not selected"

log = logging.getLogger("tide")


def enable(
    model: nn.Module,
    mode: str = "auto",
    *,
    select: Callable[[str], bool] | None = None,
) -> None:
    """Lets tide carry the collectives of a model, after ``fully_shard``.

    Collective: every rank calls it, with the same arguments, between
    iterations. ``mode`` says where peers read gradients: "in_place", where
    autograd left them; "slot_reuse", in the memory of the resharded
    parameters, one local copy; "auto" takes in_place where the kernel lets
    peers read, and on a GPU where a group's gradients fit the arena twice.
    ``select(name)`` picks modules by name, the root by "(root)"; others stay
    stock. Where tide can serve nothing, training goes on as before, and one
    rank warns.

    Raises ValueError for an unknown mode or a model without ``fully_shard``;
    tide.Error, on all ranks, when another owner has set a group's
    communication (TIDE_ERR_INVALID), when ranks differ (TIDE_ERR_MISMATCH),
    when one does not come (TIDE_ERR_PEER), or when a GPU has no room for the
    arena (TIDE_ERR_MEMORY).
    """
    if mode not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    found = internals.find_groups(model)
    if not found:
        raise ValueError("no module of this model has been through fully_shard")
    states = [GroupState(name, group) for name, group in found]
    fault = _fault(states)
    environment = _environment_problem()
    _judge(states, environment, select)
    for group, members in _by_shard_group(states):
        agree.settle(group, members, mode, fault)
        _connect(group, members, mode)
        if environment is None and group.rank() == 0:
            _warn_if_idle(members, group.size())
    if fault:  # no rank to tell
        raise errors.make_error(errors.INVALID, f"tide.fsdp.enable: {fault}")
    for state in states:
        _attach(state, dispatch=environment is None)


def disable(model: nn.Module) -> None:
    """Gives the model's collectives back to PyTorch, between iterations.

    Local. Parameters that live in slots stay there, which PyTorch's
    collectives do not notice. Raises tide.Error in the middle of an
    iteration; a model that is not enabled is left alone.
    """
    states = _states(model)
    for state in states:
        if state.group._all_gather_result is not None:
            text = f"tide.fsdp.disable: {state.name} has an unshard under way"
            raise errors.make_error(errors.INVALID, text)
    for state in states:
        _detach(state)


def report(model: nn.Module) -> Report:
    """What has been done so far. Local; raises ValueError if the model was
    never enabled."""
    states = _states(model)
    if not states:
        raise ValueError("tide.fsdp.enable has not been called on this model")
    return make_report(states)


def _states(model: nn.Module) -> list[GroupState]:
    groups = (group for _name, group in internals.find_groups(model))
    return [g._tide_state for g in groups if hasattr(g, "_tide_state")]


def _fault(states: list[GroupState]) -> str | None:
    """What makes enabling an error, on this rank."""
    for state in states:
        if hasattr(state.group, "_tide_state"):
            return f"{state.name} is enabled already; disable it first"
        conflict = support.conflict(state.group)
        if conflict:
            return f"{state.name}: {conflict}"
    return None


def _environment_problem() -> str | None:
    problem = patch.foreign_patch() or support.environment_problem(
        patch.originals()
    )
    if problem:
        warnings.warn(f"tide: everything goes stock: {problem}", stacklevel=3)
    return problem


def _judge(states: list[GroupState], environment: str | None, select) -> None:
    """This rank's reasons against each collective of each group."""
    kinds = {state.group.device.type for state in states}
    allocators = {kind: support.allocator_problem(kind) for kind in kinds}
    for state in states:
        group = state.group
        both = (
            environment
            or support.group_problem(group)
            or allocators[group.device.type]
        )
        if not both and select is not None and not select(state.name):
            both = NOT_SELECTED
        state.gather.problem = both or support.gather_problem(group)
        state.reduce.problem = both or support.reduce_problem(group)


def _by_shard_group(
    states: list[GroupState],
) -> list[tuple[dist.ProcessGroup, list[GroupState]]]:
    """The process groups whose ranks have to agree, and what they share. Not
    those that no rank could serve, for reasons that all ranks see."""
    found: dict[tuple, tuple[dist.ProcessGroup, list]] = {}
    for state in states:
        if support.group_problem(state.group) is not None:
            continue
        group = state.group.mesh_info.shard_process_group
        ranks = tuple(dist.get_process_group_ranks(group))
        key = (ranks, state.group.device.type)
        found.setdefault(key, (group, []))[1].append(state)
    return list(found.values())


def _connect(
    group: dist.ProcessGroup, states: list[GroupState], mode: str
) -> None:
    """Gives the groups that are to be served their communicator."""
    served = [s for s in states if not (s.gather.problem and s.reduce.problem)]
    if not served:
        return
    where = served[0].group.device
    asked: tuple = ()
    one_machine = where.type == "cpu" or comms.on_one_machine(group)
    groups = [state.group for state in served]
    demand = arena.demand_of(groups, group.size(), one_machine)
    if where.type != "cpu":
        asked = (where, demand.total(mode), demand.reserve)
    try:
        comm = comms.get(group, *asked)
    except Error as error:
        if error.status != errors.UNSUPPORTED:
            raise
        for state in served:
            state.gather.problem = state.reduce.problem = str(error)
        return
    for state in served:
        state.comm, state.device = comm, device.get(where)
    _set_modes(served, mode, demand)


def _warn_if_idle(states: list[GroupState], ranks: int) -> None:
    """Says the first reason why nothing of what was asked for is tide's."""
    asked = [s for s in states if s.gather.problem != NOT_SELECTED]
    if asked and all(s.gather.problem and s.reduce.problem for s in asked):
        text = f"all {len(asked)} groups that {ranks} ranks share go stock"
        reason = asked[0].gather.problem
        warnings.warn(f"tide: {text}: {reason}", stacklevel=3)


def _set_modes(
    states: list[GroupState], mode: str, demand: arena.Demand
) -> None:
    """On the host the kernel decides for all, on a GPU the room in the arena
    for each."""
    info = states[0].comm.info
    if not states[0].device.queued:
        chosen = _choose_mode(mode, info["reads_private"])
        for state in states:
            state.mode, state.mode_reason = chosen
        return
    room = states[0].comm.reserve.nbytes
    for state in states:
        size = arena.unsharded_bytes(state.group)
        if size and not room and not state.reduce.problem:
            state.reduce.problem = (
                "the arena has no room for gradients that are not in it; see "
                "TIDE_ARENA_MIB"
            )
        state.mode, state.mode_reason = demand.choose(
            mode, size, info["arena_bytes"]
        )


def _choose_mode(mode: str, reads_private: bool) -> tuple[str, str]:
    if mode == "auto":
        if reads_private:
            return "in_place", "auto: peers may read gradients where they lie"
        return "slot_reuse", "auto: peers may not read this process's memory"
    if mode == "in_place" and not reads_private:
        reason = (
            "peers may not read this process's memory; gradients are copied"
        )
        warnings.warn(f"tide: in_place: {reason}", stacklevel=5)
        return mode, reason
    return mode, "as asked"


def _attach(state: GroupState, dispatch: bool) -> None:
    group = state.group
    group._tide_state = state
    for kind, path in (
        ("all-gather", state.gather),
        ("reduce-scatter", state.reduce),
    ):
        if path.problem:
            log.info("%s of %s goes stock: %s", kind, state.name, path.problem)
    if dispatch:
        group._all_gather_comm = TideAllGather(state)
        group._reduce_scatter_comm = TideReduceScatter(state)
        patch.install(state)
        if (
            state.device.queued
            and state.mode == "in_place"
            and not state.reduce.problem
        ):
            ROUTER.wrap(state)


def _detach(state: GroupState) -> None:
    group = state.group
    if isinstance(group._all_gather_comm, TideAllGather):
        group._all_gather_comm = internals.DefaultAllGather()
    if isinstance(group._reduce_scatter_comm, TideReduceScatter):
        group._reduce_scatter_comm = internals.DefaultReduceScatter()
    if state.unwrap is not None:
        state.unwrap()
    if state.comm is not None and not state.comm.failed:
        state.comm.drain()
    patch.remove(state)
    del group._tide_state
