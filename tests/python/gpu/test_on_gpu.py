"""The GPU checks under pytest; skipped where there is no GPU."""

import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import launch  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch sees no CUDA GPU"
)

CHECKS = {
    "parity": (2, "check_parity.py", "two", {}),
    "delayed": (2, "check_parity.py", "few", {"TIDE_DEBUG_DELAY": "2000"}),
    "four_ranks": (4, "check_parity.py", "four", {}),
    "rails": (4, "check_parity.py", "rails", {"TIDE_LOCAL_SIZE": "2"}),
    "fault_in_place": (2, "check_fault.py", "in_place", {}),
    "fault_slot_reuse": (2, "check_fault.py", "slot_reuse", {}),
    "pool": (2, "check_pool.py", "", {}),
    "profile": (2, "check_profile.py", "", {}),
}


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, tmp_path):
    ranks, script, first, extra = CHECKS[name]
    arguments = [part for part in (first, str(tmp_path / "out.json")) if part]
    code = launch.run(ranks, str(HERE / script), arguments, 240, extra)
    assert code == 0
