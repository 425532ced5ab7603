"""Times both collectives on this machine: what docs/performance.md shows.

Runs tide-perf on 4 ranks, as 2 virtual nodes of 2 and as one node, against the
flat path on the same transport, prints its tables and leaves their JSON twins
in build/bench. Usage: run.py [--quick]
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("TIDE_BUILD", ROOT / "build"))
RANKS = 4
SIZES = ["1M", "2M", "4M", "8M", "16M", "32M", "64M"]
GROUPS = {"llama3.1-8b": 4, "qwen3-30b-a3b": 16, "tiny": 1}


def run(op: str, local: int, name: str, *what: str) -> bool:
    """One table; True if its data was right."""
    out = BUILD / "bench" / f"{op}-{RANKS // local}x{local}-{name}.json"
    command = [str(BUILD / "tide-perf"), "--op", op, "--backend", "host"]
    command += ["--ranks", str(RANKS), "--local", str(local), *what]
    command += ["--baseline", "flat", "--json", str(out)]
    print(f"\n$ {' '.join(command[1:])}", flush=True)
    return subprocess.run(command).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    quick = parser.parse_args().quick
    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    sizes = ",".join(SIZES[:3] if quick else SIZES)
    right = True
    for op in ("ag", "rs"):
        for local in (2, 4):
            right &= run(op, local, "sizes", "--bytes", sizes)
        for group, scale in GROUPS.items():
            what = ("--group", group, "--scale", str(scale))
            right &= run(op, 2, group, *what)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
