"""A checkpoint file: the safetensors format, with what is no tensor in its metadata.

    8 bytes      length of the header, little-endian
    header       JSON: {"__metadata__": {"header_crc32": ..., "skep": ...}, NAME: {...}, ...}
    data         the tensors' bytes, one after the other

Any reader of safetensors can open it. `skep` is JSON in a string, as the format demands: version,
which process wrote it, the plain values, and a CRC-32 for each tensor. A tensor that did not
change may be in an older file of the same folder (`skep_job.state.unchanged`): `elsewhere` says
where. `header_crc32` is that of the header with eight zeros in its place. Both CRCs are known only
once the data is written, so the header is written twice; the file has its name only after both, and
after the disk has it.
"""

from __future__ import annotations

import errno
import functools
import io
import json
import os
import stat
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from skep_job.shards.templates import has_shards
from skep_job.state import header_check
from skep_job.state.snapshot import (
    READABLE,
    REFERRING_VERSION,
    SPLIT_VERSION,
    VERSION,
    Snapshot,
    host_bytes,
    layout_of,
)
from skep_job.state.state_tree import DTYPES, Tensors
from skep_job.state.unchanged import FILE, Known, Place, Unchanged, compare

HEADER_BYTES_MAX = 100_000_000
"""The format's own limit."""

_NO_CRC = "0" * 8
_ALIGNMENT = 8
_PIECE_BYTES = 16 * 1024 * 1024


class Unreadable(Exception):  # noqa: N818  a name for what the file is
    """The file is torn, damaged, of another version, or none of ours."""


class Stored(NamedTuple):
    """The header of a checkpoint file."""

    about: dict[str, Any]  # who wrote it: job, attempt, rank, world, step
    plain: Any
    layout: dict[str, Any]  # name -> dtype, shape, begin and end in the data
    crcs: dict[str, str]
    data_at: int
    digests: dict[str, str] = {}  # noqa: RUF012 - nobody changes it

    @property
    def files(self) -> set[str]:
        """Return the names of the other files that have tensors of it."""
        return {about["file"] for about in self.layout.values() if "file" in about}

    def known(self, file: str) -> dict[str, Known]:
        """Return where its tensors are.

        Args:
            file: Its own name.
        """
        return {
            name: Known(
                about["dtype"],
                about["shape"],
                Place(
                    about.get("file", file),
                    about["begin"] + (0 if "file" in about else self.data_at),
                    about["end"] - about["begin"],
                    self.crcs[name],
                    self.digests.get(name, ""),
                ),
            )
            for name, about in self.layout.items()
        }


def write(
    path: Path, snapshot: Snapshot, about: dict[str, Any], known: dict[str, Known] | None = None
) -> int:
    """Write and sync a file; return its bytes.

    Args:
        path: The file, which must not exist.
        snapshot: The state.
        about: Which process writes it: job, attempt, rank, world, step.
        known: Where tensors are in older files of the folder; None: all are written.

    Raises:
        OSError: The file exists, or cannot be written.
    """
    unchanged = None
    if known:
        layout = layout_of(snapshot.tensors)
        given = {
            name: (layout[name], functools.partial(host_bytes, tensor))
            for name, tensor in snapshot.tensors.items()
        }
        unchanged = compare(path.parent, known, given)
    with open(path, "xb", buffering=0) as file:
        size = write_to(file, snapshot, about, unchanged)
        os.fsync(file.fileno())
        return size


def write_to(
    file: Any, snapshot: Snapshot, about: dict[str, Any], unchanged: Unchanged | None = None
) -> int:
    """Write what a file has, from its beginning; return the bytes.

    Args:
        file: Unbuffered, and written in place; what is behind the bytes returned stays.
        snapshot: The state.
        about: As for `write`.
        unchanged: What is not written; None: all is.

    Raises:
        OSError: It cannot be written.
    """
    unchanged = unchanged or Unchanged({}, {})
    tensors = {n: t for n, t in snapshot.tensors.items() if n not in unchanged.elsewhere}
    all_ = layout_of(snapshot.tensors)
    layout = {name: all_[name] for name in tensors}
    crcs = dict.fromkeys(layout, _NO_CRC)
    more = _more(all_, unchanged)
    size = len(_header(snapshot.plain, layout, crcs, about, more))
    file.seek(8 + size)
    for name, tensor in tensors.items():
        data, keep = host_bytes(tensor)
        crcs[name] = _hex(_write_all(file, data))
        del keep
    header = _header(snapshot.plain, layout, crcs, about, more)
    assert len(header) == size, "CRCs have one length"
    file.seek(0)
    _write_all(file, memoryview(size.to_bytes(8, "little") + header))
    written: int = sum(each["bytes"] for each in layout.values())
    return 8 + size + written


def plain_bytes(snapshot: Snapshot) -> int:
    """Return a bound of the bytes that the plain values take in a header."""
    return 2 * len(json.dumps(snapshot.plain, separators=(",", ":")))


def read_header(path: Path) -> Stored:
    """Return the header of a file whose length is right.

    Raises:
        Unreadable: The header is not one of Skep's, is damaged, or tells of another length.
        OSError: The file cannot be read.
    """
    with io.BufferedReader(_open(path)) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= HEADER_BYTES_MAX:
            reason = f"a header of {length} bytes"
            raise Unreadable(reason)
        header = file.read(min(length, size))
    if len(header) < length:
        reason = "it ends within its header"
        raise Unreadable(reason)
    stored = _parse(header, 8 + length)
    ends = [about["end"] for about in stored.layout.values() if "file" not in about]
    expected = stored.data_at + max(ends, default=0)
    if size != expected:
        reason = f"it has {size} bytes where {expected} were written"
        raise Unreadable(reason)
    return stored


def read_tensors(path: Path, stored: Stored) -> Tensors:
    """Return the tensors, in memory of their own.

    Args:
        path: The file.
        stored: Its header.

    Raises:
        Unreadable: The bytes of a tensor are not those that were written.
        OSError: The file cannot be read.
    """
    with _open(path) as file:
        return {name: _read_tensor(path, file, stored, name) for name in stored.layout}


def read_tensor(path: Path, stored: Stored, name: str) -> Any:
    """Return one tensor, in memory of its own.

    Args:
        path: The file.
        stored: Its header.
        name: The name of the tensor.

    Raises:
        Unreadable: The bytes are not those that were written.
        OSError: The file cannot be read.
    """
    with _open(path) as file:
        return _read_tensor(path, file, stored, name)


def _read_tensor(path: Path, file: Any, stored: Stored, name: str) -> Any:
    about = stored.layout[name]
    if "file" in about:
        try:
            with _open(path.parent / about["file"]) as other:
                tensor = _filled(other, about["begin"], about, stored.crcs[name])
        except FileNotFoundError:
            reason = f"the bytes of {name} are in {about['file']}, which is not there"
            raise Unreadable(reason) from None
        except Unreadable as error:
            reason = f"the bytes of {name} are in {about['file']}: {error}"
            raise Unreadable(reason) from None
    else:
        tensor = _filled(file, stored.data_at + about["begin"], about, stored.crcs[name])
    if tensor is None:
        reason = f"the bytes of {name} are not those that were written"
        raise Unreadable(reason)
    return tensor


def _open(path: Path) -> Any:
    """Return a file of bytes that is open to be read. It is no link, and nothing that could wait.

    Raises:
        Unreadable: It is a link, a folder, a pipe or a device.
        OSError: It cannot be opened.
    """
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        reason = "it is a link or a socket, and only files are read: put the file itself there"
        raise Unreadable(reason) from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb", buffering=0)
    os.close(descriptor)
    reason = "it is a folder, a pipe or a device, and only files are read: remove it"
    raise Unreadable(reason)


def _filled(file: Any, at: int, about: dict[str, Any], crc: str) -> Any:
    """Return the tensor whose bytes are at a place of a file; None if these are others, or fewer.

    Memory is taken only for bytes that the file has.
    """
    import torch

    if at + about["end"] - about["begin"] > os.fstat(file.fileno()).st_size:
        return None
    tensor = torch.empty(about["shape"], dtype=getattr(torch, DTYPES[about["dtype"]]))
    data, _ = host_bytes(tensor)
    return tensor if _fill(file, at, data, crc) else None


def _fill(file: Any, at: int, data: memoryview, expected: str) -> bool:
    """Read bytes from a place; return whether they are there and have the CRC that is expected."""
    file.seek(at)
    crc, done = 0, 0
    while done < len(data):
        count = file.readinto(data[done : done + _PIECE_BYTES])
        if not count:
            break
        crc = zlib.crc32(data[done : done + count], crc)
        done += count
    return done == len(data) and _hex(crc) == expected


def _more(layout: dict[str, Any], unchanged: Unchanged) -> dict[str, Any]:
    """Return what a header says about tensors that did not change; nothing if all did."""
    found: dict[str, Any] = {}
    if unchanged.elsewhere:
        found["elsewhere"] = {
            name: [layout[name]["dtype"], layout[name]["shape"], *place[:4]]
            for name, place in unchanged.elsewhere.items()
        }
    if unchanged.digests:
        found["digests"] = unchanged.digests
    return found


def _header(
    plain: Any,
    layout: dict[str, Any],
    crcs: dict[str, str],
    about: dict[str, Any],
    more: dict[str, Any],
) -> bytes:
    version = SPLIT_VERSION if has_shards(plain) else VERSION
    version = REFERRING_VERSION if "elsewhere" in more else version
    ours = {"version": version, "about": about, "plain": plain, "crcs": crcs, **more}
    entries: dict[str, Any] = {
        "__metadata__": {"header_crc32": _NO_CRC, "skep": json.dumps(ours, separators=(",", ":"))}
    }
    at = 0
    for name, each in layout.items():
        end = at + each["bytes"]
        entries[name] = {"dtype": each["dtype"], "shape": each["shape"], "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return text.replace(_NO_CRC.encode(), _hex(zlib.crc32(text)).encode(), 1)


def _parse(header: bytes, data_at: int) -> Stored:
    try:
        entries = json.loads(header)
        metadata = entries.pop("__metadata__")
        crc = metadata["header_crc32"]
        if _hex(zlib.crc32(header.replace(crc.encode(), _NO_CRC.encode(), 1))) != crc:
            reason = "its header is damaged"
            raise Unreadable(reason)
        ours = json.loads(metadata["skep"])
        if ours["version"] not in READABLE:
            reason = f"it is of version {ours['version']}, and this is version {VERSION}"
            raise Unreadable(reason)
        layout = {
            name: {
                "dtype": entry["dtype"],
                "shape": entry["shape"],
                "begin": entry["data_offsets"][0],
                "end": entry["data_offsets"][1],
            }
            for name, entry in entries.items()
        }
        crcs = dict(ours["crcs"])
        for name, (dtype, shape, file, at, size, crc) in ours.get("elsewhere", {}).items():
            if not FILE.fullmatch(file) or at < 0 or size < 0:
                reason = f"{name} is in {str(file)[:80]!r}, which is no checkpoint"
                raise Unreadable(reason)
            layout[name] = {"dtype": dtype, "shape": shape, "begin": at, "end": at + size}
            layout[name]["file"] = file
            crcs[name] = crc
        about, plain, digests = dict(ours["about"]), ours["plain"], dict(ours.get("digests", {}))
        header_check.check(plain, layout, crcs)
        return Stored(about, plain, layout, crcs, data_at, digests)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"its header is not one of Skep's: {type(error).__name__}: {str(error)[:200]}"
        raise Unreadable(reason) from error


def _write_all(file: Any, data: memoryview) -> int:
    """Write all of `data`; return its CRC-32."""
    crc = done = 0
    while done < len(data):
        piece = data[done : done + _PIECE_BYTES]
        count = file.write(piece)
        crc = zlib.crc32(piece[:count], crc)
        done += count
    return crc


def _hex(crc: int) -> str:
    return f"{crc:08x}"
