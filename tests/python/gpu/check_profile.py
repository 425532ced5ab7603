"""What the profiler sees: layout copies in stock FSDP2, none with tide.

Usage, under torchrun: check_profile.py [JSON].
"""

import sys

import ranks_on_gpu
import tide.comm
import tide.fsdp
import torch
import training
from torch.profiler import ProfilerActivity, profile
from training import Case

# In names of operators and of kernels.
LAYOUT = ("split_with_sizes_copy", "chunk_cat", "all_gather_copy_in")
CONCATENATE = ("CatArray", "aten::cat")
CASE = Case(bf16=True, width=256, hidden=1024)


def names_of(mode: str | None) -> set[str]:
    """Names of what two steps run, after one that is not looked at."""
    model = training.make_model(CASE)
    if mode:
        tide.fsdp.enable(model, mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    training.run_step(model, CASE, 0, optimizer)
    activities = [ProfilerActivity.CPU]
    if training.DEVICE == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with profile(activities=activities) as profiler:
        for step in (1, 2):
            training.run_step(model, CASE, step, optimizer)
        if training.DEVICE == "cuda":
            torch.cuda.synchronize()
    if mode:
        tide.fsdp.disable(model)
    return {event.name for event in profiler.events()}


def found_in(names: set[str], parts: tuple[str, ...]) -> list[str]:
    return sorted(n for n in names if any(part in n for part in parts))


def check(mode: str | None) -> dict:
    names = names_of(mode)
    layout = found_in(names, LAYOUT)
    cats = found_in(names, CONCATENATE)
    if mode is None:
        for part in LAYOUT:
            assert found_in(names, (part,)), f"stock shows no {part}: {names}"
    else:
        assert not layout and not cats, layout + cats
    return {
        "layout": layout,
        "cats": cats,
        "tide_kernels": found_in(names, ("tide_",)),
    }


def main() -> None:
    training.DEVICE = ranks_on_gpu.start().type
    results: dict = {"checks": {}, "failures": []}
    for mode in (None, "in_place", "slot_reuse"):
        ranks_on_gpu.attempt(mode or "stock", results, lambda m=mode: check(m))
    tide.comm.close_all()
    ranks_on_gpu.finish(next(iter(sys.argv[1:]), None), results)


if __name__ == "__main__":
    main()
