"""Find modules of `libs` and `services` that import one another in a circle.

    python -m tools.import_cycles      exit 1 if there is a circle, and print its modules

Every import counts: those at the top, those inside functions, and those under `TYPE_CHECKING`. A
circle is broken by moving what both sides need to a module of its own, or by a Protocol.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("libs", "services")


def modules_of(root: Path) -> dict[str, Path]:
    """Return the files of the modules below `root`, by the modules' full names."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules, among those given, that one names in its imports, wherever they stand."""
    for node in ast.walk(ast.parse(modules[module].read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            below = [f"{node.module}.{each.name}" for each in node.names]
            names = [each if each in modules else node.module for each in below]
        yield from (name for name in names if name in modules and name != module)


def cycle(root: Path) -> list[str]:
    """Return the modules of one circle, each imported by the next; none if there is no circle."""
    modules = modules_of(root)
    sorter = TopologicalSorter({each: sorted(imports_of(each, modules)) for each in modules})
    try:
        sorter.prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def main() -> int:
    """Print a circle; return 1 if there is one."""
    found = cycle(ROOT)
    if found:
        print(f"import cycle: {' <- '.join(found)}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
