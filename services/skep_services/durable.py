"""Files that are there, whole, after a power failure: contents first, then the name."""

from __future__ import annotations

import contextlib
import os


def write(path: str, data: bytes, mode: int = 0o600, *, sync: bool = True) -> None:
    """Replace a file atomically.

    Args:
        path: The file.
        data: All of its new content.
        mode: Its permissions.
        sync: It is on disk under its name on return.

    Raises:
        OSError: The file cannot be written, and is as it was; the error names it.
    """
    draft = f"{path}.{os.getpid()}.draft"
    try:
        _replace(path, draft, data, mode, sync=sync)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        # What a descriptor has no room for is told without a name.
        raise OSError(error.errno, error.strerror, path) from error


def _replace(path: str, draft: str, data: bytes, mode: int, *, sync: bool) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)  # Of a process before that had this number; or what somebody put there.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    os.replace(draft, path)
    if sync:
        sync_folder(os.path.dirname(path) or ".")


def sync_folder(path: str) -> None:
    """Return once the names in a folder are on disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
