"""Loss with stock FSDP2 and with tide: curves that lie on each other.

Trains two small models from random weights on real text, Llama-style and
Qwen3-style, each with stock FSDP2 twice and with tide in both modes. The
second stock run shows how far two equal runs part by themselves: attention's
backward adds in an order that changes.

torchrun --nproc-per-node 2 examples/loss_curves.py --steps 1000 --out FOLDER

prints final losses and largest differences to stock, and writes
loss_curves.json after every run and, where matplotlib is, loss_curves.png at
the end. Every run has --steps steps, unless --budget seconds do not suffice:
then all end as soon as the first, which takes no more than its share. On GPUs
if there are any; ranks may share one, see tests/python/gpu/launch.py for what
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
from statistics import median

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
CHECK = 20  # steps between two looks at the clock, once it is warm
CLOSING_S = 8  # of the budget, for the picture and for leaving
MOST_START_S = 60  # start-up is not believed to take longer


class Budget:
    """Seconds for everything, from the start of torchrun on."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds - CLOSING_S - seconds_so_far()
        self.runs_left = len(MODELS) * len(RUNS)

    def next_end(self) -> float:
        """When the next run has had its share of what is left."""
        now = time.monotonic()
        share = max(self.end - now, 0) / self.runs_left
        self.runs_left -= 1
        return now + share


def seconds_so_far() -> float:
    """Since torchrun, this process's parent, was started."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0.0
    fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2]
    ticks = int(fields.split()[19])
    started = ticks / os.sysconf("SC_CLK_TCK")
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    return min(max(seconds, 0.0), MOST_START_S)


def is_past(end: float) -> bool:
    """Whether it is that late, by rank 0's clock, on all ranks."""
    late = torch.tensor([int(time.monotonic() > end)])
    dist.broadcast(late, 0)
    return bool(late)


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


class Trainer:
    """One run: model, optimizer and the text that its steps see."""

    def __init__(
        self, config: ModelConfig, mode: str | None, text: Tensor, steps: int
    ) -> None:
        self.mode, self.text = mode, text
        self.model = make_model(config, mode)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, fused=text.is_cuda
        )
        self.window = torch.arange(config.sequence + 1, device=text.device)
        starts = make_starts(len(text) - config.sequence - 1, steps)
        self.starts = starts.to(text.device)

    def step(self, step: int) -> Tensor:
        """This rank's loss, on its device."""
        tokens = self.text[self.starts[step][:, None] + self.window]
        logits = self.model(tokens[:, :-1]).float()
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def close(self) -> None:
        if self.mode:
            tide.fsdp.disable(self.model)
        del self.model, self.optimizer
        gc.collect()  # FSDP2's modules and groups refer to each other


def train(
    config: ModelConfig,
    mode: str | None,
    text: Tensor,
    steps: int,
    end: float,
) -> dict:
    """The loss at each step, the mean over ranks, and the median time of a
    step; of fewer steps than asked for if `end` comes before."""
    trainer = Trainer(config, mode, text, steps)
    losses, times, started = [], [], time.perf_counter()
    timed = 0  # of the losses
    for step in range(steps):
        losses.append(trainer.step(step))
        if step < CHECK or step % CHECK == 0 or step + 1 == steps:
            losses[-1].item()  # waits for the GPU
            seconds = time.perf_counter() - started
            times += [seconds / (len(losses) - timed)] * (len(losses) - timed)
            if is_past(end):
                break
            timed, started = len(losses), time.perf_counter()
    trainer.close()
    mean = torch.stack(losses).cpu()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    return {"loss": mean.tolist(), "step_ms": 1e3 * median(times)}


def largest_difference(a: list[float], b: list[float]) -> float:
    """Over the steps that both have."""
    return max(abs(x - y) for x, y in zip(a, b, strict=False))


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
            loss = torch.tensor(run["loss"])
            smooth = loss.unfold(0, min(10, len(loss)), 1).mean(1)
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
    parser.add_argument(
        "--steps", type=int, default=1000, help="of every run (1000)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=600.0,
        help="seconds for all of it, start-up included (600)",
    )
    parser.add_argument("--out", default=".", help="folder of the results")
    parser.add_argument(
        "--draw", help="only draws the results in this loss_curves.json"
    )
    return parser.parse_args()


def describe_run(name: str, runs: dict[str, dict]) -> str:
    run = runs[name]
    text = (
        f"  {name:<12} {len(run['loss'])} steps, final loss "
        f"{run['loss'][-1]:.4f}, {run['step_ms']:.1f} ms a step"
    )
    if name == "stock":
        return text
    difference = summarise(runs)[name]
    return f"{text}, largest difference to stock {difference:.1e}"


def save(results: dict, folder: Path) -> None:
    """Whatever ends the script in the middle, the file is whole."""
    draft = folder / "loss_curves.json.part"
    draft.write_text(json.dumps(results) + "\n")
    draft.replace(folder / "loss_curves.json")


def run_all(text: Tensor, steps: int, budget: Budget, folder: Path) -> dict:
    results: dict[str, dict] = {}
    first = dist.get_rank() == 0
    for model, config in MODELS.items():
        runs: dict[str, dict] = {}
        results[model] = {"runs": runs, "largest_difference": {}}
        if first:
            print(model, flush=True)
        for name, mode in RUNS.items():
            runs[name] = train(config, mode, text, steps, budget.next_end())
            steps = min(steps, len(runs[name]["loss"]))
            results[model]["largest_difference"] = summarise(runs)
            if first:
                print(describe_run(name, runs), flush=True)
                save(results, folder)
    return results


def main() -> None:
    arguments = parse()
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.draw:
        results = json.loads(Path(arguments.draw).read_text())
        draw(results, folder / "loss_curves.png")
        return
    budget = Budget(arguments.budget)
    text = read_text().to(start()).long()
    results = run_all(text, arguments.steps, budget, folder)
    if dist.get_rank() == 0 and importlib.util.find_spec("matplotlib"):
        draw(results, folder / "loss_curves.png")
    tide.comm.close_all()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
