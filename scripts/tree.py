"""The files of the source tree: what git tracks or would track."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
C_SUFFIXES = (".c", ".h", ".cu", ".cuh")


def source_files(*suffixes: str) -> list[Path]:
    """Files with one of the suffixes (all files if none), sorted."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = [ROOT / name for name in listing.split("\0") if name]
    return sorted(
        path
        for path in paths
        if path.is_file() and (not suffixes or path.suffix in suffixes)
    )


def where(path: Path) -> str:
    """A path as messages show it: relative to the root."""
    return str(path.relative_to(ROOT))


def report(faults: list[str]) -> int:
    """Prints faults, one a line; the exit code of a check."""
    for fault in faults:
        print(fault)
    return 1 if faults else 0
