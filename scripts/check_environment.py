"""Checks that docs/environment.md holds the table that the code uses.

`check_environment.py --write` replaces the table in the page by the one that
`tide-perf --env` prints.
"""

import os
import subprocess
import sys

from tree import ROOT, report

PAGE = ROOT / "docs" / "environment.md"


def table_of_code() -> list[str]:
    program = f"{os.environ.get('TIDE_BUILD', ROOT / 'build')}/tide-perf"
    output = subprocess.run(
        [program, "--env"], check=True, capture_output=True, text=True
    ).stdout
    return table_lines(output)


def table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def write(table: list[str]) -> None:
    lines = PAGE.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rest = [line for line in lines if not line.startswith("|")]
    PAGE.write_text("\n".join(rest[:first] + table + rest[first:]) + "\n")


def main() -> int:
    table = table_of_code()
    if sys.argv[1:] == ["--write"]:
        write(table)
    if table and table_lines(PAGE.read_text()) == table:
        return 0
    return report(
        [
            "docs/environment.md differs from tide-perf --env; "
            "run scripts/check_environment.py --write"
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
