"""Copies files into the folder of a job, or out of it; run by its path.

    python -I -S copy.py put PLACE NAME KIND      (NAME and KIND of what is copied)
    python -I -S copy.py get PATH

The agent runs it as a session of a person (`skep cp`), with the account of the job, in the job's
folder. Paths are walked by descriptors from there, name by name, and no link is followed: it
reaches nothing outside, whatever the job makes meanwhile. Standard library only, and nothing of
Skep; in containers the image's Python runs it, 3.8 or later.

What it takes and says are lines of JSON, and bytes of files between them:

    put   says {"place": PATH}; then for each file takes {"path", "size", "mode", "sha256"}, says
          {"have": N}, takes the bytes behind the first N, and says {"done": BYTES}
    get   says {"files": [[PATH, SIZE, MODE], ...], "folder": false}; then of each file pieces with
          their sizes before them, a size of 0, and {"sha256": DIGEST}

A file is written beside its place, by a name that has its digest, and takes its place when it is
whole: a copy that was cut off goes on where it was. {"error": TEXT} is the last line.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import struct
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

FILE_BYTES_MAX = 64 << 30
FILES_MAX = 2000
"""Of one copy of a folder; what has more of them is an archive, or belongs on a volume."""
LOOKED_AT_MAX = 100_000
LINE_BYTES_MAX = 16 * 1024
PIECE_BYTES = 256 * 1024
NAME_BYTES_MAX = 255
SIZE = struct.Struct(">I")
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PART = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LINKED = frozenset({errno.ELOOP, errno.ENOTDIR})


class CopyError(Exception):
    """It cannot be copied; the text is one line for a person."""


class GoneError(Exception):
    """The one that sends a file has gone before its end."""


def main(words: list[str]) -> int:
    """Copy, and return the exit code: 1 after an error, which was said."""
    try:
        if words[:1] == ["put"] and len(words) == 4 and words[3] in {"file", "folder"}:
            put(words[1], words[2], folder=words[3] == "folder")
        elif words[:1] == ["get"] and len(words) == 2:
            get(words[1])
        else:
            fail(f"copy.py cannot {' '.join(words)[:100]}")
    except GoneError:
        return 1
    except CopyError as error:
        say({"error": str(error)})
        return 1
    except OSError as error:
        say({"error": f"{error.strerror} ({error.filename})" if error.filename else str(error)})
        return 1
    return 0


# --- into the job ---------------------------------------------------------------------------------


def put(place: str, name: str, *, folder: bool) -> None:
    """Take files, and write each to its place."""
    above = parts(place)
    if place in {"", "."} or place.endswith("/") or is_folder(above):
        above = [*above, *parts(name)]
    say({"place": "/".join(above)})
    mask = os.umask(0)
    os.umask(mask)
    count = 0
    while line := take_line():
        wanted = json.loads(line)
        count += 1
        if count > FILES_MAX:
            fail(f"more than {FILES_MAX} files: pack them into one")
        inner = parts(wanted["path"]) if folder else []
        write([*above, *inner], wanted, mask)
    if not count and folder:
        os.close(opened(above, make=True))


def write(path: list[str], wanted: dict[str, Any], mask: int) -> None:
    """Take one file."""
    shown, size, digest = "/".join(path), int(wanted["size"]), str(wanted["sha256"])
    if not path:
        fail("a file needs a name")
    if not 0 <= size <= FILE_BYTES_MAX:
        fail(f"{shown} has {size} bytes, and a file at most {FILE_BYTES_MAX}")
    folder = opened(path[:-1], make=True)
    name = path[-1]
    check_place(folder, name, shown)
    part = f".{name.encode()[:150].decode(errors='ignore')}.{digest[:16]}.skep-part"
    handle = os.open(part, PART, 0o600, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            fail(f"{shown}: what is called {part} there is no file")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fail(f"{shown} is being copied there now")
        try:
            found = filled(handle, size, shown)
        except OSError as error:
            # Its room is needed by the job: what did not fit is not kept.
            os.unlink(part, dir_fd=folder)
            fail(f"{shown} cannot be written: {error.strerror}")
        if found != digest:
            os.unlink(part, dir_fd=folder)
            fail(f"{shown} came corrupt, or changed while it was sent: copy it again")
        os.fchmod(handle, int(wanted["mode"]) & 0o777 & ~mask)
        os.fsync(handle)
        check_place(folder, name, shown)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(handle)
        os.close(folder)
    say({"done": size})


def filled(handle: int, size: int, shown: str) -> str:
    """Take what is missing of a file; return the digest of all of it.

    Raises:
        OSError: There is no room for it.
        GoneError: No more comes: what came is kept for the next time.
    """
    have = os.fstat(handle).st_size
    if have > size:
        os.ftruncate(handle, 0)
        have = 0
    if size - have > free_bytes(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    digest, at = hashlib.sha256(), 0
    while at < have:
        piece = os.pread(handle, min(PIECE_BYTES, have - at), at)
        if not piece:
            fail(f"{shown} became shorter while it was written")
        digest.update(piece)
        at += len(piece)
    say({"have": have})
    while at < size:
        piece = take(min(PIECE_BYTES, size - at))
        if not piece:
            raise GoneError
        digest.update(piece)
        while piece:
            done = os.pwrite(handle, piece, at)
            at += done
            piece = piece[done:]
    return digest.hexdigest()


def free_bytes(handle: int) -> int:
    """Return how much room there is on the file system of a file."""
    found = os.fstatvfs(handle)
    return found.f_bavail * found.f_frsize


def check_place(folder: int, name: str, shown: str) -> None:
    """Stop where a file would take the place of something else than a file."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(name, dir_fd=folder).st_mode
        if stat.S_ISDIR(found):
            fail(f"{shown} is a folder")
        if stat.S_ISLNK(found):
            fail(f"{shown} is a link, which is not followed: name the file itself")
        if not stat.S_ISREG(found):
            fail(f"{shown} is there, and is no file")


# --- out of the job -------------------------------------------------------------------------------


def get(path: str) -> None:
    """Say a file, or all files of a folder."""
    names = parts(path)
    whole = is_folder(names)
    found = list(below(names)) if whole else [names]
    entries: list[tuple[str, int, int]] = []
    handles: list[list[str]] = []
    for each in found:
        handle = open_file(each)
        seen = os.fstat(handle)
        os.close(handle)
        if len(entries) >= FILES_MAX:
            fail(f"{path or 'the folder'} has more than {FILES_MAX} files: copy a part of it")
        if seen.st_size > FILE_BYTES_MAX:
            fail(f"{'/'.join(each)} has more than {FILE_BYTES_MAX} bytes")
        entries.append(("/".join(each[len(names) :]), seen.st_size, seen.st_mode & 0o777))
        handles.append(each)
    say({"files": entries, "folder": whole})
    for each in handles:
        handle = open_file(each)
        digest = hashlib.sha256()
        while piece := os.read(handle, PIECE_BYTES):
            digest.update(piece)
            put_bytes(SIZE.pack(len(piece)) + piece)
        put_bytes(SIZE.pack(0))
        os.close(handle)
        say({"sha256": digest.hexdigest()})


def below(names: list[str]) -> Iterator[list[str]]:
    """Yield the files in a folder and below it; links and devices are passed over."""
    waiting, looked_at = [names], 0
    while waiting:
        here = waiting.pop()
        folder = opened(here)
        try:
            entries = sorted(os.listdir(folder))
            for entry in entries:
                looked_at += 1
                if looked_at > LOOKED_AT_MAX:
                    fail(f"{'/'.join(names) or 'the folder'} has more than {LOOKED_AT_MAX} entries")
                try:
                    kind = os.lstat(entry, dir_fd=folder).st_mode
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(kind):
                    waiting.append([*here, entry])
                elif stat.S_ISREG(kind) and is_utf8(entry):
                    yield [*here, entry]
        finally:
            os.close(folder)


def open_file(path: list[str]) -> int:
    """Return a descriptor of a file in the job's folder."""
    shown = "/".join(path)
    if not path:
        fail("the job's folder is no file")
    folder = opened(path[:-1])
    try:
        handle = os.open(path[-1], FILE, dir_fd=folder)
    except OSError as error:
        fail(why(error, shown))
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        fail(f"{shown} is no file")
    return handle


# --- paths ----------------------------------------------------------------------------------------


def parts(path: str) -> list[str]:
    """Return the names that lead from the job's folder to a path."""
    if path in {"", "."}:
        return []
    names = (path[:-1] if path.endswith("/") else path).split("/")  # noqa: FURB188 - Python 3.8
    if path.startswith("/") or "\0" in path or any(name in {"", ".", ".."} for name in names):
        fail(f"{path[:200]!r} is no path in the job's folder")
    if any(len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX for name in names):
        fail(f"{path[:64]!r}... has a name that is longer than Linux takes")
    return names


def opened(names: list[str], *, make: bool = False) -> int:
    """Return a descriptor of a folder in the job's folder; `make` it if it is missing."""
    folder = os.open(".", FOLDER)
    for number, name in enumerate(names, 1):
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            inner = os.open(name, FOLDER, dir_fd=folder)
        except OSError as error:
            fail(why(error, "/".join(names[:number])))
        finally:
            os.close(folder)
        folder = inner
    return folder


def is_folder(names: list[str]) -> bool:
    """Return whether a folder is there, which no link leads to."""
    folder = os.open(".", FOLDER)
    try:
        for name in names:
            inner = os.open(name, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def why(error: OSError, shown: str) -> str:
    """Return in words why a path cannot be used."""
    if error.errno in LINKED:
        return f"{shown} is a link or no folder, or leads through one: no link is followed"
    if error.errno == errno.ENOENT:
        return f"the job's folder has no {shown}"
    return f"{shown}: {error.strerror}"


def is_utf8(text: str) -> bool:
    """Return whether a name can be said."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def fail(text: str) -> NoReturn:
    """Stop with one line for a person.

    Raises:
        CopyError: Always.
    """
    raise CopyError(text)


# --- what is said and taken -----------------------------------------------------------------------

came = bytearray()
"""What was taken from standard input and not used yet."""


def say(what: dict[str, Any]) -> None:
    """Say a line."""
    put_bytes(json.dumps(what).encode() + b"\n")


def put_bytes(data: bytes) -> None:
    """Say some bytes."""
    while data:
        data = data[os.write(1, data) :]


def read_some(most: int) -> bytes:
    """Take what comes next; empty: nothing does any more."""
    return os.read(0, most)


def take_line() -> bytes:
    """Take a line; empty: there are no more."""
    while (end := came.find(b"\n")) < 0:
        if len(came) > LINE_BYTES_MAX:
            fail("a line is too long")
        piece = read_some(PIECE_BYTES)
        if not piece:
            return b""
        came.extend(piece)
    line = bytes(came[:end])
    del came[: end + 1]
    return line


def take(most: int) -> bytes:
    """Take some bytes, `most` at most; none: there are no more."""
    if not came:
        return read_some(most)
    piece = bytes(came[:most])
    del came[:most]
    return piece


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except BrokenPipeError:
        code = 1
    sys.exit(code)
