"""A run's log file, kept within bounds while its processes write to it.

The processes append (O_APPEND), so the file may be cut under them. When it outgrows its bound, it
keeps its first half and its last lines:

    first half of the bound | [skep] log limit reached: N bytes dropped | last 64 KiB

N counts everything dropped since this object was made. What the processes write next follows;
the file is cut again when it outgrows its bound again. Between two checks a log may outgrow the
bound by what can be written in that time.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

LOG_TAIL_BYTES = 64 * 1024
"""What is kept of the end: a Python traceback with its context fits many times over."""

LOOKS_MAX = 5
"""How often the end is read again because it moved on: in a flood it always does."""

LOG_BYTES_MIN = 4096
"""The smallest bound: below it head, note and tail would leave no room to grow."""


class RunLog:
    """The log of one run.

    Args:
        path: The file; it is created with its folders.
        bytes_max: The bound (bytes); at least LOG_BYTES_MIN holds.
        opened: Opens the file with some flags, appending and made if need be, instead of this
            process's own rights.

    Raises:
        OSError: The file cannot be created, or something else is in its place.
    """

    def __init__(
        self, path: str, bytes_max: int, opened: Callable[[str, int], int] | None = None
    ) -> None:
        self.path = path
        self.bytes_max = max(bytes_max, LOG_BYTES_MIN)
        self.bytes_dropped = 0
        self._open = opened or _open
        self._file = self._open(path, os.O_RDWR)

    def open_for_process(self) -> int:
        """Return a descriptor that appends, to become a process's stdout and stderr.

        Raises:
            OSError: It cannot be opened, or its disk has no room: a process whose first word
                cannot be written would fail, by no fault of its own.
        """
        disk = os.fstatvfs(self._file)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < LOG_TAIL_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        return self._open(self.path, os.O_WRONLY)

    def clear(self) -> None:
        """Remove what is in it: it is of another run.

        Raises:
            OSError: It cannot be removed.
        """
        os.ftruncate(self._file, 0)

    def check(self) -> bool:
        """Cut the file if it is larger than its bound; return whether it was."""
        size = os.fstat(self._file).st_size
        if size <= self.bytes_max:
            return False
        head = self.bytes_max // 2
        tail_bytes = min(LOG_TAIL_BYTES, self.bytes_max // 4)
        tail = os.pread(self._file, tail_bytes, size - tail_bytes)
        for _ in range(LOOKS_MAX):
            # A flood's last line may have come meanwhile, and is what its reader looks for.
            grown = os.fstat(self._file).st_size
            if grown == size:
                break
            size = grown
            tail = os.pread(self._file, tail_bytes, size - tail_bytes)
        self.bytes_dropped += size - head - len(tail)
        os.ftruncate(self._file, head)
        note = f"\n[skep] log limit reached: {self.bytes_dropped} bytes dropped\n"
        # One write, so that no line of the processes gets between the note and the tail.
        os.write(self._file, note.encode() + tail)
        return True

    def say(self, text: str) -> None:
        """Append a line of Skep's own; where there is no room, there is none."""
        try:
            os.write(self._file, f"\n[skep] {text}\n".encode())
        except OSError:
            pass  # A job that fills the disk must not end what holds the other jobs.

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def open_file(path: str, flags: int) -> int:
    """Return a descriptor of a log.

    Args:
        path: The file.
        flags: Those of `os.open`.

    Raises:
        OSError: The file cannot be opened, or a job put something else in its place.
    """
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    file = os.open(path, flags | safe, 0o644)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a file")
    os.set_blocking(file, True)
    return file


def _open(path: str, mode: int) -> int:
    flags = mode | os.O_APPEND | os.O_CREAT
    try:
        return open_file(path, flags)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open_file(path, flags)
