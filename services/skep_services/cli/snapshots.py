"""Taking a snapshot of a folder: which files, which chunks, and what is known of them already.

Chunks are planned by paths and sizes alone. A large file has chunks of its own. Small files are
put together in the order of their paths; where one ends a chunk is decided by its path too, so
a file that changes, comes or goes changes the chunks around it and no others.

As git does, a cache (one file for each folder) keeps the digest of each chunk by the names, sizes,
times and inodes of its files: what has not changed is not read again. A file that changed within
the last moments is not believed to stay as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from skep.units import MIB
from skep.wire.snapshot import (
    BYTES_MAX,
    CHUNK_BYTES_MAX,
    CHUNKS_MAX,
    FILES_MAX,
    INDEX_BYTES_MAX,
    Chunk,
    Snapshot,
    digest_of,
    encode,
)
from skep_services.cli import exits, ignoring
from skep_services.cli.exits import CommandError

LARGE_BYTES = CHUNK_BYTES_MAX // 4
"""A file from this size on has chunks of its own."""
ENDS_CHUNK = 64
"""One path of so many ends a chunk of small files."""
UNSETTLED_NS = 2_000_000_000
"""A file that changed this recently may change again within the same tick of a file system."""
NAMED_MAX = 5
"""How many of the largest files a refusal names."""
CACHE_BYTES_MAX = 8 * MIB


class File(NamedTuple):
    """One entry of a snapshot: mode 0 is a folder that is empty, -1 a link to `target`."""

    path: str
    mode: int
    size: int
    target: str = ""
    state: tuple[int, ...] = ()
    """What differs once it has changed: size, times and inode."""
    place: str = ""
    """Where it is read, if not in the folder."""


class Part(NamedTuple):
    """Some bytes of a file."""

    file: File
    offset: int
    size: int


class Taken(NamedTuple):
    """A snapshot, and where its chunks are read: in `of_index`, or in files of the folder."""

    folder: str
    snapshot: Snapshot
    raw: bytes
    digest: str
    of_index: dict[str, bytes]
    parts: dict[str, tuple[Part, ...]]
    paths: frozenset[str]
    skipped: int
    """Sockets, pipes and devices, which are left out."""
    bytes_read: int

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes of the chunks by their digests."""
        return {chunk.digest: chunk.size for chunk in self.snapshot.chunks}

    def chunk(self, digest: str) -> bytes:
        """Return the bytes of a chunk.

        Raises:
            _changed: A CommandError: a file changed since the snapshot was taken.
        """
        if digest in self.of_index:
            return self.of_index[digest]
        data = _read(self.folder, self.parts[digest])
        if digest_of(data) != digest:
            raise _changed(self.parts[digest][0].file.path)
        return data


def take(folder: str, cache: str | None = None, beside: Sequence[File] = ()) -> Taken:
    """Return the snapshot of a folder as it is.

    Args:
        folder: The folder, by its full path.
        cache: The file of its cache; None: the usual one.
        beside: Further files, which go before those of the folder with the same paths.

    Raises:
        CommandError: It is no folder, is too large, or has what a snapshot cannot hold.
    """
    files, skipped = _files(folder)
    if beside:
        paths_beside = {one.path for one in beside}
        files = sorted([*(one for one in files if one.path not in paths_beside), *beside])
    _check_size(folder, files)
    known = Known(_cache_of(folder) if cache is None else cache)
    index = json.dumps([_entry(one) for one in files], separators=(",", ":")).encode()
    if len(index) > INDEX_BYTES_MAX:
        text = f"{folder}: the paths of its files have {len(index) // MIB} MiB: {_advice()}"
        raise CommandError(exits.FAILED, text, "too-large")
    begin = range(0, len(index), CHUNK_BYTES_MAX)
    of_index = [index[at : at + CHUNK_BYTES_MAX] for at in begin]
    chunks = [Chunk(digest_of(each), len(each)) for each in of_index]
    held = {digest_of(each): each for each in of_index}
    parts: dict[str, tuple[Part, ...]] = {}
    for planned in _plan(files):
        digest = known.digest(folder, planned)
        chunks.append(Chunk(digest, sum(part.size for part in planned)))
        parts[digest] = planned
    if len(chunks) > CHUNKS_MAX:
        text = f"{folder}: {len(files)} files make {len(chunks)} chunks, and {CHUNKS_MAX} may be"
        raise CommandError(exits.FAILED, f"{text}: {_advice()}", "too-large")
    known.save()
    size = sum(one.size for one in files)
    snapshot = Snapshot(index_bytes=len(index), files=len(files), bytes=size, chunks=tuple(chunks))
    raw = encode(snapshot)
    paths = frozenset(one.path for one in files)
    return Taken(
        folder, snapshot, raw, digest_of(raw), held, parts, paths, skipped, known.bytes_read
    )


def of_files(files: Mapping[str, bytes]) -> Taken:
    """Return the snapshot of some files, by their paths; together they are small."""
    index = json.dumps(
        [[path, 0o644, len(files[path])] for path in sorted(files)], separators=(",", ":")
    ).encode()
    content = b"".join(files[path] for path in sorted(files))
    pieces = [
        part[at : at + CHUNK_BYTES_MAX]
        for part in (index, content)
        for at in range(0, len(part), CHUNK_BYTES_MAX)
    ]
    chunks = tuple(Chunk(digest_of(each), len(each)) for each in pieces)
    snapshot = Snapshot(index_bytes=len(index), files=len(files), bytes=len(content), chunks=chunks)
    raw = encode(snapshot)
    held = {digest_of(each): each for each in pieces}
    return Taken("", snapshot, raw, digest_of(raw), held, {}, frozenset(files), 0, len(content))


# --- files ----------------------------------------------------------------------------------------


def file_at(place: str, path: str) -> File:
    """Return a file that goes into a snapshot under another path than it has.

    Raises:
        OSError: It cannot be looked at.
    """
    found = os.stat(place)
    state = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
    return File(path, 0o644, found.st_size, "", state, place)


def _files(folder: str) -> tuple[list[File], int]:
    """Return what a snapshot of the folder has, by path, and how much is left out as no file.

    Raises:
        CommandError: It is no folder, or has what a snapshot cannot hold.
    """
    if not os.path.isdir(folder):
        raise CommandError(exits.USAGE, f"code: {folder} is no folder", "bad-value")
    rules = _rules(folder)
    found: list[File] = []
    skipped = 0
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        kept = 0
        for entry in _entries(os.path.join(folder, inside) if inside else folder):
            path = f"{inside}/{entry.name}" if inside else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if ignoring.left_out(rules, path, folder=is_folder):
                continue
            kept += 1
            if is_folder:
                waiting.append(path)
                continue
            one = _file(folder, path, entry)
            if one is None:
                skipped += 1
            else:
                found.append(one)
        if inside and not kept:
            found.append(File(inside, 0, 0))
        if len(found) + len(waiting) > FILES_MAX:
            text = f"{folder} has more than {FILES_MAX} files: {_advice()}"
            raise CommandError(exits.FAILED, text, "too-large")
    found.sort()
    return found, skipped


def _rules(folder: str) -> list[ignoring.Rule]:
    path = os.path.join(folder, ignoring.FILE)
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(ignoring.FILE_BYTES_MAX + 1)
        if len(text) > ignoring.FILE_BYTES_MAX:
            raise CommandError(exits.FAILED, f"{path} has more than 64 KiB", "too-large")
        return ignoring.rules_of(text.split("\n"))
    except FileNotFoundError:
        return ignoring.rules_of(())
    except OSError as error:
        raise CommandError(exits.FAILED, f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CommandError(exits.FAILED, f"{path}: {error}", "bad-value") from None


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        text = f"{folder} cannot be read: {error.strerror}; leave it out ({ignoring.FILE})"
        raise CommandError(exits.FAILED, text) from None


def _file(folder: str, path: str, entry: os.DirEntry[str]) -> File | None:
    """Return an entry of a folder; None: it is no file.

    Raises:
        CommandError: It has a name, or leads to a place, that no snapshot can have.
        _changed: A CommandError: it is gone again.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        text = f"{folder}: the name {path!r} is no UTF-8: rename it, or leave it out"
        raise CommandError(exits.FAILED, f"{text} ({ignoring.FILE})", "bad-value") from None
    try:
        found = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(os.path.join(folder, path))
            _check_link(folder, path, target)
            return File(path, -1, 0, target)
    except OSError:
        raise _changed(path) from None
    if not stat.S_ISREG(found.st_mode):
        return None
    mode = 0o755 if found.st_mode & 0o111 else 0o644
    state = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
    return File(path, mode, found.st_size, "", state)


def _check_link(folder: str, path: str, target: str) -> None:
    """Stop at a link that leads out of the folder, or through another link and up again.

    Raises:
        CommandError: It does.
    """
    depth, down = path.count("/"), False
    for part in target.split("/"):
        depth -= part == ".."
        if target.startswith("/") or depth < 0 or (part == ".." and down):
            text = f"{os.path.join(folder, path)} is a link out of the folder ({target})"
            advice = f"leave it out ({ignoring.FILE}), or name the place by its full path"
            raise CommandError(exits.FAILED, f"{text}: {advice}", "bad-value")
        down = down or part not in {"", ".", ".."}


def _check_size(folder: str, files: list[File]) -> None:
    size = sum(one.size for one in files)
    if size <= BYTES_MAX:
        return
    largest = sorted(files, key=lambda one: -one.size)[:NAMED_MAX]
    named = ", ".join(f"{one.path} ({one.size / MIB:.0f} MiB)" for one in largest)
    text = (
        f"{folder} has {size / MIB:.0f} MiB, and a snapshot at most {BYTES_MAX // MIB} MiB; its "
        f"largest files: {named}: {_advice()}"
    )
    raise CommandError(exits.FAILED, text, "too-large")


def _advice() -> str:
    return f"leave out what the job does not need ({ignoring.FILE})"


def _changed(path: str) -> CommandError:
    text = f"{path} changed while the snapshot was taken: submit again"
    return CommandError(exits.FAILED, text, "code-changed")


def _entry(one: File) -> list[str | int]:
    return [one.path, one.mode, one.target if one.mode == -1 else one.size]


# --- chunks ---------------------------------------------------------------------------------------


def _plan(files: list[File]) -> Iterator[tuple[Part, ...]]:
    """Yield the chunks that the contents of the files make, in order."""
    group: list[Part] = []
    size = 0
    for file in files:
        if file.mode <= 0 or not file.size:
            continue
        if group and (file.size >= LARGE_BYTES or size + file.size > CHUNK_BYTES_MAX):
            yield tuple(group)
            group, size = [], 0
        if file.size >= LARGE_BYTES:
            for at in range(0, file.size, CHUNK_BYTES_MAX):
                yield (Part(file, at, min(CHUNK_BYTES_MAX, file.size - at)),)
            continue
        group.append(Part(file, 0, file.size))
        size += file.size
        if hashlib.md5(file.path.encode(), usedforsecurity=False).digest()[0] % ENDS_CHUNK == 0:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)


def _read(folder: str, parts: tuple[Part, ...]) -> bytes:
    """Return the bytes of a chunk.

    Raises:
        CommandError: A file cannot be read.
        _changed: A CommandError: it is another one by now.
    """
    found = bytearray()
    for part in parts:
        path = part.file.place or os.path.join(folder, part.file.path)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                seen = os.fstat(file.fileno())
                file.seek(part.offset)
                data = file.read(part.size)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise _changed(part.file.path) from None
            text = f"{path} cannot be read: {error.strerror}; leave it out ({ignoring.FILE})"
            raise CommandError(exits.FAILED, text) from None
        now = (seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)
        if len(data) != part.size or now != part.file.state:
            raise _changed(part.file.path)
        found += data
    return bytes(found)


# --- the cache ------------------------------------------------------------------------------------


class Known:
    """The digests of a folder's chunks, by the names and states of their files."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._before = _load(path)
        self._now: dict[str, str] = {}
        self._since = time.time_ns() - UNSETTLED_NS
        self.bytes_read = 0

    def digest(self, folder: str, parts: tuple[Part, ...]) -> str:
        """Return the digest of a chunk, which is read only if it is not known."""
        named = [(part.file.path, part.offset, part.size, part.file.state) for part in parts]
        key = hashlib.blake2b(repr(named).encode(), digest_size=16).hexdigest()
        digest = self._before.get(key)
        if digest is None:
            data = _read(folder, parts)
            self.bytes_read += len(data)
            digest = digest_of(data)
        if all(max(part.file.state[1:3]) < self._since for part in parts):
            self._now[key] = digest
        return digest

    def save(self) -> None:
        """Keep what is known now; without a place for it, the next snapshot reads all again."""
        if not self._path or self._now == self._before:
            return
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=os.path.dirname(self._path))
            with open(handle, "w", encoding="ascii") as file:
                json.dump(self._now, file)
            os.replace(name, self._path)
        except OSError:
            return


def _load(path: str) -> dict[str, str]:
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(CACHE_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return {}
    fine = isinstance(found, dict) and all(isinstance(each, str) for each in found.values())
    return found if fine else {}


def _cache_of(folder: str) -> str:
    """Return where the cache of a folder is, empty if nowhere."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not base.startswith("/"):
        return ""
    name = hashlib.sha256(os.path.realpath(folder).encode("utf-8", "surrogateescape")).hexdigest()
    return os.path.join(base, "skep", "code", f"{name[:32]}.json")
