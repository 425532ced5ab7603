"""Runs the C tests and the Python tests and counts both (`make test`).

The last line is "N passed, N failed, N skipped" over everything. Exit 1 if a
test failed, or if a runner stopped before it wrote its results.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tree import ROOT

BUILD = Path(os.environ.get("TIDE_BUILD", ROOT / "build"))
PYTHON_TESTS = ["tests/python", "tests/cli"]


def run_ctest(results: Path) -> int:
    return subprocess.run(
        [
            "ctest",
            "--progress",
            "--output-on-failure",
            "--output-junit",
            str(results),
        ],
        cwd=BUILD,
    ).returncode


def run_pytest(results: Path) -> int:
    environment = dict(
        os.environ, PYTHONPATH=str(BUILD / "python"), TIDE_BUILD=str(BUILD)
    )
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            f"--junitxml={results}",
            *PYTHON_TESTS,
        ],
        cwd=ROOT,
        env=environment,
    ).returncode


def outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    # What ctest could not start it calls skipped.
    unable = skipped.get("message", "").startswith("Unable to find")
    return "failed" if unable else "skipped"


def count(results: Path, counts: dict[str, int]) -> None:
    for case in ElementTree.parse(results).iter("testcase"):
        counts[outcome(case)] += 1


def main() -> int:
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    broken = False
    for name, run in {"ctest": run_ctest, "pytest": run_pytest}.items():
        results = BUILD / f"{name}.xml"
        results.unlink(missing_ok=True)
        status = run(results)
        if results.exists():
            count(results, counts)
        elif status == 0:
            print(f"{name} wrote no results", file=sys.stderr)
        broken = broken or status != 0 or not results.exists()
    print(", ".join(f"{number} {what}" for what, number in counts.items()))
    return 1 if broken or counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
