"""Training with tide equals training with stock FSDP2."""

import pytest
import torch
from training import Case, compare, replace

CASES = {
    "plain": Case(),
    "frozen": Case(frozen=True),
    "unused": Case(unused=True),
    "frozen_and_unused": Case(frozen=True, unused=True),
    "accumulate": Case(accumulate="sync"),
    "accumulate_no_sync": Case(accumulate="no_sync"),
    "reshard": Case(reshard=True),
    "no_reshard": Case(reshard=False),
    "no_reshard_in_backward": Case(keep_in_backward=True, accumulate="no_sync"),
    "prefetch": Case(prefetch=True),
    "shared": Case(shared=True),
    "meta": Case(meta=True),
    "state_dict": Case(reload=True),
    "checkpoint": Case(checkpoint=True),
    "evaluate": Case(evaluate=True),
    "two_forwards": Case(forwards=2),
    "two_forwards_no_reshard": Case(forwards=2, reshard=False),
    "divide": Case(force_sum=True, divide=3.0),
    "everything": Case(
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


def check_paths(reports: dict) -> None:
    """Every group went tide's way, at least once in each direction."""
    for mode, report in reports.items():
        assert report["mode"] == mode
        for group in report["groups"]:
            assert group["all_gather"]["path"] == "tide", group
            assert group["all_gather"]["calls"] > 0
            assert group["reduce_scatter"]["path"] == "tide", group
            assert group["reduce_scatter"]["calls"] > 0
            landing = "slot" if mode == "slot_reuse" else "storage"
            assert group["landing"] == landing


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_are_bit_equal(pools, name, bf16):
    case = replace(CASES[name], bf16=bf16)
    for reports in pools(2).run(compare, case):
        check_paths(reports)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["plain", "everything"])
def test_gradients_that_peers_cannot_read(pools, name, bf16):
    """Without process_vm_readv, in_place copies to the arena."""
    case = replace(CASES[name], bf16=bf16)
    for reports in pools(2, TIDE_READV="0").run(compare, case):
        check_paths(reports)
        assert "may not read" in reports["in_place"]["mode_reason"]


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["plain", "everything", "no_reshard"])
@pytest.mark.parametrize("ranks, local", [(3, 0), (4, 0), (4, 2), (8, 4)])
def test_more_ranks_are_equal_within_rounding(pools, ranks, local, name, bf16):
    pool = pools(ranks, TIDE_LOCAL_SIZE=str(local))
    case = replace(CASES[name], bf16=bf16)
    for reports in pool.run(compare, case, ("in_place", "slot_reuse"), False):
        check_paths(reports)
        comm = reports["in_place"]["comms"][0]
        assert comm["nodes"] == (ranks // local if local else 1)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shard_dim", [1])
def test_shard_dim_1(pools, shard_dim, bf16):
    case = Case(shard_dim=shard_dim, width=8, hidden=12, bf16=bf16)
    for reports in pools(2).run(compare, case):
        check_paths(reports)


@pytest.mark.parametrize("mode", ["in_place", "slot_reuse"])
def test_reshard_to_fewer_ranks(pools, mode):
    """reshard_after_forward=2 of 4: the backward's all-gather is stock, into
    the same storages."""
    case = Case(reshard=2, bf16=True)
    reports = pools(4).run(compare, case, (mode,), False)
    for report in reports:
        for group in report[mode]["groups"]:
            assert group["all_gather"]["calls"] > 0
            assert group["all_gather"]["stock_calls"] > 0
            assert "reshard_after_forward=int" in group["all_gather"]["reason"]


@pytest.mark.parametrize("accumulate", ["", "no_sync", "no_all_reduce"])
def test_hsdp(pools, accumulate):
    case = Case(mesh=(2, 2), accumulate=accumulate, bf16=True)
    for reports in pools(4).run(
        compare, case, ("in_place", "slot_reuse"), False
    ):
        check_paths(reports)
        assert reports["in_place"]["comms"][0]["ranks"] == 2


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, None], ids=["bf16", "default"]
)
def test_reduction_in_bf16(pools, dtype):
    """tide adds in fp32 and rounds once, so it is equal within bf16."""
    case = Case(bf16=True, reduce=dtype)
    for reports in pools(3).run(
        compare, case, ("in_place", "slot_reuse"), False
    ):
        check_paths(reports)


def test_reduction_in_fp16_is_stock(pools):
    case = Case(bf16=True, reduce=torch.float16)
    for reports in pools(2).run(compare, case):
        for group in reports["in_place"]["groups"]:
            assert group["all_gather"]["path"] == "tide"
            assert group["reduce_scatter"]["path"] == "stock"
            assert group["reduce_scatter"]["reason"] == "reduction in float16"
            assert group["reduce_scatter"]["stock_calls"] > 0
