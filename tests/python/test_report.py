"""The report: scope, reasons, numbers, memory."""

import json
import logging

import pytest
import tide.comm
import tide.fsdp
import torch
from probes import Sum, shard
from torch import nn
from training import Case, make_model, run_step, train

MODES = ["in_place", "slot_reuse"]


def run_scope(mode):
    """Only the blocks; the rest is stock, with one log line a collective."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("tide").addHandler(handler)
    logging.getLogger("tide").setLevel(logging.INFO)
    case = Case(bf16=True)
    model = make_model(case)
    tide.fsdp.enable(
        model, mode, select=lambda name: name.startswith("blocks.")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = [run_step(model, case, step, optimizer) for step in range(3)]
    logging.getLogger("tide").removeHandler(handler)
    stock = train(case, None)
    assert losses == stock.losses
    return (
        lines,
        tide.fsdp.report(model).to_dict(),
        str(tide.fsdp.report(model)),
    )


@pytest.mark.parametrize("mode", MODES)
def test_scope(pools, mode):
    for lines, report, text in pools(2).run(run_scope, mode):
        assert lines == [
            "all-gather of (root) goes stock: not selected",
            "reduce-scatter of (root) goes stock: not selected",
        ]
        json.dumps(report)
        paths = {g["name"]: g["all_gather"]["path"] for g in report["groups"]}
        assert paths.pop("(root)") == "stock"
        assert paths == {f"blocks.{i}": "tide" for i in range(3)}
        assert "(root): all-gather stock: not selected" in text
        assert "blocks.2" in text and mode in text


def run_numbers(mode):
    tide.comm.close_all()  # a communicator that only this model uses
    case = Case(bf16=True, steps=2)
    ours = train(case, mode)
    report = tide.fsdp.report(ours.model)
    tide.fsdp.disable(ours.model)
    return report.to_dict()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks, local", [(2, 0), (4, 2)])
def test_numbers_of_the_report(pools, ranks, local, mode):
    pool = pools(ranks, TIDE_LOCAL_SIZE=str(local))
    (report, *_) = pool.run(run_numbers, mode)
    block = next(g for g in report["groups"] if g["name"] == "blocks.0")
    gather, reduce = block["all_gather"], block["reduce_scatter"]
    # norm 7+7, up 13x7+13, down 7x13+7; 4 bytes less in bf16, rows padded
    rows = {13: -(-13 // ranks) * ranks, 7: -(-7 // ranks) * ranks}
    padded = 2 * rows[7] + rows[13] * 8 + rows[7] * 14
    assert gather["calls"] == 4 and gather["bytes"] == 4 * padded * 2
    assert reduce["calls"] == 2 and reduce["bytes"] == 2 * padded * 2
    assert reduce["slot_calls"] == (2 if mode == "slot_reuse" else 0)
    assert gather["ms"] > 0 and reduce["ms"] > 0 and block["setup_ms"] > 0
    assert (
        sum(p["bytes"] for p in block["params"]) == (14 + 13 * 8 + 7 * 14) * 2
    )
    assert (gather["rail_bytes"] > 0) == (local > 0)
    assert report["slot_bytes"] == 0  # all resharded after backward
    check_buffers(report)


def check_buffers(report: dict) -> None:
    """The communicator's scratch is the largest plan's of each direction."""
    largest = [
        max(group[kind]["buffer_bytes"] for group in report["groups"])
        for kind in ("all_gather", "reduce_scatter")
    ]
    assert report["buffer_bytes"] == sum(largest) > 0


def run_reasons():
    model = make_model(Case(bf16=True))
    tide.fsdp.enable(model, select=lambda name: name == "blocks.0")
    report = tide.fsdp.report(model)
    few = str(report)
    report.groups += report.groups[2:] * 2
    return few, str(report)


def test_groups_share_a_line_for_a_reason(pools):
    for few, many in pools(2).run(run_reasons):
        names = "(root), blocks.1, blocks.2"
        assert few.endswith(
            f"\n{names}: all-gather stock: not selected"
            f"\n{names}: reduce-scatter stock: not selected"
        )
        assert f"{names}, blocks.1 and 3 more: all-gather stock" in many


def run_table_of_a_gpu():
    """As the report of a communicator that queues looks."""
    model = make_model(Case(bf16=True))
    tide.fsdp.enable(model, "in_place")
    report = tide.fsdp.report(model)
    report.comms[0].update(queued=True, backend="cuda", arena_bytes=5 << 20)
    report.groups[1].reduce_scatter.staged_bytes = 3 << 20
    return str(report)


def test_table_of_a_gpu(pools):
    for text in pools(2).run(run_table_of_a_gpu):
        assert "backend cuda" in text and "arena 5.0 MiB" in text
        assert "slots" not in text and "ms: of the host" in text
        assert "\n3.00 MiB of gradients were not in the arena" in text


def run_memory_of_slots():
    model = shard(nn.Sequential(Sum(64, 32)))
    inner = model[0]
    tide.fsdp.enable(model, "slot_reuse")
    held = []
    model.forward = lambda x: inner(x)
    for _ in range(2):
        loss = model(torch.ones(64, 32))
        held.append(tide.fsdp.report(model).slot_bytes)
        loss.backward()
        held.append(tide.fsdp.report(model).slot_bytes)
    return held


def test_slots_are_empty_when_parameters_are_sharded(pools):
    for first, second, third, fourth in pools(2).run(run_memory_of_slots):
        assert first == third >= 64 * 32 * 4  # the root stays unsharded
        assert second == fourth == 0
