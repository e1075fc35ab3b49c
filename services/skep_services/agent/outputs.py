"""Answers what a job's folder on this node has, and with pieces of its files.

Only what is in the attempt's folder can be named. A path is walked by descriptors, name by name,
and a link on the way is refused: no file outside can be reached, whatever the job makes meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from skep.ids import job_sequence
from skep.wire import codec
from skep.wire.bounds import UNDECODABLE, one_line
from skep.wire.reasons import Reason
from skep.wire.snapshot import LISTED_FILES_MAX, OUTPUT_PIECE_BYTES_MAX, AskOutputs, unsafe
from skep_services.agent.code import JobCode, Work, work_path
from skep_services.ports import Bus, Delivery

SIZE, TOKEN, REFUSED, REASON = "Skep-Size", "Skep-Token", "Skep-Refused", "Skep-Reason"
DIGEST = "Skep-Digest"
LISTED_BYTES_MAX = 512 * 1024
"""Of paths in one answer, which is one message."""
LOOKED_AT_MAX = 100_000
"""Entries that are looked at for one answer."""
READ_BYTES = 1024 * 1024
HASHED_AT_ONCE = 2
DIGEST_WAIT_S = 0.05
"""What an answer waits for a digest: small files have theirs at once."""
DIGESTS_MAX = 1000

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_ASKS = msgspec.json.Decoder(AskOutputs)


class OutputFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that a job left: path from its workdir, bytes, and when it was written (s)."""

    path: str
    size: int
    at: int


class Listed(msgspec.Struct, frozen=True):
    """The files of an attempt's outputs on this node; `more`: there are others beside these."""

    attempts: tuple[int, ...]
    files: tuple[OutputFile, ...] = ()
    more: bool = False


class _Refusal(Exception):  # noqa: N818  a name for what happened
    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class _Answer(NamedTuple):
    payload: bytes
    headers: dict[str, str]


class JobOutputs:
    """Serves `skep.v1.outputs.<node>`."""

    def __init__(self, bus: Bus, code: JobCode, shared: Path) -> None:
        self._bus, self._code, self._shared = bus, code, shared
        self._digests: dict[tuple[int, ...], str] = {}
        self._hashing: dict[tuple[int, ...], asyncio.Task[None]] = {}

    async def answer(self, asked: Delivery) -> None:
        """Answer one request; what cannot be given is refused with one line."""
        if not asked.reply:
            return
        try:
            answer = await self._given(asked.payload)
        except _Refusal as refusal:
            answer = _Answer(b"", {REFUSED: one_line(refusal), REASON: refusal.reason})
        except OSError as error:
            text = f"it cannot be read: {error.strerror}"
            answer = _Answer(b"", {REFUSED: one_line(OSError(text)), REASON: Reason.NO_OUTPUT})
        await self._bus.send(asked.reply, answer.payload, answer.headers)

    async def close(self) -> None:
        """Hash no more."""
        tasks = list(self._hashing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _given(self, payload: bytes) -> _Answer:
        try:
            ask = _ASKS.decode(payload)
        except UNDECODABLE as error:
            raise _Refusal(Reason.BAD_VALUE, str(error)) from None
        if job_sequence(ask.job) is None:
            raise _Refusal(Reason.BAD_VALUE, "there is no such job")
        work = self._code.find(ask.job, ask.attempt)
        if not ask.path:
            listed = await asyncio.to_thread(self._listed, ask.job, work)
            return _Answer(codec.encode(listed), {})
        if work is None:
            text = f"attempt {ask.attempt} of {ask.job} has no folder on this node (any more)"
            raise _Refusal(Reason.NO_OUTPUT, text)
        handle = self._open(work, ask.path)
        try:
            return await self._read(handle, ask)
        finally:
            os.close(handle)

    async def _read(self, handle: int, ask: AskOutputs) -> _Answer:
        """Return a piece of a file, or its digest once that is known.

        Raises:
            _Refusal: The file is another one than the reader began with.
        """
        seen = os.fstat(handle)
        state = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)
        token = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
        if ask.token and ask.token != token:
            raise _Refusal(Reason.OUTPUT_CHANGED, f"{ask.path} changed while it was copied")
        headers = {SIZE: str(seen.st_size), TOKEN: token}
        if ask.digest:
            if digest := await self._digest(handle, state):
                headers[DIGEST] = digest
            return _Answer(b"", headers)
        piece = await asyncio.to_thread(os.pread, handle, OUTPUT_PIECE_BYTES_MAX, ask.offset)
        return _Answer(piece, headers)

    async def _digest(self, handle: int, state: tuple[int, ...]) -> str:
        """Return the SHA-256 of a file; empty while it is being read, so that it is asked again."""
        if state in self._digests:
            return self._digests[state]
        task = self._hashing.get(state)
        if task is None and len(self._hashing) < HASHED_AT_ONCE:
            task = asyncio.create_task(self._hash(os.dup(handle), state))
            self._hashing[state] = task
        if task is not None:
            await asyncio.wait((task,), timeout=DIGEST_WAIT_S)
        return self._digests.get(state, "")

    async def _hash(self, handle: int, state: tuple[int, ...]) -> None:
        try:
            found = await asyncio.to_thread(_hashed, handle, state[2])
            if len(self._digests) >= DIGESTS_MAX:
                self._digests.clear()
            self._digests[state] = found
        finally:
            os.close(handle)
            del self._hashing[state]

    def _listed(self, job: str, work: Work | None) -> Listed:
        attempts = tuple(self._code.attempts(job))
        if work is None:
            return Listed(attempts)
        base = str(work_path(self._shared, work.job, work.attempt))
        found: list[OutputFile] = []
        size = 0
        for one in _files(base, work):
            size += len(one.path.encode()) + 40
            if len(found) >= LISTED_FILES_MAX or size > LISTED_BYTES_MAX:
                return Listed(attempts, tuple(found), more=True)
            found.append(one)
        return Listed(attempts, tuple(sorted(found, key=lambda one: one.path)))

    def _open(self, work: Work, path: str) -> int:
        """Return a descriptor of a file in an attempt's folder.

        Raises:
            _Refusal: The path leads elsewhere, or to no file.
            OSError: The disk fails.
        """
        if why := unsafe(path):
            text = f"{path[:200]!r} is no path in the job's folder: {why}"
            raise _Refusal(Reason.BAD_VALUE, text)
        folder = os.open(work_path(self._shared, work.job, work.attempt), FOLDER)
        try:
            parts = [*_parts(work.workdir), *path.split("/")]
            for part in parts[:-1]:
                inner = os.open(part, FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            return _open_file(folder, parts[-1], path)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                text = f"{path[:200]!r} leads through a link or a file, which is not followed"
                raise _Refusal(Reason.NO_OUTPUT, text) from None
            if error.errno == errno.ENOENT:
                text = f"the job's folder has no {path[:200]!r}"
                raise _Refusal(Reason.NO_OUTPUT, text) from None
            raise
        finally:
            os.close(folder)


def _open_file(folder: int, name: str, path: str) -> int:
    handle = os.open(name, FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _Refusal(Reason.NO_OUTPUT, f"{path[:200]!r} is no file")
    return handle


def _parts(workdir: str) -> list[str]:
    return [part for part in workdir.split("/") if part not in {"", "."}]


def _files(base: str, work: Work) -> Iterator[OutputFile]:
    """Yield the files of an attempt's outputs; no link is followed."""
    within = "/".join(_parts(work.workdir))
    looked_at = 0
    waiting = [output.rstrip("/") for output in reversed(work.outputs)]
    while waiting and looked_at < LOOKED_AT_MAX:
        path = waiting.pop()
        place = os.path.join(base, within, path)
        try:
            if os.path.realpath(os.path.dirname(place)) != os.path.dirname(os.path.normpath(place)):
                continue  # A link is on the way.
            seen = os.lstat(place)
            looked_at += 1
            if stat.S_ISDIR(seen.st_mode):
                waiting += [f"{path}/{name}" for name in sorted(os.listdir(place), reverse=True)]
            elif stat.S_ISREG(seen.st_mode) and _is_utf8(path):
                yield OutputFile(path, seen.st_size, int(seen.st_mtime))
        except OSError:
            continue  # It is being removed, or is not the agent's to read.


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _hashed(handle: int, size: int) -> str:
    digest, at = hashlib.sha256(), 0
    while at < size and (piece := os.pread(handle, READ_BYTES, at)):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()
