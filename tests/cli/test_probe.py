"""tide-probe without a GPU: its options, and how it says that there is none."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TIDE_BUILD", ROOT / "build")).resolve()


def probe(*words):
    return subprocess.run(
        [BUILD / "tide-probe", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TIDE_CUDA_LIBRARY": "/nowhere/libcuda.so.1"},
    )


def test_list_names_every_experiment():
    run = probe("--list")
    assert run.returncode == 0
    names = {line.split()[0] for line in run.stdout.splitlines()}
    assert {"copy", "sum", "gemm"} <= names


def test_help_lists_options():
    run = probe("--help")
    assert run.returncode == 0
    for option in ["--run", "--ctas", "--chunk", "--gemm", "--json"]:
        assert option in run.stdout


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--run", "copy,nothing"], 'no experiment "nothing"'),
        (["--gemm", "1536x2816"], "not MxNxK"),
        (["--gemm", "0x1x1"], "not MxNxK"),
        (["--ctas", "4,,8"], "--ctas"),
        (["--chunk", "many"], "--chunk"),
        (["--ring", "256K"], "--ring"),
        (["--runs", "1"], "--runs"),
        (["--priority", "middle"], "--priority"),
        (["--bytes", "0"], "--bytes"),
        (["--unknown"], "--unknown"),
    ],
)
def test_usage(words, part):
    run = probe(*words)
    assert run.returncode == 2
    assert part in run.stderr
    assert not run.stdout


def test_says_that_nothing_can_be_measured(tmp_path):
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    report = tmp_path / "report.json"
    run = probe("--run", "copy", "--json", report)
    assert run.returncode == 2
    assert "libcuda" in run.stderr or "without kernels" in run.stderr
    assert '"ok": false' in report.read_text()
