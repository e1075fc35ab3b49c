"""Which program simulates: results that are kept are of one text of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import skep
import skep_lab

PACKAGES = (skep, skep_lab)
"""What decides, and what the simulated world does."""


def digest(counts: Callable[[str], bool] = lambda _: True) -> bytes:
    """Return a digest of the text of the scheduler and of the laboratory.

    Args:
        counts: Whether a file counts, by its path, as `skep/units.py`.
    """
    found = hashlib.sha256()
    for package in PACKAGES:
        folder = Path(package.__path__[0])
        for file in sorted(folder.rglob("*.py")):
            path = file.relative_to(folder.parent).as_posix()
            if counts(path):
                found.update(path.encode() + b"\0" + file.read_bytes())
    return found.digest()
