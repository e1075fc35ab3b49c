"""Unpacks a snapshot of code into a folder. Standard library only: it runs as the job's account.

    python -I -S -c PROGRAM FILE DIGEST FOLDER

FILE is what the agent fetched: the length of the snapshot (4 bytes), the snapshot, its chunks.
DIGEST is the name of the snapshot. FOLDER comes into being whole, or not at all: the files are
written beside it, and it is renamed. One line on standard output says what was wrong.

Nothing that FILE says is believed. Every chunk is verified; paths lead only inside; what is made is
a folder, a file or a link; links are made last and lead only inside, so no file is written through
one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

FILES_MAX = 50_000
BYTES_MAX = 512 * 1024 * 1024
INDEX_BYTES_MAX = 16 * 1024 * 1024
ROOT_BYTES_MAX = 1024 * 1024
"""The bounds of `skep.wire.snapshot`, which this process does not import; a test compares them."""
LENGTH = struct.Struct(">I")
MODES = {0o644, 0o755}

TWICE = "the snapshot has {!r} twice, or both as a file and as a folder"
CORRUPT, UNSAFE, BROKEN = 65, 66, 73
"""Exit statuses: FILE is not what DIGEST names; it is, and it may not be unpacked; no room."""


class SnapshotError(Exception):
    """A snapshot cannot be unpacked; `status` is the exit status."""

    def __init__(self, text: str, status: int = UNSAFE) -> None:
        super().__init__(text)
        self.status = status


def main(arguments: list[str]) -> int:
    """Unpack; return the exit status."""
    path, digest, folder = arguments
    try:
        unpack(path, digest, folder)
    except SnapshotError as error:
        _say(str(error))
        return error.status
    except OSError as error:
        _say(f"{error.filename or folder} cannot be written: {error.strerror}")
        return BROKEN
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text.encode("utf-8", "replace").decode() + "\n")


def unpack(path: str, digest: str, folder: str) -> None:
    """Make `folder` of a snapshot, unless it is there.

    Raises:
        SnapshotError: The snapshot is corrupt, or may not be unpacked.
        OSError: It cannot be written.
    """
    lock = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.lexists(folder):
            _unpack(path, digest, folder)
    finally:
        os.close(lock)


def _unpack(path: str, digest: str, folder: str) -> None:
    part = f"{folder}.part"
    if os.path.lexists(part):
        shutil.rmtree(part)  # Of a process that was killed amid this.
    os.mkdir(part, mode=0o755)
    with open(path, "rb") as file:
        root = _root(file, digest)
        stream = Stream(file, root["chunks"])
        entries = _entries(stream.read(root["index_bytes"]), root)
        links = _write(part, entries, stream)
        if stream.rest():
            text = "the snapshot has bytes that are no file's"
            raise SnapshotError(text)
    for place, target in links:
        try:
            os.symlink(target, os.path.join(part, place))
        except FileExistsError:
            text = TWICE.format(place[:200])
            raise SnapshotError(text) from None
    os.rename(part, folder)


def _root(file: BinaryIO, digest: str) -> dict[str, Any]:
    head = file.read(LENGTH.size)
    size = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
    raw = file.read(size) if 0 < size <= ROOT_BYTES_MAX else b""
    if hashlib.sha256(raw).hexdigest() != digest:
        text = f"the snapshot that was fetched is not {digest}"
        raise SnapshotError(text, CORRUPT)
    try:
        root: dict[str, Any] = json.loads(raw)
        numbers = (root["index_bytes"], root["files"], root["bytes"])
        fits = all(isinstance(each, int) for each in numbers)
        chunks = [(str(name), int(length)) for name, length in root["chunks"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        text = "the snapshot's list cannot be read"
        raise SnapshotError(text) from None
    if not fits or numbers[0] > INDEX_BYTES_MAX or numbers[2] > BYTES_MAX:
        text = "the snapshot is larger than one may be"
        raise SnapshotError(text)
    return {**root, "chunks": chunks}


class Stream:
    """The bytes of a snapshot's chunks, each verified before any of it is used."""

    def __init__(self, file: BinaryIO, chunks: list[tuple[str, int]]) -> None:
        self._file = file
        self._chunks = iter(chunks)
        self._left = memoryview(b"")

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield the next bytes.

        Raises:
            SnapshotError: There are too few, or a chunk is corrupt.
        """
        while size:
            if not self._left and not self._next():
                text = "the snapshot ends before its files do"
                raise SnapshotError(text)
            piece = self._left[:size]
            self._left = self._left[size:]
            size -= len(piece)
            yield piece

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        return b"".join(self.pieces(size))

    def rest(self) -> bool:
        """Return whether any bytes are left."""
        return bool(self._left) or self._next()

    def _next(self) -> bool:
        digest, size = next(self._chunks, ("", 0))
        if not digest:
            return False
        data = self._file.read(size)
        if hashlib.sha256(data).hexdigest() != digest:
            text = f"chunk {digest[:12]} of the snapshot is corrupt"
            raise SnapshotError(text, CORRUPT)
        self._left = memoryview(data)
        return True


def _entries(index: bytes, root: dict[str, Any]) -> list[tuple[str, int, int | str]]:
    """Return the entries: path, mode (0: a folder; -1: a link), and size or target.

    Raises:
        SnapshotError: One may not be unpacked.
    """
    try:
        listed = json.loads(index)
        entries = [(str(path), int(mode), what) for path, mode, what in listed]
    except (ValueError, TypeError, RecursionError):
        text = "the snapshot's index cannot be read"
        raise SnapshotError(text) from None
    if len(entries) != root["files"] or len(entries) > FILES_MAX:
        text = "the snapshot has more or fewer files than it says"
        raise SnapshotError(text)
    total = 0
    for path, mode, what in entries:
        trouble = _trouble(path, mode, what)
        if trouble:
            text = f"the snapshot's path {path[:200]!r} is refused: {trouble}"
            raise SnapshotError(text)
        total += what if mode > 0 else 0
    if total != root["bytes"]:
        text = "the snapshot's files have more or fewer bytes than it says"
        raise SnapshotError(text)
    return entries


def _trouble(path: str, mode: int, what: object) -> str:
    """Return why an entry may not be unpacked; empty if it may."""
    parts = path.split("/")
    if path.startswith("/") or any(part in {"", ".", ".."} for part in parts) or "\0" in path:
        return "it does not lead inside the folder"
    if mode == -1:
        return _link_trouble(parts, what)
    if mode == 0:
        return "" if what == 0 else "it is no folder"
    if mode not in MODES or not isinstance(what, int) or isinstance(what, bool) or what < 0:
        return "it is neither a file, a folder nor a link"
    return ""


def _link_trouble(parts: list[str], target: object) -> str:
    """Return why a link may not be made: it leads outside, or through another link and up."""
    if not isinstance(target, str) or not target or target.startswith("/") or "\0" in target:
        return "it is a link out of the folder"
    depth, down = len(parts) - 1, False
    for part in target.split("/"):
        if part == "..":
            depth -= 1
            if down or depth < 0:
                return "it is a link out of the folder"
        elif part not in {"", "."}:
            down = True
    return ""


def _write(
    folder: str, entries: list[tuple[str, int, int | str]], stream: Stream
) -> list[tuple[str, str]]:
    """Write folders and files; return the links, which are made last.

    Raises:
        SnapshotError: Two entries are in each other's way, or the snapshot is corrupt.
        OSError: One cannot be written.
    """
    links: list[tuple[str, str]] = []
    made = {"": True}
    for path, mode, what in entries:
        try:
            _make_folders(folder, path if mode == 0 else path.rpartition("/")[0], made)
            if mode == -1:
                links.append((path, str(what)))
            elif mode > 0:
                _write_file(os.path.join(folder, path), mode, int(what), stream)
        except (FileExistsError, NotADirectoryError):
            text = TWICE.format(path[:200])
            raise SnapshotError(text) from None
    return links


def _make_folders(folder: str, path: str, made: dict[str, bool]) -> None:
    if path in made:
        return
    _make_folders(folder, path.rpartition("/")[0], made)
    os.mkdir(os.path.join(folder, path), 0o755)
    made[path] = True


def _write_file(place: str, mode: int, size: int, stream: Stream) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(place, flags, mode), "wb", buffering=0) as file:
        file.writelines(stream.pieces(size))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
