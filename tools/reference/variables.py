"""Whether the page of environment variables names each variable of the code."""

from __future__ import annotations

import re
from pathlib import Path

NAME = re.compile(r"\bSKEP_[A-Z0-9_]*[A-Z0-9]\b")
ROW = re.compile(r"^\| `(SKEP_\w+)` \|", re.MULTILINE)
FOLDERS = ("libs", "services", "benchmarks", "scripts", "tools", "compose")
"""What has to be on the page. Tests also name variables that they make up."""
SUFFIXES = (".py", ".sh", ".yaml", ".yml", "")


def problems(root: Path, page: str) -> list[str]:
    """Return what is wrong with the page: names that it lacks, or has twice or for nothing."""
    code = _names(root, FOLDERS)
    anywhere = code | _names(root, ("tests",))
    rows = ROW.findall(page)
    return [
        *(f"{name} is not on the page" for name in sorted(code - set(rows))),
        *(f"{name} occurs nowhere in the code" for name in sorted(set(rows) - anywhere)),
        *(f"{name} is there twice" for name in sorted(set(rows)) if rows.count(name) > 1),
    ]


def _names(root: Path, folders: tuple[str, ...]) -> set[str]:
    return {
        name
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.suffix in SUFFIXES and path.is_file() and "__pycache__" not in path.parts
        for name in NAME.findall(path.read_text(encoding="utf-8", errors="replace"))
    }
