"""Trains a small transformer with FSDP2 on 4 ranks, stock and with tide.

The ranks are processes of this machine, as two virtual nodes of two. Every
run starts from the same weights, sees the same text and has fresh processes.
Prints one table and writes demo.json and demo.png into the build folder.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

from demo_model import ModelConfig
from demo_plot import draw
from demo_worker import ALIGNED_STEPS, BATCH

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("TIDE_BUILD", ROOT / "build"))
MODES = ["stock", "in_place", "slot_reuse"]
RANKS = 4
LOCAL_SIZE = 2
WARM_UP = 3  # steps that the times leave out
TOKENS = RANKS * BATCH * ModelConfig.sequence

# Label, key of a run's results, format.
ROWS = [
    ("final loss", "final_loss", "{:.4f}"),
    ("largest loss difference to stock", "loss_difference", "{:.1e}"),
    ("step, ms (median)", "step_ms", "{:.0f}"),
    ("all-gather with copies, ms a step", "ag_ms", "{:.0f}"),
    ("reduce-scatter with copies, ms a step", "rs_ms", "{:.0f}"),
    ("peak resident memory, MiB, largest rank", "peak_mib", "{:.0f}"),
    ("  sum of ranks (shared pages repeated)", "peak_sum_mib", "{:.0f}"),
    ("communication buffers, MiB a rank", "buffer_mib", "{:.1f}"),
]


def start_rank(
    mode: str, rank: int, steps: int, folder: Path
) -> subprocess.Popen:
    paths = [str(BUILD / "python"), os.environ.get("PYTHONPATH", "")]
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(filter(None, paths)),
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
        TIDE_LOCAL_SIZE=str(LOCAL_SIZE),
    )
    worker = Path(__file__).with_name("demo_worker.py")
    arguments = [mode, rank, RANKS, steps, folder]
    return subprocess.Popen(
        [sys.executable, str(worker), *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        stderr=(folder / f"rank{rank}.log").open("w"),
        text=True,
    )


def show_progress(mode: str, step: int, steps: int, loss: float) -> None:
    """A bar on a terminal, elsewhere a line now and then."""
    done = 30 * step // steps
    bar = "#" * done + "." * (30 - done)
    line = f"{mode:<10} [{bar}] {step}/{steps} loss {loss:.3f}"
    if sys.stderr.isatty():
        end = "\n" if step == steps else ""
        print(f"\r{line}", end=end, file=sys.stderr, flush=True)
    elif step % 10 == 0 or step == 1:
        print(line, file=sys.stderr, flush=True)


def run_ranks(mode: str, steps: int, folder: Path) -> list[dict]:
    """Trains once; the results of every rank."""
    ranks = [start_rank(mode, rank, steps, folder) for rank in range(RANKS)]
    try:
        for step, line in enumerate(ranks[0].stdout, 1):
            show_progress(mode, step, steps + ALIGNED_STEPS, float(line))
        for rank, process in enumerate(ranks):
            if process.wait():
                log = (folder / f"rank{rank}.log").read_text()
                sys.exit(f"demo: {mode}: rank {rank} failed:\n{log}")
    finally:
        for process in ranks:
            process.kill()
    return [
        json.loads((folder / f"rank{rank}.json").read_text())
        for rank in range(RANKS)
    ]


def summarise(ranks: list[dict]) -> dict:
    """One run's results over its ranks.

    A step takes as long as its slowest rank, and so does a collective. The
    times are medians: of steps over those after warm-up, of collectives over
    the last ones, in which the ranks are aligned before each collective.
    """
    rows = list(zip(*(rank["rows"] for rank in ranks), strict=True))
    steps, aligned = rows[:-ALIGNED_STEPS], rows[-ALIGNED_STEPS:]

    def median_of(key: str, timed: list) -> float:
        return median(max(row[key] for row in step) for step in timed)

    peaks = [rank["peak_mib"] for rank in ranks]
    return {
        "loss": [mean(row["loss"] for row in step) for step in steps],
        "step_ms": median_of("step_ms", steps[WARM_UP:]),
        "ag_ms": median_of("ag_ms", aligned),
        "rs_ms": median_of("rs_ms", aligned),
        "peak_mib": max(peaks),
        "peak_sum_mib": sum(peaks),
        "buffer_mib": max(rank["buffer_mib"] for rank in ranks),
        "tokens_per_step": TOKENS,
    }


def table(results: dict[str, dict]) -> str:
    stock = results["stock"]["loss"]
    width = max(len(label) for label, _, _ in ROWS)
    lines = [" " * width + "".join(f"{mode:>12}" for mode in results)]
    for label, key, form in ROWS:
        cells = []
        for run in results.values():
            pairs = zip(run["loss"], stock, strict=True)
            difference = max(abs(a - b) for a, b in pairs)
            extra = {
                "final_loss": run["loss"][-1],
                "loss_difference": difference,
            }
            cells.append(form.format((run | extra)[key]))
        lines.append(f"{label:<{width}}" + "".join(f"{c:>12}" for c in cells))
    return "\n".join(lines)


def parse_steps() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps",
        type=int,
        default=30,
        help=f"steps of each run, more than {WARM_UP} (default: 30)",
    )
    steps = parser.parse_args().steps
    if steps <= WARM_UP:
        parser.error(f"--steps must be more than {WARM_UP}")
    return steps


def main() -> None:
    steps = parse_steps()
    nodes = RANKS // LOCAL_SIZE
    print(
        f"{RANKS} ranks = {nodes} virtual nodes x {LOCAL_SIZE}, "
        f"{steps} steps of {TOKENS} tokens, bf16 parameters, fp32 reduction"
    )
    results = {}
    report = ""
    for mode in MODES:
        with tempfile.TemporaryDirectory() as folder:
            ranks = run_ranks(mode, steps, Path(folder))
        results[mode] = summarise(ranks)
        report = ranks[0]["report"]
    print(f"\n{table(results)}\n\nreport of rank 0, {MODES[-1]}:\n{report}")
    (BUILD / "demo.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results, BUILD / "demo.png")
    print(f"\nwrote {BUILD / 'demo.json'} and {BUILD / 'demo.png'}")


if __name__ == "__main__":
    main()
