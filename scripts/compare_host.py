"""Compares tide-perf on this machine with the simulator's laptop-host.

    scripts/compare_host.py [MACHINE]

Prints measured medians, predictions and errors for both collectives on 2 and 4
virtual nodes of 2 ranks: medians over several passes, since virtual machines
change their speed. The machine should be idle, and its numbers those of
machines/laptop-host.json: another machine needs a file of its own.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tree import ROOT

BUILD = Path(os.environ.get("TIDE_BUILD", ROOT / "build"))
SIZES = "2M,4M,8M,16M"
PASSES = 5


def run_json(tool: str, *words: object) -> dict:
    """What the tool writes with --json."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [BUILD / tool, *map(str, words), "--json", file.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.load(open(file.name))


def times(result: dict) -> list[float]:
    return [row["time_ms"] for row in result["rows"]]


def measure(words: list[object]) -> list[float]:
    """The median over passes, of each size."""
    if "rs" in words:
        words = [*words, "--mode", "in-place"]
    passes = [times(run_json("tide-perf", *words)) for _ in range(PASSES)]
    return [statistics.median(same) for same in zip(*passes, strict=True)]


def compare(op: str, nodes: int, machine: str) -> None:
    words = ["--op", op, "--local", 2, "--bytes", SIZES]
    measured = measure([*words, "--ranks", 2 * nodes])
    words += ["--nodes", nodes, "--sim", machine, "--variant", "tide"]
    simulated = times(run_json("tide-plan", *words))
    sizes = SIZES.split(",")
    for size, real, ms in zip(sizes, measured, simulated, strict=True):
        print(
            f"{op:>4} {nodes:5} {size:>5} {real:9.2f} {ms:9.2f} "
            f"{100 * (ms / real - 1):+6.1f}%",
            flush=True,
        )


def main() -> int:
    machine = sys.argv[1] if len(sys.argv) > 1 else "laptop-host"
    print("  op nodes bytes  measured simulated  error")
    for op in ("ag", "rs"):
        for nodes in (2, 4):
            compare(op, nodes, machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
