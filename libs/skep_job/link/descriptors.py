"""Descriptors in a process that is not ours: the script may close any, and reuse the number."""

from __future__ import annotations

import os

Identity = tuple[int, int]
"""Device and inode: what a descriptor's number stands for."""

_WAKES_MAX = 4_096
"""Bytes read from a wake pipe at once; more wakes than that only make one more turn."""


def identity(descriptor: int) -> Identity | None:
    """Return what `descriptor` stands for, or None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class WakePipe:
    """Wakes a thread that polls. Used in the process that made it and in no fork of it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._identity = identity(self._read)  # Both ends have the same.

    def fileno(self) -> int:
        """Return the descriptor to poll for wakes."""
        return self._read

    def wake(self) -> None:
        """Have the poll return. Neither blocks nor raises; does nothing in a fork."""
        if os.getpid() != self._pid or identity(self._write) != self._identity:
            return
        try:
            os.write(self._write, b"\0")
        except OSError:
            pass  # The pipe is full, so the thread is about to wake.

    def renew(self) -> None:
        """Take the pipe for its own as it is now: in a restored process it is another one."""
        read = identity(self._read)
        if read is not None and read == identity(self._write):
            self._identity = read

    def clear(self) -> bool:
        """Take in the wakes so far; return False if the script closed the pipe."""
        if identity(self._read) != self._identity:
            return False
        try:
            os.read(self._read, _WAKES_MAX)
        except BlockingIOError:
            pass  # Nobody had woken it.
        return True
