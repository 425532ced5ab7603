"""Puts the parts of bench/gpu_fsdp.sh together and prints their tables.

Usage: gpu_table.py FOLDER JSON. FOLDER holds `table`, a line a part (name,
seconds, exit code), and a NAME.json of each that got that far.
"""

import json
import sys
from pathlib import Path

MEMORY = ("peak_allocated", "peak_reserved", "held", "gpu_used")  # MiB
TIMES = {  # a step, in milliseconds
    "step ms": "step_ms",
    "exposed ms": "exposed_ms",
    "host ms": "host_ms_per_step",
    "without waits": "host_ms_without_waits",
}
COLUMNS = ("mode", *TIMES, "arena MiB", *MEMORY)


def read_part(folder: Path, line: str) -> tuple[str, dict]:
    name, seconds, code = line.split()
    path = folder / f"{name}.json"
    results = json.loads(path.read_text()) if path.exists() else None
    return name, {"seconds": seconds, "exit": code, "results": results}


def print_parts(parts: dict[str, dict]) -> None:
    print(f"\n{'part':<16} {'seconds':>8} {'exit':>8}")
    for name, part in parts.items():
        print(f"{name:<16} {part['seconds']:>8} {part['exit']:>8}")
        for failure in (part["results"] or {}).get("failures", []):
            lines = failure.strip().splitlines()
            print(f"    {lines[0].split(':')[0]}: {lines[-1]}")


def step_row(result: dict) -> tuple[str, ...]:
    comm = result.get("tide", {}).get("comm", {})
    memory = [f"{result['memory'].get(key, 0):.0f}" for key in MEMORY]
    return (
        result["mode"],
        *(f"{result[key]:.1f}" for key in TIMES.values()),
        f"{comm.get('arena_bytes', 0) / 2**20:.0f}",
        *memory,
    )


def print_steps(parts: dict[str, dict]) -> None:
    rows = [
        step_row(part["results"])
        for name, part in parts.items()
        if name.startswith("step_") and part["results"]
    ]
    for row in [COLUMNS, *rows] if rows else []:
        print("".join(f"{cell:>15}" for cell in row))


def main() -> int:
    folder, out = map(Path, sys.argv[1:])
    lines = (folder / "table").read_text().splitlines()
    parts = dict(read_part(folder, line) for line in lines)
    print_parts(parts)
    print_steps(parts)
    out.write_text(json.dumps({"parts": parts}, indent=1) + "\n")
    good = [part["exit"] == "0" for part in parts.values()]
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
