"""Where gradients and parameters lie on a GPU: in the arena, or not.

Usage, under torchrun: check_pool.py [JSON].
"""

import contextlib
import os
import sys
from dataclasses import replace

import ranks_on_gpu
import tide.comm
import tide.fsdp
import torch
import torch.distributed as dist
import training
from tide._fsdp import arena, internals
from tide._fsdp.landing import storage_of
from training import Case

CASE = Case(bf16=True, width=512, hidden=2048)


def train(mode: str, watch) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Three steps; watch(group, params, grads) sees each reduce-scatter."""
    model = training.make_model(CASE)
    tide.fsdp.enable(model, mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    whole = internals.param_group.foreach_reduce

    def foreach_reduce(params, grads, *args, **kwargs):
        watch(params, grads)
        return whole(params, grads, *args, **kwargs)

    internals.param_group.foreach_reduce = foreach_reduce
    try:
        for step in range(3):
            training.run_step(model, CASE, step, optimizer)
    finally:
        internals.param_group.foreach_reduce = whole
    return model, optimizer


def comm_of(model):
    return tide.comm.get(
        dist.group.WORLD, torch.device("cuda", torch.cuda.current_device())
    )


def staged_bytes(report: dict) -> int:
    paths = [group["reduce_scatter"] for group in report["groups"]]
    return sum(path["staged_bytes"] for path in paths)


def check_in_place() -> dict:
    """Weight gradients come from the arena; next to nothing is staged."""
    grads_seen: list[int] = []
    model, _ = train(
        "in_place",
        lambda params, grads: grads_seen.extend(g.data_ptr() for g in grads),
    )
    native = comm_of(model).native
    inside = [native.owns(address) for address in grads_seen]
    report = tide.fsdp.report(model).to_dict()
    tide.fsdp.disable(model)
    # Biases of the first layer may be summed on the way, weights may not.
    assert sum(inside) >= 0.9 * len(inside), f"{sum(inside)} of {len(inside)}"
    reduced = sum(g["reduce_scatter"]["bytes"] for g in report["groups"])
    assert staged_bytes(report) < 0.1 * reduced, report
    return {
        "inside": sum(inside),
        "of": len(inside),
        "staged": staged_bytes(report),
        "info": native.info(),
    }


def check_slot_reuse() -> dict:
    """Parameters live in the arena, gradients are copied there, and it takes
    no more memory than was foreseen, however many steps there are."""
    model, optimizer = train("slot_reuse", lambda params, grads: None)
    native = comm_of(model).native
    for step in range(3, 12):
        training.run_step(model, CASE, step, optimizer)
    info = native.info()
    found = [group for _name, group in internals.find_groups(model)]
    demand = arena.demand_of(found, dist.get_world_size())
    pool = info["memory_bytes"] - comm_of(model).reserve.nbytes
    # Blocks of less than 10 MiB come in segments of 20 MiB.
    assert pool <= 2 * demand.slots + 60 * arena.MIB, (pool, demand.slots)
    model.unshard()
    groups = [group for _name, group in internals.find_groups(model)]
    inside = [
        native.owns(storage_of(param).data_ptr())
        for group in groups[:1]
        for param in group.fsdp_params
    ]
    model.reshard()
    report = tide.fsdp.report(model).to_dict()
    tide.fsdp.disable(model)
    assert inside and all(inside)
    assert staged_bytes(report) == 0
    for group in report["groups"]:
        reduce = group["reduce_scatter"]
        assert reduce["slot_calls"] == reduce["calls"] > 0, group
    return {"info": info}


def check_full_arena() -> dict:
    """Where the pool has no arena memory, gradients are staged, and right."""
    whole = arena.ArenaPool.using
    arena.ArenaPool.using = lambda self: contextlib.nullcontext()
    try:
        reports = training.compare(CASE, ("in_place", "slot_reuse"))
    finally:
        arena.ArenaPool.using = whole
    staged = {mode: staged_bytes(report) for mode, report in reports.items()}
    assert all(staged.values()), staged
    return staged


def check_parts() -> dict:
    """Accumulated gradients, too many and too wide for the reserve."""
    tide.comm.close_all()
    whole = arena.Demand.reserve
    arena.Demand.reserve = property(lambda self: 512 * arena.KIB)
    try:
        case = replace(CASE, accumulate="no_sync")
        reports = training.compare(case, ("in_place", "slot_reuse"))
    finally:
        arena.Demand.reserve = whole
        tide.comm.close_all()
    staged = {mode: staged_bytes(report) for mode, report in reports.items()}
    assert all(staged.values()), staged
    return staged


def check_auto() -> dict:
    """`auto` takes in_place where gradients fit the arena twice."""
    tide.comm.close_all()
    modes = {}
    for mib in ("", "16"):
        os.environ["TIDE_ARENA_MIB"] = mib
        model = training.make_model(CASE)
        demand = arena.demand_of(
            [group for _name, group in internals.find_groups(model)], 2
        )
        size = demand.total("auto")
        modes[mib] = demand.choose("auto", demand.largest, size)[0]
    del os.environ["TIDE_ARENA_MIB"]
    assert modes == {"": "in_place", "16": "slot_reuse"}, modes
    return modes


def main() -> None:
    training.DEVICE = ranks_on_gpu.start().type
    results: dict = {"checks": {}, "failures": []}
    ranks_on_gpu.attempt("in_place", results, check_in_place)
    ranks_on_gpu.attempt("slot_reuse", results, check_slot_reuse)
    ranks_on_gpu.attempt("full_arena", results, check_full_arena)
    ranks_on_gpu.attempt("parts", results, check_parts)
    ranks_on_gpu.attempt("auto", results, check_auto)
    tide.comm.close_all()
    ranks_on_gpu.finish(next(iter(sys.argv[1:]), None), results)


if __name__ == "__main__":
    main()
