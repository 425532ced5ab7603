"""One rank of one run of the demo: trains, measures, writes its results.

Usage: demo_worker.py MODE RANK RANKS STEPS FOLDER
MODE is "stock" or one of tide's modes.
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from demo_data import Batches
from demo_meter import Barrier, CollectiveTimer, StockBuffers, peak_rss_mib
from demo_model import LanguageModel, ModelConfig
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

SEED = 1
BATCH = 1
ALIGNED_STEPS = 8


def make_model(config: ModelConfig) -> nn.Module:
    """The same weights on every rank and in every run, then sharded."""
    torch.manual_seed(SEED)
    model = LanguageModel(config)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def train(
    model: nn.Module, batches: Batches, steps: int, barrier: Barrier
) -> list[dict]:
    """Trains; what each step took and its loss on this rank's batch. More
    steps follow with aligned ranks, for the times of the collectives."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    timer = CollectiveTimer(barrier)
    rows = []
    for step in range(steps + ALIGNED_STEPS):
        timer.align = step >= steps
        rows.append(train_step(model, batches, optimizer, timer))
        print(rows[-1]["loss"], flush=True)  # the parent shows progress
    return rows


def train_step(model, batches, optimizer, timer: CollectiveTimer) -> dict:
    start = time.perf_counter()
    inputs, targets = batches.next()
    logits = model(inputs).float()
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step_ms = (time.perf_counter() - start) * 1e3
    return {"loss": loss.item(), "step_ms": step_ms, **timer.take()}


def run_mode(mode: str, rank: int, steps: int, barrier: Barrier) -> dict:
    config = ModelConfig()
    model = make_model(config)
    batches = Batches(rank, BATCH, config.sequence, SEED)
    if mode == "stock":
        buffers = StockBuffers()
        rows = train(model, batches, steps, barrier)
        buffer_bytes = buffers.peak
    else:
        import tide.fsdp

        tide.fsdp.enable(model, mode=mode)
        rows = train(model, batches, steps, barrier)
        report = tide.fsdp.report(model)
        buffer_bytes = report.to_dict()["buffer_bytes"]
    return {
        "rows": rows,
        "peak_mib": peak_rss_mib(),
        "buffer_mib": buffer_bytes / 2**20,
        "report": "" if mode == "stock" else str(report),
    }


def main() -> None:
    mode, rank, ranks, steps, folder = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=int(rank),
        world_size=int(ranks),
        timeout=timedelta(seconds=120),
    )
    barrier = Barrier(Path(folder, "barrier"), int(rank), int(ranks))
    result = run_mode(mode, int(rank), int(steps), barrier)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
