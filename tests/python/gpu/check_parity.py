"""Training with tide equals training with stock FSDP2, on GPUs.

Usage, under torchrun: check_parity.py SET [JSON]. SET is "two" (2 ranks, bit
equal), "few" (a part of it, for TIDE_DEBUG_DELAY), "four" (4 ranks, equal
within rounding) or "rails" (a part of that, for TIDE_LOCAL_SIZE=2).
"""

import sys
from dataclasses import asdict

import ranks_on_gpu
import tide.comm
import tide.fsdp
import torch
import torch.distributed as dist
import training
from training import Case

MODES = ("in_place", "slot_reuse")
WIDE = {"width": 256, "hidden": 1024}  # blocks beyond the small ones

# Bit-equal to stock, with two ranks.
EXACT = {
    "fp32": Case(),
    "bf16": Case(bf16=True),
    "wide_fp32": Case(**WIDE),
    "wide_bf16": Case(bf16=True, steps=6, **WIDE),
    "frozen_and_unused": Case(bf16=True, frozen=True, unused=True),
    "accumulate": Case(bf16=True, accumulate="sync"),
    "accumulate_no_sync": Case(bf16=True, accumulate="no_sync", **WIDE),
    "accumulate_no_sync_fp32": Case(accumulate="no_sync"),
    "reshard": Case(bf16=True, reshard=True),
    "no_reshard": Case(bf16=True, reshard=False),
    "keep_in_backward": Case(
        bf16=True, keep_in_backward=True, accumulate="no_sync"
    ),
    "prefetch": Case(bf16=True, prefetch=True, **WIDE),
    "shared": Case(bf16=True, shared=True),
    "meta": Case(bf16=True, meta=True),
    "state_dict": Case(bf16=True, reload=True),
    "checkpoint": Case(bf16=True, checkpoint=True, **WIDE),
    "evaluate": Case(bf16=True, evaluate=True),
    "two_forwards": Case(bf16=True, forwards=2, **WIDE),
    "divide_by_4": Case(bf16=True, divide=4.0),
    "force_sum": Case(bf16=True, force_sum=True, divide=4.0),
    "shard_dim_1": Case(bf16=True, shard_dim=1, width=8, hidden=12),
    "everything": Case(
        bf16=True,
        frozen=True,
        unused=True,
        accumulate="no_sync",
        prefetch=True,
        checkpoint=True,
        evaluate=True,
        forwards=2,
        reload=True,
    ),
}

# Equal within rounding, with two ranks.
CLOSE = {
    "divide_by_3": Case(divide=3.0),
    "reduce_bf16": Case(bf16=True, reduce=torch.bfloat16, **WIDE),
    "reduce_default": Case(bf16=True, reduce=None),
    "reduce_fp16": Case(bf16=True, reduce=torch.float16),
}

FEW = (
    "fp32",
    "wide_bf16",
    "accumulate_no_sync",
    "no_reshard",
    "prefetch",
    "checkpoint",
    "two_forwards",
    "everything",
)

# With four ranks, within rounding.
FOUR = {
    "bf16": Case(bf16=True),
    "wide_bf16": Case(bf16=True, **WIDE),
    "hsdp": Case(mesh=(2, 2), bf16=True),
    "hsdp_no_sync": Case(mesh=(2, 2), bf16=True, accumulate="no_sync"),
    "hsdp_no_all_reduce": Case(
        mesh=(2, 2), bf16=True, accumulate="no_all_reduce"
    ),
    "reshard_to_2": Case(reshard=2, bf16=True),
}


def check_case(case: Case, exact: bool) -> dict:
    reports = training.compare(case, MODES, exact)
    found = {}
    for mode, report in reports.items():
        check_report(report, case, mode)
        gathers = [group["all_gather"] for group in report["groups"]]
        reduces = [group["reduce_scatter"] for group in report["groups"]]
        found[mode] = {
            "gathers": sum(path["calls"] for path in gathers),
            "stock_gathers": sum(path["stock_calls"] for path in gathers),
            "reduces": sum(path["calls"] for path in reduces),
            "stock_reduces": sum(path["stock_calls"] for path in reduces),
            "slot_calls": sum(path["slot_calls"] for path in reduces),
            "comm": report["comms"][0],
        }
    return found


def check_report(report: dict, case: Case, mode: str) -> None:
    """Every group went tide's way, except where the table says stock."""
    first = report["groups"][0]["all_gather"]["reason"]
    assert report["mode"] == mode, report["mode_reason"] or first
    for group in report["groups"]:
        gather, reduce = group["all_gather"], group["reduce_scatter"]
        assert gather["path"] == "tide" and gather["calls"] > 0, group
        if case.reduce is torch.float16 and case.bf16:
            assert reduce["reason"] == "reduction in float16", group
            continue
        assert reduce["path"] == "tide" and reduce["calls"] > 0, group
        assert reduce["stock_calls"] == 0, group
        if isinstance(case.reshard, bool) or case.reshard is None:
            assert gather["stock_calls"] == 0, group


def main() -> None:
    which, out = sys.argv[1], next(iter(sys.argv[2:]), None)
    device = ranks_on_gpu.start()
    training.DEVICE = device.type
    # Uninitialised memory reads as NaN, unless tide or FSDP2 wrote it.
    torch.use_deterministic_algorithms(True, warn_only=True)
    cases = {name: (case, True) for name, case in EXACT.items()}
    cases |= {name: (case, False) for name, case in CLOSE.items()}
    if which == "few":
        cases = {name: cases[name] for name in FEW}
    if which in ("four", "rails"):
        cases = {name: (case, False) for name, case in FOUR.items()}
    if which == "rails":
        cases = {name: cases[name] for name in ("bf16", "wide_bf16")}
    results = {"set": which, "ranks": dist.get_world_size(), "checks": {}}
    results["failures"] = []
    for name, (case, exact) in cases.items():
        ranks_on_gpu.attempt(
            name, results, lambda c=case, e=exact: check_case(c, e)
        )
        results["checks"][name]["case"] = {
            key: str(value) for key, value in asdict(case).items()
        }
    tide.comm.close_all()
    ranks_on_gpu.finish(out, results)


if __name__ == "__main__":
    main()
