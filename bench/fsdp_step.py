"""Time and memory of a training step with FSDP2 on GPUs, for one mode.

Usage, under torchrun: fsdp_step.py MODE [JSON]. MODE is "stock", "symm_mem"
(stock on NCCL's symmetric memory, see fsdp_symm_mem) or one of tide's. A
Llama-style model, bf16 parameters, fp32 reduction: MODEL in the environment
names its shape ("small", "llama3.1-8b"), LAYERS its depth, BATCH and SEQUENCE
what a rank has of a batch: the larger, the less a step waits for the host. One
process a mode, so that no memory of another is in the figures.

"host_us_per_call" is the host's time in each of FSDP2's collectives. Calls of
tide have the hosts of all ranks wait for one another: "host_us_without_waits"
takes of each call the time of the rank that came last.

With PROFILE=1 in the environment "host_profile" says what the host does in
FSDP2's collectives, from a few more steps.

"exposed_ms" is the time of a step that the compute stream spends in FSDP2's
communication: waits, layout copies, and hosts that are late. It comes from a
few more steps, see fsdp_times.Exposed.
"""

import cProfile
import json
import os
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests/python/gpu")]

import fsdp_symm_mem  # noqa: E402
import fsdp_times  # noqa: E402
import ranks_on_gpu  # noqa: E402
import tide.fsdp  # noqa: E402
from demo_model import LanguageModel, ModelConfig  # noqa: E402

SHAPES = {
    "small": {"dim": 2048, "heads": 16, "kv_heads": 8, "hidden": 5632},
    # Its blocks, with a smaller vocabulary.
    "llama3.1-8b": {"dim": 4096, "heads": 32, "kv_heads": 8, "hidden": 14336},
}
LARGE = ModelConfig(
    vocabulary=32000,
    layers=int(os.environ.get("LAYERS", "12")),
    sequence=int(os.environ.get("SEQUENCE", "1024")),
    **SHAPES[os.environ.get("MODEL", "small")],
)
SMALL = ModelConfig(layers=2, sequence=32)  # where there is no GPU
BATCH = int(os.environ.get("BATCH", "2"))
WARM_UP, STEPS, MARKED_STEPS = 4, 16, 4


def make_model(config: ModelConfig, device) -> torch.nn.Module:
    torch.manual_seed(1)
    with device:
        model = LanguageModel(config)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the whole model was there
    return model


def train(
    model, config: ModelConfig, device, steps: int, after=lambda loss: None
) -> list[float]:
    """Milliseconds of each step; `after` gets each step's loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    shape = (BATCH, config.sequence + 1)
    tokens = torch.randint(config.vocabulary, shape, device=device)
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(
            logits.flatten(0, 1).float(), tokens[:, 1:].flatten()
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        times.append((time.perf_counter() - started) * 1e3)
        after(value)
    return times


def memory(device: torch.device, comm: dict | None) -> dict:
    """MiB. `held` is torch's memory and the arena, from which some of torch's
    is; `gpu_used` is of all ranks on the GPU, their contexts included."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info()
    reserved = held = torch.cuda.max_memory_reserved()
    if comm:
        pools = comm["memory_bytes"] - comm["reserve_bytes"]
        held += comm["arena_bytes"] - pools
    return {
        "peak_allocated": torch.cuda.max_memory_allocated() / 2**20,
        "peak_reserved": reserved / 2**20,
        "held": held / 2**20,
        "gpu_used": (total - free) / 2**20,
    }


def describe(report) -> dict:
    """What tide holds, and what it says it did."""
    data = report.to_dict()
    comm = next(iter(data["comms"]), {})  # none if everything goes stock
    return {"comm": comm, "groups": data["groups"], "text": str(report)}


def enable(mode: str, model, device: torch.device) -> dict:
    """Lets the model communicate as the mode says; what to note of it."""
    if mode == "symm_mem":
        return {"symm_mem_how": fsdp_symm_mem.enable(model, device)}
    if mode != "stock":
        tide.fsdp.enable(model, mode)
    return {}


def main() -> None:
    mode, out = sys.argv[1], next(iter(sys.argv[2:]), None)
    if mode == "symm_mem":
        try:
            fsdp_symm_mem.prepare()
        except RuntimeError as error:
            sys.exit(str(error))
    device = ranks_on_gpu.start()
    config = LARGE if device.type == "cuda" else SMALL
    model = make_model(config, device)
    exposed = fsdp_times.Exposed(device)
    results = {"mode": mode, **enable(mode, model, device)}
    host = fsdp_times.HostTime()
    train(model, config, device, WARM_UP)
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    host.reset()
    dist.barrier()
    losses = []
    times = train(model, config, device, STEPS, losses.append)
    own = host.without_waits()
    results |= {
        "ranks": dist.get_world_size(),
        "layers": config.layers,
        "parameters": sum(p.numel() for p in model.parameters()),
        "step_ms": median(times),
        "step_min_ms": min(times),
        "batch": BATCH,
        "sequence": LARGE.sequence,
        "host_us_per_call": fsdp_times.per_call(host.seconds),
        "host_ms_per_step": fsdp_times.per_step(host.seconds, STEPS),
        "host_us_without_waits": fsdp_times.per_call(own),
        "host_ms_without_waits": fsdp_times.per_step(own, STEPS),
        "loss": losses[-1],
        "failures": [],
    }
    if mode not in ("stock", "symm_mem"):
        results["tide"] = describe(tide.fsdp.report(model))
        if not results["tide"]["comm"]:
            reason = results["tide"]["groups"][0]["all_gather"]["reason"]
            results["failures"].append(f"{mode}: went stock: {reason}")
    comm = results.get("tide", {}).get("comm")
    results["memory"] = memory(device, comm)
    exposed.on = True
    train(model, config, device, MARKED_STEPS, lambda _loss: exposed.end_step())
    exposed.on = False
    results["exposed_ms"] = exposed.milliseconds()
    if os.environ.get("PROFILE"):
        host.profile = cProfile.Profile()
        train(model, config, device, MARKED_STEPS)
        results["host_profile"] = fsdp_times.costliest(host.profile, 50)
        host.profile = None
    if dist.get_rank() == 0:
        ranks_on_gpu.write(out, results)  # a profiler may fail
    if mode == "symm_mem":
        results["symm_mem_kernels"] = fsdp_symm_mem.kernels_of(
            lambda: train(model, config, device, 1)
        )
    if dist.get_rank() == 0:
        long = ("tide", "host_profile")
        brief = {k: v for k, v in results.items() if k not in long}
        print(json.dumps(brief), flush=True)
    ranks_on_gpu.finish(out, results)


if __name__ == "__main__":
    main()
