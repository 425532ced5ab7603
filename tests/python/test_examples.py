"""The examples that need nothing but tide, as they are run by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
MODES = ["in_place", "slot_reuse"]


def run(script: str, *arguments: str) -> str:
    """What it prints, on two ranks."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    here = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launch, "--nproc-per-node=2", str(EXAMPLES / script), *arguments],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **here},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_minimal():
    printed = run("minimal.py")
    assert "loss 0.0" in printed and "rank 0 of 2" in printed
    assert printed.count("tide ") == 5 and "stock" not in printed


@pytest.mark.parametrize("steps, budget, found", [(2, 600, 2), (1000, 1, 1)])
def test_loss_curves(tmp_path, steps, budget, found):
    """As many steps as asked for; what there is time for, at least one."""
    run(
        "loss_curves.py",
        f"--steps={steps}",
        f"--budget={budget}",
        f"--out={tmp_path}",
    )
    results = json.loads((tmp_path / "loss_curves.json").read_text())
    assert list(results) == ["llama", "qwen3"]
    for entry in results.values():
        runs = entry["runs"]
        assert list(runs) == ["stock", "stock again", *MODES]
        for run_ in runs.values():
            assert len(run_["loss"]) == found and run_["step_ms"] > 0
        for mode in MODES:  # two ranks: sums are exact
            assert runs[mode]["loss"] == runs["stock"]["loss"]
            assert entry["largest_difference"][mode] == 0
    assert [p.name for p in tmp_path.glob("*.part")] == []
