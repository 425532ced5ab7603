"""Loss with stock FSDP2 and with tide: curves that lie on each other.

Trains two small models from random weights on real text, Llama-style and
Qwen3-style, each with stock FSDP2 twice and with tide in both modes. The
second stock run shows how far two equal runs part by themselves: attention's
backward adds in an order that changes.

torchrun --nproc-per-node 2 examples/loss_curves.py --steps 1000 --out FOLDER

writes loss_curves.json and, where matplotlib is, loss_curves.png. On GPUs if
there are any; ranks may share one, see tests/python/gpu/launch.py for what
NCCL then needs.
"""

import argparse
import gc
import importlib.util
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import tide.comm
import tide.fsdp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from demo_data import read_text
from demo_model import LanguageModel, ModelConfig
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

MODELS = {
    "llama": ModelConfig(
        dim=256, layers=4, heads=4, kv_heads=2, hidden=768, sequence=256
    ),
    "qwen3": ModelConfig(
        dim=256,
        layers=4,
        heads=4,
        kv_heads=2,
        hidden=768,
        sequence=256,
        qk_norm=True,
    ),
}
RUNS = {
    "stock": None,
    "stock again": None,
    "in_place": "in_place",
    "slot_reuse": "slot_reuse",
}
BATCH = 8  # sequences of a rank
PROBE = 20  # steps that the time of all is estimated from


def start() -> torch.device:
    """Joins the other ranks; the device of this one."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    local = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timedelta(seconds=60))
    return device


def make_model(config: ModelConfig, mode: str | None) -> nn.Module:
    torch.manual_seed(1)
    model = LanguageModel(config)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if mode:
        tide.fsdp.enable(model, mode)
    return model


def make_starts(length: int, steps: int) -> Tensor:
    """Where in the text each sequence of this rank begins, step by step."""
    generator = torch.Generator().manual_seed(1000 + dist.get_rank())
    return torch.randint(length, (steps, BATCH), generator=generator)


def train(
    config: ModelConfig, mode: str | None, text: Tensor, steps: int
) -> tuple[list[float], float]:
    """The mean loss over ranks at each step, and the seconds."""
    model = make_model(config, mode)
    fused = text.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    window = torch.arange(config.sequence + 1, device=text.device)
    starts = make_starts(len(text) - config.sequence - 1, steps)
    starts = starts.to(text.device)
    losses, started = [], time.perf_counter()
    for step in range(steps):
        tokens = text[starts[step][:, None] + window]
        logits = model(tokens[:, :-1]).float()
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    mean = torch.stack(losses).cpu()
    seconds = time.perf_counter() - started
    dist.all_reduce(mean)
    if mode:
        tide.fsdp.disable(model)
    del model, optimizer
    gc.collect()  # FSDP2's modules and groups refer to each other
    return (mean / dist.get_world_size()).tolist(), seconds


def steps_within(budget_s: float, asked: int, text: Tensor) -> int:
    """The steps asked for, or those that all runs have time for."""
    config = MODELS["llama"]
    train(config, None, text, 3)
    _losses, seconds = train(config, None, text, PROBE)
    runs = len(MODELS) * len(RUNS)
    fitting = torch.tensor([int(budget_s / (runs * seconds / PROBE))])
    dist.broadcast(fitting, 0)
    return max(min(asked, int(fitting)), PROBE)


def largest_difference(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def summarise(runs: dict[str, dict]) -> dict[str, float]:
    """Each run's largest difference to the first stock run."""
    stock = runs["stock"]["loss"]
    return {
        name: largest_difference(run["loss"], stock)
        for name, run in runs.items()
        if name != "stock"
    }


def draw(results: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    styles = {
        "stock": {"color": "#444444", "linewidth": 3, "alpha": 0.4},
        "stock again": {"color": "#999999", "linewidth": 1.2},
        "in_place": {"color": "#0b7fab", "linewidth": 1.2, "linestyle": "--"},
        "slot_reuse": {"color": "#e07b39", "linewidth": 1.2, "linestyle": ":"},
    }
    figure, axes = plt.subplots(
        1, len(results), figsize=(11, 4.2), layout="constrained", squeeze=False
    )
    for axis, (model, entry) in zip(axes[0], results.items(), strict=True):
        for name, run in entry["runs"].items():
            smooth = torch.tensor(run["loss"]).unfold(0, 10, 1).mean(1)
            axis.plot(smooth.tolist(), label=name, **styles[name])
        axis.set(xlabel="step", ylabel="loss, nats a byte", title=model)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--budget", type=float, default=130.0, help="seconds for all runs"
    )
    parser.add_argument("--out", default=".", help="folder of the results")
    parser.add_argument(
        "--draw", help="only draws the results in this loss_curves.json"
    )
    return parser.parse_args()


def run_model(config: ModelConfig, text: Tensor, steps: int) -> dict:
    runs = {}
    for name, mode in RUNS.items():
        losses, seconds = train(config, mode, text, steps)
        runs[name] = {"loss": losses, "step_ms": 1e3 * seconds / steps}
        if dist.get_rank() == 0:
            print(
                f"  {name:<12} final loss {losses[-1]:.4f}, "
                f"{1e3 * seconds / steps:.1f} ms a step",
                flush=True,
            )
    return {"runs": runs, "largest_difference": summarise(runs)}


def main() -> None:
    arguments = parse()
    folder = Path(arguments.out)
    if arguments.draw:
        results = json.loads(Path(arguments.draw).read_text())
        draw(results, folder / "loss_curves.png")
        return
    device = start()
    text = read_text().to(device).long()
    steps = steps_within(arguments.budget, arguments.steps, text)
    results = {}
    for model, config in MODELS.items():
        if dist.get_rank() == 0:
            print(f"{model}, {steps} steps", flush=True)
        results[model] = run_model(config, text, steps)
    if dist.get_rank() == 0:
        (folder / "loss_curves.json").write_text(json.dumps(results) + "\n")
        if importlib.util.find_spec("matplotlib"):
            draw(results, folder / "loss_curves.png")
        for model, entry in results.items():
            difference = entry["largest_difference"]
            print(f"{model}: largest difference to stock: {difference}")
    tide.comm.close_all()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
