"""Checks the text of every file: width, blanks, unfinished or foreign marks."""

import re
import sys
from pathlib import Path

from tree import C_SUFFIXES, report, source_files, where

COLUMNS = 80
SOURCE_SUFFIXES = (*C_SUFFIXES, ".py", ".sh", ".cmake")

# The brackets keep this file from matching itself.
FORBIDDEN = {
    "unfinished mark": re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b"),
    "path of somebody's machine": re.compile(r"/(wor[k]|hom[e]|roo[t])/"),
}


def faults_of(path: Path) -> list[str]:
    name = where(path)
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return []  # a picture
    faults = []
    if text and not text.endswith("\n"):
        faults.append(f"{name}: no newline at the end")
    for number, line in enumerate(text.split("\n"), 1):
        at = f"{name}:{number}"
        if len(line) > COLUMNS and path.suffix in SOURCE_SUFFIXES:
            faults.append(f"{at}: {len(line)} columns, at most {COLUMNS}")
        if line != line.rstrip():
            faults.append(f"{at}: blanks at the end of the line")
        for what, pattern in FORBIDDEN.items():
            if pattern.search(line):
                faults.append(f"{at}: {what}: {line.strip()}")
    return faults


def main() -> int:
    faults = []
    for path in source_files():
        if path.name != "LICENSE":
            faults += faults_of(path)
    return report(faults)


if __name__ == "__main__":
    sys.exit(main())
