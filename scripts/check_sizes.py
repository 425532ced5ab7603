"""Checks that files and functions stay small enough to read.

A file has at most 500 lines, a function at most 90 (aim for far less).
C functions are found by the format that clang-format keeps: `{` and `}` of a
function body stand alone in the first column.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tree import C_SUFFIXES, report, source_files, where

FILE_LINES = 500
FUNCTION_LINES = 90


def c_functions(lines: list[str]) -> Iterator[tuple[int, int]]:
    """First line (1-based) and length of each function body."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            yield start, number - start + 1
            start = None


def python_functions(text: str) -> Iterator[tuple[int, int]]:
    """First line and length of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.end_lineno - node.lineno + 1


def faults_of(path: Path) -> list[str]:
    text = path.read_text()
    lines = text.splitlines()
    name = where(path)
    faults = []
    if len(lines) > FILE_LINES:
        faults.append(f"{name}: {len(lines)} lines, at most {FILE_LINES}")
    is_python = path.suffix == ".py"
    functions = python_functions(text) if is_python else c_functions(lines)
    for line, length in functions:
        if length > FUNCTION_LINES:
            faults.append(
                f"{name}:{line}: function of {length} lines, "
                f"at most {FUNCTION_LINES}"
            )
    return faults


def main() -> int:
    faults = []
    for path in source_files(*C_SUFFIXES, ".py"):
        faults += faults_of(path)
    return report(faults)


if __name__ == "__main__":
    sys.exit(main())
