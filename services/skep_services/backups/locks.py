"""One at a time: what takes a backup of a state folder, and what archives its logs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEEPING = "keeping.lock"


class BusyError(Exception):
    """Another process is at work in the folder; the text says which."""


@contextmanager
def held(path: Path, else_text: str) -> Iterator[None]:
    """Hold a lock.

    Args:
        path: The file of the lock, in a folder that exists.
        else_text: Who has it if it is not free.

    Raises:
        BusyError: It is not free.
        OSError: The file cannot be made.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"{path.parent}: {else_text}; try again later"
            raise BusyError(text) from None
        yield
    finally:
        os.close(file)


@contextmanager
def keeping(home: Path | None) -> Iterator[None]:
    """Hold the lock of a state folder; without one there is nothing to hold.

    Raises:
        BusyError: A backup is taken, or logs are archived.
    """
    if home is None or not home.is_dir():
        yield
        return
    with held(home / KEEPING, "another `skep backup` or `skep log archive` is at work"):
        yield
