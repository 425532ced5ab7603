"""Checks that the pages' links lead somewhere, that docs/README.md lists every
page, and that the picture in docs/architecture.md has the folders of src/."""

import re
import sys
from pathlib import Path

from tree import C_SUFFIXES, ROOT, report, source_files, where

LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def link_faults(page: Path) -> list[str]:
    return [
        f"{where(page)}: no such file: {target}"
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]


def index_faults() -> list[str]:
    docs = ROOT / "docs"
    listed = LINK.findall((docs / "README.md").read_text())
    return [
        f"docs/README.md does not list {page.name}"
        for page in sorted(docs.glob("*.md"))
        if page.name not in [*listed, "README.md"]
    ]


def tree_faults() -> list[str]:
    folders = {
        where(path.parent)
        for path in source_files(*C_SUFFIXES)
        if path.is_relative_to(ROOT / "src")
    }
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawn = set(re.findall(r"^    (src/\S+)", page, re.MULTILINE))
    missing = [f"docs/architecture.md lacks {f}" for f in folders - drawn]
    extra = [f"docs/architecture.md names {f}" for f in drawn - folders]
    return sorted(missing + extra)


def main() -> int:
    faults = tree_faults() + index_faults()
    for page in source_files(".md"):
        faults += link_faults(page)
    return report(faults)


if __name__ == "__main__":
    sys.exit(main())
