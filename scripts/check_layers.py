"""Checks the dependency order between the folders of src/.

A folder includes only itself and the folders named for it below. Names of a
concrete backend appear in that backend and in src/exec/backend_list.c, nowhere
else in src/.
"""

import re
import sys
from pathlib import Path

from tree import C_SUFFIXES, ROOT, report, source_files, where

MAY_INCLUDE = {
    "base": set(),
    "layout": {"base"},
    "topo": {"base", "layout"},
    "plan": {"base", "layout", "topo"},
    "algo": {"base", "layout", "topo", "plan"},
    "exec": {"base", "layout", "topo", "plan", "algo"},
    "node": {
        *("base", "layout", "topo", "plan"),
        # The table, the communicator it serves, and how ranks agree.
        *("exec/backend.h", "exec/comm.h", "exec/meet.h"),
    },
    "backend": {
        *("base", "layout", "topo", "plan", "node"),
        *("exec/backend.h", "exec/comm.h", "exec/meet.h"),
    },
    "sim": {"base", "layout", "topo", "plan", "algo"},
}
BACKEND_LIST = "src/exec/backend_list.c"

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def home_of(path: Path) -> str:
    """The layer a file belongs to: "plan", or "backend/host"."""
    parts = path.relative_to(ROOT / "src").parts
    return "/".join(parts[:2]) if parts[0] == "backend" else parts[0]


def include_fault(home: str, header: str) -> str | None:
    """Why a file of `home` may not include `header`; None if it may."""
    if header.startswith("."):
        return "relative include; name the folder"
    folder = header.split("/")[0]
    if "/" not in header or header.startswith(home + "/"):
        return None
    allowed = MAY_INCLUDE[home.split("/")[0]]
    if folder in allowed or header in allowed:
        return None
    return f"src/{home} may not include {header}"


def backend_name_fault(home: str, text: str, backends: list[str]) -> str | None:
    """Names a concrete backend that a file outside it mentions."""
    for name in backends:
        named = re.search(rf"\btdi_(backend_)?{name}(_|\b)", text)
        if named and home != f"backend/{name}":
            return f"names the backend {name}: {named.group(0)}"
    return None


def faults_of(path: Path, backends: list[str]) -> list[str]:
    home = home_of(path)
    name = where(path)
    if home.split("/")[0] not in MAY_INCLUDE:
        return [f"{name}: src/{home} is not in the order of folders"]
    text = path.read_text()
    found = [include_fault(home, header) for header in INCLUDE.findall(text)]
    if name != BACKEND_LIST:
        found.append(backend_name_fault(home, text, backends))
    return [f"{name}: {fault}" for fault in found if fault]


def main() -> int:
    folder = ROOT / "src" / "backend"
    backends = sorted(p.name for p in folder.iterdir() if p.is_dir())
    faults = []
    for path in source_files(*C_SUFFIXES):
        if path.is_relative_to(ROOT / "src"):
            faults += faults_of(path, backends)
    return report(faults)


if __name__ == "__main__":
    sys.exit(main())
