"""Files that are there, whole, after a power failure: contents first, then the name."""

from __future__ import annotations

import os


def write(path: str, data: bytes, mode: int = 0o600) -> None:
    """Replace a file atomically; on return it is on disk under its name. Raises OSError."""
    draft = f"{path}.{os.getpid()}.draft"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
