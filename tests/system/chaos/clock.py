"""A wall clock of the cluster's own, which everything preloads that is not a static binary."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NS = 1_000_000_000
SOURCE = Path(__file__).with_name("clock.c")
LIBRARY, FILE = "clock.so", "now"
NO_COMPILER = "no C compiler for the clock of its own"


class Clock:
    """The clock in `folder`, by how much it differs from the machine's.

    The bus server is a static binary and keeps the machine's: two clocks that differ.
    """

    def __init__(self, folder: Path) -> None:
        """Build what is preloaded; without a compiler `works` is False."""
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        self.folder = folder
        compiler = shutil.which("cc")
        self.works = compiler is not None
        if compiler is not None:
            command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(folder / LIBRARY)]
            subprocess.run([*command, str(SOURCE)], check=True)
        self.set(0)

    def environment(self, seen_at: Path) -> dict[str, str]:
        """Return what a process needs that sees the folder at `seen_at`."""
        if not self.works:
            return {}
        return {"LD_PRELOAD": str(seen_at / LIBRARY), "CHAOS_CLOCK": str(seen_at / FILE)}

    def set(self, offset_s: int) -> None:
        """Let it be `offset_s` off."""
        # In place and in one write: every process has the file mapped.
        file = os.open(self.folder / FILE, os.O_WRONLY | os.O_CREAT, 0o644)
        os.pwrite(file, (offset_s * NS).to_bytes(8, sys.byteorder, signed=True), 0)
        os.close(file)
