"""Small disks of their own for the bus and the agents: to be filled, to stall, and to lose power.

Each store is an ext4 image behind a loop device, mounted at a folder of the cluster's home. The
mounts live in this process's own mount namespace and end with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

from skep.units import MIB

BALLAST = ".ballast"
STEP_BYTES = 256 * 1024
UNMOUNTED_WITHIN_S = 10.0


class Store:
    """One disk, of `size` bytes, mounted at `folder`; its image lies at `image`."""

    def __init__(self, folder: Path, image: Path, size: int) -> None:
        """Make and mount it; raises subprocess.CalledProcessError without the right to."""
        self.folder, self.image = folder, image
        self._frozen = self._held = False
        self._lock = threading.Lock()
        with image.open("wb") as file:
            file.truncate(size)
        _run("mkfs.ext4", "-q", "-m", "0", str(image))
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.folder))

    def fill(self) -> int:
        """Leave no byte free; return how many were. Nothing is done to a frozen disk."""
        with self._lock:
            # Without the mount it would be the machine's own disk that is filled. On a frozen one
            # the write would wait for `thaw`, which would wait for the lock.
            return 0 if self._frozen or not os.path.ismount(self.folder) else self._fill()

    def _fill(self) -> int:
        ballast = os.open(self.folder / BALLAST, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        begin, size = os.fstat(ballast).st_size, STEP_BYTES
        try:
            while size >= 1024:
                try:
                    os.write(ballast, b"\0" * size)
                    os.fsync(ballast)
                except OSError:
                    size //= 2
            return os.fstat(ballast).st_size - begin
        finally:
            os.close(ballast)

    def free(self) -> None:
        """Give the room back."""
        (self.folder / BALLAST).unlink(missing_ok=True)

    def freeze(self) -> None:
        """Have every write wait until `thaw`."""
        with self._lock:
            if not (self._frozen or self._held) and os.path.ismount(self.folder):
                _run("fsfreeze", "-f", str(self.folder))
                self._frozen = True

    def thaw(self) -> None:
        """Let writes go on; harmless if they do."""
        with self._lock:
            self._thaw()

    def _thaw(self) -> None:
        if self._frozen:
            _run("fsfreeze", "-u", str(self.folder))
            self._frozen = False

    def hold(self) -> None:
        """Let writes go on, and keep it so until `restore`: what waits for a disk does not die."""
        with self._lock:
            self._thaw()
            self._held = True

    def snap(self) -> None:
        """Copy what has reached the disk by now: what a power cut at this moment leaves."""
        _run("cp", "--sparse=always", str(self.image), f"{self.image}.cut")

    def restore(self) -> None:
        """Mount what `snap` copied instead. Nothing may use the folder any more."""
        with self._lock:
            self._held = False
            self.unmount()
            shutil.move(f"{self.image}.cut", self.image)
            self._mount()
            # That it was given back may not have reached the disk.
            self.free()

    def unmount(self) -> None:
        """Take it away; raises RuntimeError if a process stays on it."""
        deadline = time.monotonic() + UNMOUNTED_WITHIN_S
        while subprocess.run(
            ["umount", str(self.folder)], capture_output=True, check=False
        ).returncode:
            if time.monotonic() > deadline:
                text = f"{self.folder} is still in use"
                raise RuntimeError(text)
            time.sleep(0.05)


def make_stores(home: Path, folder: Path, sizes: dict[str, int]) -> dict[str, Store]:
    """Return a store for each component, mounted where its state is kept. Sizes in MiB."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        name: Store(home / name, folder / f"{name}.img", size * MIB) for name, size in sizes.items()
    }


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
