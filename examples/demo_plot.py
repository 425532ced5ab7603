"""The demo's picture: loss curves and what a step's time is made of."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

RUN_COLORS = {
    "stock": "#444444",
    "in_place": "#0b7fab",
    "slot_reuse": "#e07b39",
}
RUN_STYLES = {"stock": "-", "in_place": "--", "slot_reuse": ":"}
PART_COLORS = {
    "all-gather": "#0b7fab",
    "reduce-scatter": "#e07b39",
    "compute, waits": "#c9ced3",
}


def draw(results: dict[str, dict], path: Path) -> None:
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.2), width_ratios=(1.25, 1), layout="constrained"
    )
    draw_losses(left, results)
    draw_step_times(right, results)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_losses(axes: Axes, results: dict[str, dict]) -> None:
    for width, (name, run) in zip(
        (3.5, 2.2, 2.2), results.items(), strict=True
    ):
        axes.plot(
            range(1, len(run["loss"]) + 1),
            run["loss"],
            color=RUN_COLORS[name],
            linestyle=RUN_STYLES[name],
            linewidth=width,
            alpha=0.5 if name == "stock" else 1,
            label=name,
        )
    axes.set(xlabel="step", ylabel="loss, nats a byte", title="Loss")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)


def draw_step_times(axes: Axes, results: dict[str, dict]) -> None:
    names = list(results)
    bottom = [0.0] * len(names)
    for part, color in PART_COLORS.items():
        heights = [step_parts(run)[part] for run in results.values()]
        bars = axes.bar(
            names, heights, 0.6, bottom=bottom, color=color, label=part
        )
        axes.bar_label(bars, fmt="%.0f", label_type="center", fontsize=9)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    for x, total in enumerate(bottom):
        axes.text(
            x, total, f"{total:.0f}", ha="center", va="bottom", weight="bold"
        )
    axes.set(ylabel="ms", title="Time of a step (median)")
    axes.set_ylim(top=max(bottom) * 1.25)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False, ncols=3, loc="upper center", fontsize=8.5)


def step_parts(run: dict) -> dict[str, float]:
    return {
        "all-gather": run["ag_ms"],
        "reduce-scatter": run["rs_ms"],
        "compute, waits": run["step_ms"] - run["ag_ms"] - run["rs_ms"],
    }
