"""The measurements of bench/ that say why they cannot run here."""

import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"


def test_symm_mem_needs_a_gpu():
    done = subprocess.run(
        [sys.executable, str(BENCH / "fsdp_step.py"), "symm_mem"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and not done.stdout
    assert done.stderr == "symm_mem needs a GPU: its memory is NCCL's\n"
