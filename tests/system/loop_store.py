"""A store on a disk whose power can be cut: an ext4 file system in a file, mounted by loop.

What a process has written and not synced lives in the page cache above the file system, and a copy
of the file below it does not have it: the copy is what a machine finds after its power failed.
Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

MIB = 1024 * 1024
SIZE_MIB = 512
MEMORY = Path("/dev/shm")
GONE_WITHIN_S = 30.0
LOOK_EVERY_S = 0.02
PROGRAMS = ("mkfs.ext4", "mount", "umount")


class LoopStore:
    """A file system at `folder`/disk; its file lies beside it, or in memory where there is room."""

    def __init__(self, folder: Path, size_mib: int = SIZE_MIB) -> None:
        """Make and mount it. Raises RuntimeError that says what is missing."""
        lacking = [name for name in PROGRAMS if shutil.which(name) is None]
        if os.geteuid() != 0 or lacking:
            needed = f" and {', '.join(lacking)}" if lacking else ""
            text = f"a disk whose power can be cut needs root{needed}"
            raise RuntimeError(text)
        self.path = folder / "disk"
        self.path.mkdir()
        # What counts is what reached the file: that the file is in memory makes it only faster.
        roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 3 * size_mib * MIB
        self._folder = Path(tempfile.mkdtemp(prefix="skep-disk-", dir=MEMORY if roomy else folder))
        self._cuts = 0
        self._image = self._folder / "image-0"
        with self._image.open("wb") as file:
            file.truncate(size_mib * MIB)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()

    def cut(self, pids: Iterable[int]) -> None:
        """Cut the power of everything: of the disk now, and of these processes with it.

        They stand still while the disk is copied, and are killed before the copy takes its place.
        """
        stopped = list(pids)
        for pid in stopped:
            _signal(pid, signal.SIGSTOP)
        self._cuts += 1
        copied = self._folder / f"image-{self._cuts}"
        _run("cp", "--sparse=always", str(self._image), str(copied))
        for pid in stopped:
            _signal(pid, signal.SIGKILL)
        self.unmount()
        self._image.unlink()
        self._image = copied
        self._mount()

    def close(self) -> None:
        """Take it away for good."""
        self.unmount()
        shutil.rmtree(self._folder)

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def unmount(self) -> None:
        """Take it away once nothing uses it any more."""
        deadline = time.monotonic() + GONE_WITHIN_S
        while True:
            done = subprocess.run(["umount", str(self.path)], capture_output=True, check=False)
            if done.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(done.stderr.decode())
            time.sleep(LOOK_EVERY_S)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        text = f"{' '.join(words)}: {done.stderr.strip()}"
        raise RuntimeError(text)
