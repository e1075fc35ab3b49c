"""`skep cp` by a session in the job: into its folder, and out of the folder of one without code.

What is sent in the session is said by `skep_job/terminal/copy.py`, which runs beside the job.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import select
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from skep_services.cli import exits, session
from skep_services.cli.client import Client
from skep_services.cli.exits import CommandError
from skep_services.cli.progress import Transfer

FILE_BYTES_MAX = 64 << 30
FILES_MAX = 2000
LINE_BYTES_MAX = 1 << 20
PIECE_BYTES = 32 * 1024
READ_BYTES = 1024 * 1024
SIZE = struct.Struct(">I")
STALLED_S = 0.5
"""How long standard output is waited for before the session is looked after again."""


class Local(NamedTuple):
    """A file here, and its path from what is copied; empty: it is that."""

    place: str
    path: str
    size: int
    mode: int


# --- into the job ---------------------------------------------------------------------------------


def put(client: Client, job: str, source: str, place: str, rank: int) -> list[dict[str, Any]]:
    """Copy a file or a folder to the folder of a running job; return what was copied.

    Raises:
        CommandError: It cannot be read, or not be written there, or the session was lost.
    """
    files, folder = _files(source)
    name = os.path.basename(os.path.abspath(source))
    argv = ["put", place, name, "folder" if folder else "file"]
    reader, writer = os.pipe()
    sender = _Sender(files, writer)
    wanted = {"what": "copy", "argv": argv, "rank": rank}
    try:
        carried = session.Session(client, job, wanted, stdin=reader, write=sender.hear)
        sender.start()
        code = carried.run().code
    except CommandError as error:
        if error.error.get("reason") != "session-lost":
            raise
        text = f"{error.text}; repeat the command: it goes on where it was"
        raise CommandError(error.code, text, "session-lost") from None
    finally:
        os.close(reader)
        sender.stop()
    if sender.trouble or code:
        text = sender.trouble or f"what writes the files in {job} ended with status {code}"
        raise CommandError(exits.FAILED, text, "copy-refused")
    return sender.done


def _files(source: str) -> tuple[list[Local], bool]:
    """Return the files to send, and whether they are those of a folder.

    Raises:
        CommandError: There is none, or too much.
    """
    try:
        seen = os.stat(source)
        if not stat.S_ISDIR(seen.st_mode):
            found = [_local(source, "", seen)]
        else:
            found = list(_below(source))
    except OSError as error:
        text = f"{error.filename or source} cannot be read: {error.strerror}"
        raise CommandError(exits.FAILED, text) from None
    if len(found) > FILES_MAX:
        text = f"{source} has more than {FILES_MAX} files: pack them into one, or use a volume"
        raise CommandError(exits.FAILED, text, "too-large")
    return found, stat.S_ISDIR(seen.st_mode)


def _local(place: str, path: str, seen: os.stat_result) -> Local:
    if not stat.S_ISREG(seen.st_mode):
        text = f"{place} is neither a file nor a folder: its length is not known"
        raise CommandError(exits.USAGE, text, "bad-value")
    if seen.st_size > FILE_BYTES_MAX:
        text = f"{place} has more than {FILE_BYTES_MAX >> 30} GiB: use a volume"
        raise CommandError(exits.FAILED, text, "too-large")
    return Local(place, path, seen.st_size, stat.S_IMODE(seen.st_mode))


def _below(source: str) -> Iterator[Local]:
    """Yield the files below a folder; stop where a link is, of which it is not clear what is meant.

    Raises:
        CommandError: Something there is no file and no folder.
    """
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        here = os.path.join(source, inner) if inner else source
        for name in sorted(os.listdir(here)):
            place, path = os.path.join(here, name), os.path.join(inner, name)
            seen = os.lstat(place)
            if stat.S_ISDIR(seen.st_mode):
                waiting.append(path)
            elif stat.S_ISLNK(seen.st_mode):
                text = f"{place} is a link, which is not followed: copy what it leads to by itself"
                raise CommandError(exits.FAILED, text, "bad-value")
            else:
                yield _local(place, path, seen)


class _Sender:
    """Sends files from a thread of its own, while the session is carried by another one."""

    def __init__(self, files: list[Local], writer: int) -> None:
        self.done: list[dict[str, Any]] = []
        self.trouble = ""
        self._files, self._writer = files, writer
        self._came = bytearray()
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._begun = False

    def start(self) -> None:
        """Begin."""
        self._begun = True
        self._thread.start()

    def hear(self, number: int, data: bytes) -> int:
        """Take what the other side says; return how much of it was taken."""
        if number == session.STDOUT:
            self._came += data
            while (end := self._came.find(b"\n")) >= 0:
                self._lines.put(_read(bytes(self._came[:end])))
                del self._came[: end + 1]
            if len(self._came) > LINE_BYTES_MAX:
                del self._came[:]
                self._lines.put({"error": "what writes the files said something too long"})
        return len(data)

    def stop(self) -> None:
        """Return when nothing is sent any more. The session is over by then."""
        self._lines.put(None)
        if self._begun:
            self._thread.join()
        else:
            os.close(self._writer)

    def _run(self) -> None:
        try:
            self._send()
        except CommandError as error:
            self.trouble = self.trouble or error.text
        except OSError as error:
            # A pipe that nobody reads any more: the session says why.
            if not isinstance(error, BrokenPipeError):
                self.trouble = f"{error.filename or 'a file'} cannot be read: {error.strerror}"
        finally:
            os.close(self._writer)

    def _send(self) -> None:
        place = self._answer("place")
        if place is None:
            return
        for one in self._files:
            digest = _digest(one.place)
            head = {"path": one.path, "size": one.size, "mode": one.mode, "sha256": digest}
            self._put(json.dumps(head).encode() + b"\n")
            have = self._answer("have")
            if have is None:
                return
            self._send_from(one, int(have))
            if self._answer("done") is None:
                return
            to = "/".join(each for each in (str(place), one.path) if each)
            self.done.append(
                {"path": one.place, "to": to, "bytes": one.size, "sha256": digest, "had": int(have)}
            )

    def _send_from(self, one: Local, at: int) -> None:
        line = Transfer(f"copying {os.path.basename(one.place)}")
        with open(one.place, "rb") as file:
            file.seek(at)
            while at < one.size:
                piece = file.read(min(PIECE_BYTES, one.size - at))
                if not piece:
                    text = f"{one.place} became shorter while it was copied: copy it again"
                    raise CommandError(exits.FAILED, text)
                self._put(piece)
                at += len(piece)
                line.tell(at, one.size)
        line.end()

    def _answer(self, key: str) -> Any:
        """Return what the other side says of something; None: it says no more."""
        found = self._lines.get()
        if found is not None and key not in found:
            self.trouble = str(found.get("error", "what writes the files said what cannot be"))
            return None
        return None if found is None else found[key]

    def _put(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._writer, data) :]


def _read(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"error": "what writes the files is not Skep's"}


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


# --- out of the job -------------------------------------------------------------------------------


def get(
    client: Client, job: str, path: str, rank: int, place_of: Callable[[str, bool], str]
) -> list[dict[str, Any]]:
    """Copy a file or a folder out of the folder of a running job; return what was copied.

    Args:
        client: The gateway.
        job: The job.
        path: Of the file or folder.
        rank: On which rank's machine.
        place_of: Says where a file goes, by its path in a folder and whether there is a folder;
            empty: to standard output.

    Raises:
        CommandError: It cannot be had or written, or came otherwise than it is there.
    """
    taker = _Taker(path, place_of)
    wanted = {"what": "copy", "argv": ["get", path], "rank": rank}
    try:
        code = session.Session(client, job, wanted, stdin=-1, write=taker.hear).run().code
    finally:
        taker.close()
    if code or not taker.whole:
        text = taker.trouble or f"{path} came in part only: copy it again"
        raise CommandError(exits.FAILED, text, "copy-refused")
    return taker.done


class _Taker:
    """Writes what comes, as it comes: one line, then pieces of each file and its digest."""

    def __init__(self, path: str, place_of: Callable[[str, bool], str]) -> None:
        self.done: list[dict[str, Any]] = []
        self.trouble = ""
        self._path, self._place_of = path, place_of
        self._came = bytearray()
        self._files: list[tuple[str, int, int]] | None = None
        self._folder = False
        self._to = self._part = ""
        self._handle, self._got, self._left = -1, 0, 0
        self._digest = hashlib.sha256()
        self._awaits_digest = False

    @property
    def whole(self) -> bool:
        """Return whether all came."""
        return self._files is not None and len(self.done) == len(self._files)

    def hear(self, number: int, data: bytes) -> int:
        """Take what came, or 0 while standard output takes nothing.

        Raises:
            CommandError: It is not what was asked for, or cannot be written.
            BrokenPipeError: Nobody reads standard output any more.
        """
        if number != session.STDOUT:
            return len(data)
        to_person = self._handle == sys.stdout.fileno()
        if to_person and not select.select([], [self._handle], [], STALLED_S)[1]:
            return 0
        self._came += data
        try:
            while self._step():
                pass
        except BrokenPipeError:
            raise
        except OSError as error:
            text = f"{self._part or self._to} cannot be written: {error.strerror}"
            raise CommandError(exits.FAILED, text) from None
        return len(data)

    def close(self) -> None:
        """Leave no half of a file behind."""
        if self._part:
            with contextlib.suppress(OSError):
                os.close(self._handle)
                os.unlink(self._part)

    def _step(self) -> bool:
        """Use some of what came; return whether there may be more to use.

        Raises:
            _nonsense: A CommandError: a line has no end.
        """
        if self._handle >= 0 and not self._awaits_digest:
            return self._step_piece()
        end = self._came.find(b"\n")
        if end < 0:
            if len(self._came) > LINE_BYTES_MAX:
                raise _nonsense()
            return False
        line = _read(bytes(self._came[:end]))
        del self._came[: end + 1]
        if "error" in line:
            self.trouble = str(line["error"])
        elif self._awaits_digest:
            self._end_file(str(line.get("sha256", "")))
        elif self._files is None:
            self._begin(line)
        return True

    def _step_piece(self) -> bool:
        """Use some of a file's bytes; return whether there may be more to use.

        Raises:
            _nonsense: A CommandError: the file is larger than any may be.
        """
        if not self._left:
            if len(self._came) < SIZE.size:
                return False
            (self._left,) = SIZE.unpack_from(self._came)
            del self._came[: SIZE.size]
            if not self._left:
                self._awaits_digest = True
                return True
        piece = bytes(self._came[: self._left])
        del self._came[: len(piece)]
        self._left -= len(piece)
        self._got += len(piece)
        if self._got > FILE_BYTES_MAX:
            raise _nonsense()
        self._digest.update(piece)
        while piece:
            piece = piece[os.write(self._handle, piece) :]
        return bool(self._came)

    def _begin(self, line: dict[str, Any]) -> None:
        """Take note of which files come.

        Raises:
            CommandError: They are none that may come, or cannot go to standard output.
            _nonsense: A CommandError: it is no list of files.
        """
        from skep.wire.snapshot import unsafe

        try:
            files = [(str(path), int(size), int(mode)) for path, size, mode in line["files"]]
            self._folder = bool(line["folder"])
        except (KeyError, TypeError, ValueError):
            raise _nonsense() from None
        # What comes is the job's to say: no path of it may lead out of the place here.
        fine = all(unsafe(path) == "" if self._folder else path == "" for path, _, _ in files)
        if not fine or len(files) > FILES_MAX or (not self._folder and len(files) != 1):
            raise _nonsense()
        self._files = files
        if self._folder and not self._place_of("", True):
            text = f"{self._path} is a folder: only a file can be copied to standard output"
            raise CommandError(exits.USAGE, text, "bad-value")
        self._begin_file()

    def _begin_file(self) -> None:
        assert self._files is not None
        if self.whole:
            self._handle = -1
            return
        path, _, mode = self._files[len(self.done)]
        self._to = self._place_of(path, self._folder)
        self._got, self._digest = 0, hashlib.sha256()
        if not self._to:
            self._handle = sys.stdout.fileno()
            return
        folder = os.path.dirname(self._to)
        if folder:
            os.makedirs(folder, exist_ok=True)
        part = f"{self._to}.skep-part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        self._handle = os.open(part, flags, mode | 0o600)
        self._part = part

    def _end_file(self, digest: str) -> None:
        assert self._files is not None
        name = self._files[len(self.done)][0] or self._path
        if digest != self._digest.hexdigest():
            text = f"{name} came corrupt: its SHA-256 is not that of the file there: copy it again"
            raise CommandError(exits.FAILED, text, "corrupt")
        if self._part:
            os.close(self._handle)
            os.replace(self._part, self._to)
        inner = self._files[len(self.done)][0]
        shown = "/".join(each for each in (self._path, inner) if each)
        self._part = ""
        self.done.append({"path": shown, "to": self._to, "bytes": self._got, "sha256": digest})
        self._awaits_digest = False
        self._begin_file()


def _nonsense() -> CommandError:
    return CommandError(exits.FAILED, "what came of the job is no copy of a file", "corrupt")
