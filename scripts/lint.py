"""Runs every check of the source tree and says which failed (`make lint`).

Output of a check appears only when it fails. Exit 1 if any did.
"""

import subprocess
import sys
from pathlib import Path

from tree import C_SUFFIXES, ROOT, source_files

BIN = Path(sys.executable).parent


def checks() -> dict[str, list]:
    """Name and command line of every check, in the order they run."""
    c_files = source_files(*C_SUFFIXES)
    own = ["layers", "sizes", "text", "docs", "environment"]
    return {
        "clang-format": [
            BIN / "clang-format",
            "--dry-run",
            "-Werror",
            *c_files,
        ],
        "ruff check": [BIN / "ruff", "check", "--quiet"],
        "ruff format": [BIN / "ruff", "format", "--check", "--quiet"],
        **{
            f"check_{name}": [sys.executable, f"scripts/check_{name}.py"]
            for name in own
        },
    }


def main() -> int:
    failed = 0
    for name, command in checks().items():
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(f"{name}: {'FAILED' if done.returncode else 'ok'}", flush=True)
        if done.returncode:
            failed += 1
            print(done.stdout)
    print(f"lint: {failed} checks failed" if failed else "lint: ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
