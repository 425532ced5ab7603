"""Every decision that changes a collective is the same on all ranks."""

import json

import torch
import torch.distributed as dist

from tide import _tide
from tide._fsdp import internals
from tide._fsdp.state import GroupState
from tide.comm import exchange, naming
from tide.errors import INVALID, MISMATCH, make_error


def settle(
    group: dist.ProcessGroup,
    states: list[GroupState],
    mode: str,
    fault: str | None,
) -> None:
    """Compares what the ranks of a shard group are about to enable, and gives
    each group the first reason that any rank has against it.

    Raises tide.Error on all of them if one has a fault (`fault` is ours), or
    if they differ in versions, mode or groups.
    """
    mine = {
        "versions": [_tide.version(), torch.__version__],
        "mode": mode,
        "fault": fault,
        "groups": [state.name for state in states],
        "problems": [[s.gather.problem, s.reduce.problem] for s in states],
    }
    data = json.dumps(mine).encode()
    with naming(group, "tide.fsdp.enable"):
        everyone = [json.loads(theirs) for theirs in exchange(group, data)]
        _check_alike(everyone)
    for i, state in enumerate(states):
        state.gather.problem = _first_problem(everyone, i, 0)
        state.reduce.problem = _first_problem(everyone, i, 1)


def _check_alike(everyone: list[dict]) -> None:
    for rank, theirs in enumerate(everyone):
        if theirs["fault"]:
            raise make_error(INVALID, f"rank {rank}: {theirs['fault']}")
        for key in ("versions", "mode", "groups"):
            if theirs[key] != everyone[0][key]:
                text = (
                    f"ranks differ in {key}: rank 0 has {everyone[0][key]}, "
                    f"rank {rank} {theirs[key]}"
                )
                raise make_error(MISMATCH, text)


def _first_problem(everyone: list[dict], state: int, which: int) -> str | None:
    for rank, theirs in enumerate(everyone):
        problem = theirs["problems"][state][which]
        if problem:
            alone = any(not t["problems"][state][which] for t in everyone)
            return f"rank {rank}: {problem}" if alone else problem
    return None


def check_inputs_once(
    state: GroupState, params: list, group: dist.ProcessGroup
) -> None:
    """Before a group's first all-gather with fsdp_pre_all_gather hooks: do
    the hooks return equal sizes everywhere? Stock notices on some ranks only,
    and the others wait for them. Raises tide.Error on every rank."""
    if state.inputs_checked:
        return
    state.inputs_checked = True
    hooked = [p for p in params if _has_hook(p)]
    if not hooked or state.group.device.type != "cpu":
        return
    data = json.dumps(_hook_sizes(hooked)).encode()
    with naming(group, f"all-gather of group '{state.name}'"):
        everyone = [json.loads(theirs) for theirs in exchange(group, data)]
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0] or "fault" in theirs:
                text = (
                    f"fsdp_pre_all_gather differs: rank 0 has {everyone[0]}, "
                    f"rank {rank} {theirs}"
                )
                raise make_error(MISMATCH, text)


def _has_hook(param) -> bool:
    return hasattr(param._sharded_local_tensor, "fsdp_pre_all_gather")


def _hook_sizes(params: list) -> dict:
    try:
        inputs = internals.collectives._get_param_all_gather_inputs(params)
    except Exception as error:  # any error of the user's hook
        return {"fault": f"{type(error).__name__}: {error}"}
    return {
        param._module_info.param_name: [t.numel() for t in tensors]
        for param, tensors in zip(params, inputs, strict=True)
    }
