"""Tells of one file whether it is whole, by its form alone: no tensor and no pickle is loaded.

A process that is killed while it writes leaves a file that is too short. What these forms have at
their end, or say of their length, is then missing or wrong. Whether the bytes between are the right
ones is not looked at: that would read the whole of a large checkpoint twice.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
from typing import IO, Any

JSON_BYTES_MAX = 64 * 1024 * 1024
"""A `trainer_state.json` has the whole history of a training's losses: some 10 MB of a long one."""
HEADER_BYTES_MAX = 100_000_000
"""Of a safetensors file: the bound of the library itself."""
ZIPS = (".pt", ".pth", ".ckpt", ".bin", ".keras", ".npz")
HDF5 = (".h5", ".hdf5")
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
PICKLE_BEGINS, PICKLE_ENDS = b"\x80", b"."
HDF5_OPEN = 1
"""Set in a superblock's flags while a process writes to the file."""


def trouble(path: str) -> str:
    """Return why a file cannot be whole; empty: it is, or its form does not say.

    Args:
        path: A file, which is not followed if it is a link.
    """
    suffix = os.path.splitext(path)[1]
    try:
        with opened(path) as file:
            if suffix == ".safetensors":
                return _safetensors(file)
            if suffix in ZIPS:
                return _zip(file)
            if suffix == ".pkl":
                return _pickle(file)
            if suffix in HDF5:
                return _hdf5(file)
            if suffix == ".json":
                return "" if isinstance(json_of(file), dict | list) else "it is no JSON object"
    except (OSError, ValueError, struct.error, zipfile.BadZipFile, RecursionError) as error:
        return f"it cannot be read: {error}"[:200]
    return ""


def opened(path: str) -> IO[bytes]:
    """Open a file to read it: no link, and nothing that waits for a writer.

    Raises:
        OSError: It cannot be opened, or is no file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def json_of(file: IO[bytes]) -> Any:
    """Return what a JSON file has.

    Raises:
        ValueError: It is too large, or no JSON.
    """
    raw = file.read(JSON_BYTES_MAX + 1)
    if len(raw) > JSON_BYTES_MAX:
        text = f"it has more than {JSON_BYTES_MAX >> 20} MiB"
        raise ValueError(text)
    return json.loads(raw)


def member(path: str, name: str, most: int) -> bytes:
    """Return the first bytes of a member of a zip file, by the end of its name; empty: none.

    Args:
        path: A file that is whole.
        name: Such as `data.pkl`: torch puts a folder before it.
        most: How many bytes.

    Raises:
        OSError: It cannot be read.
        zipfile.BadZipFile: It is none.
    """
    with opened(path) as file, zipfile.ZipFile(file) as archive:
        for one in archive.namelist():
            if one.rpartition("/")[2] == name:
                with archive.open(one) as inner:
                    return inner.read(most)
    return b""


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _safetensors(file: IO[bytes]) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > HEADER_BYTES_MAX or length + 8 > _size(file):
        return "its header is cut off"
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        return "its header is no JSON object"
    ends = [0]
    for name, one in header.items():
        if name == "__metadata__":
            continue
        offsets = one.get("data_offsets") if isinstance(one, dict) else None
        if not (isinstance(offsets, list) and len(offsets) == 2 and isinstance(offsets[1], int)):
            return f"its header says nothing of tensor {name[:80]!r}"
        ends.append(offsets[1])
    if _size(file) != 8 + length + max(ends):
        return f"it has {_size(file)} bytes, and its header says {8 + length + max(ends)}"
    return ""


def _zip(file: IO[bytes]) -> str:
    size = _size(file)
    if file.read(2) != b"PK":
        return "it is no zip file, as torch and Keras write: its end cannot be verified"
    with zipfile.ZipFile(file) as archive:  # The list of its members is at its end.
        members = archive.infolist()
    if any(one.header_offset + one.compress_size > size for one in members):
        return "it is cut off"
    return "" if members else "it is empty"


def _pickle(file: IO[bytes]) -> str:
    begins = file.read(2)
    if begins == b"PK":
        file.seek(0)
        return _zip(file)
    if _size(file) < 2 or begins[:1] != PICKLE_BEGINS:
        return "it is neither a pickle nor a zip file"
    file.seek(-1, os.SEEK_END)
    return "" if file.read(1) == PICKLE_ENDS else "it is cut off"


def _hdf5(file: IO[bytes]) -> str:
    head = file.read(64)
    if not head.startswith(HDF5_SIGNATURE) or len(head) < 52:
        return "it is no HDF5 file"
    version = head[8]
    at = {0: 40, 1: 44, 2: 28, 3: 28}.get(version)
    if at is None:
        return f"it is an HDF5 file of an unknown version, {version}"
    if version >= 2 and head[11] & HDF5_OPEN:
        return "it was not closed by what wrote it"
    (end,) = struct.unpack_from("<Q", head, at)
    return "" if end <= _size(file) else f"it has {_size(file)} bytes, and says {end}"
