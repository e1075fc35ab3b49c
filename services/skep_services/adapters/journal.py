"""An agent's fact log: one local file, synced at every append.

The file is MAGIC, then frames of length (4 bytes, little-endian), CRC-32 of the payload (4 bytes),
and the payload: a record in the bytes every fact log uses. An append that a crash cut short leaves
a torn frame at the very end, which replay cuts off; it was never acknowledged. Damage anywhere
else is an error.

Beside it, `<path>.lock` is held by the one process that owns the journal, and remembers that the
journal exists, so that a lost journal is not taken for a new node's.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import struct
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from skep.units import Instant
from skep.wire.bearing import RULES
from skep.wire.facts import EpochBegan
from skep_services.adapters.records import RECORD_BYTES_MAX, Chain
from skep_services.ports import CorruptLogError, LogRecord, MissingLogError, SupersededError

log = logging.getLogger(__name__)

MAGIC = b"SKEPLOG1"
FRAME = struct.Struct("<II")
FRAME_BYTES_MAX = FRAME.size + RECORD_BYTES_MAX
COMPACT_BYTES_MAX = RECORD_BYTES_MAX // 2
"""Facts are packed into records of about this size; one larger fact has a record of its own."""
KNOWN = b"created\n"
"""What the lock file holds once the journal exists."""


class JournalFactLog:
    """The fact log in the file `path`, owned by one process at a time.

    `facts` is the union of its fact classes. Appends sync in the calling thread: 0.2 ms is usual,
    less than handing over to another thread and back costs under load. An OSError leaves the log
    closed for appends, because what is on the disk is unknown then: the process must exit.
    """

    def __init__(self, path: Path, facts: Any) -> None:
        self.path = path
        self.size = 0
        self._lock_path = path.with_name(f"{path.name}.lock")
        self._part_path = path.with_name(f"{path.name}.part")
        self._facts = facts
        self._chain = Chain(f"journal {path}", facts)
        self._lock_fd = -1
        self._fd = -1
        self._owner = ""
        self._replayed = False
        self._busy = False
        self._at = Instant(0)
        self._positions: dict[str, int] = {}

    async def replay(self) -> AsyncIterator[LogRecord]:
        """Take ownership and yield every record in order, having verified counter and hash chain.

        Creates the journal on a node that never had one.

        Raises:
            SupersededError: Another process owns the journal.
            MissingLogError: The journal existed and is gone.
            CorruptLogError: The journal is damaged before its end, or does not continue its chain.
        """
        assert not self._owner, "what this process appends it has applied"
        if self._replayed:
            return  # This process owns the journal: no other has appended.
        self._take_ownership()
        for record in self._read():
            self._note(record)
            yield record
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self._replayed = True

    async def begin_epoch(self, owner: str, at: Instant) -> LogRecord:
        assert self._replayed, "an epoch begins behind the replayed log"
        assert owner, "the owner's name makes its records its own"
        assert not self._owner, "one process begins one epoch"
        self._owner = owner
        epoch = self._chain.epoch + 1
        return self._append((EpochBegan(epoch=epoch, owner=owner, rules=RULES),), {}, at, epoch)

    async def append(
        self, facts: Sequence[Any], positions: Mapping[str, int], at: Instant, noted: bytes = b""
    ) -> LogRecord:
        assert self._owner, "append follows begin_epoch"
        return self._append(facts, positions, at, self._chain.epoch, noted)

    def _append(
        self,
        facts: Sequence[Any],
        positions: Mapping[str, int],
        at: Instant,
        epoch: int,
        noted: bytes = b"",
    ) -> LogRecord:
        assert not self._busy, "the journal is being compacted, or an earlier append failed"
        record, payload = self._chain.encode(facts, positions, at, epoch, noted)
        self._busy = True
        _write_whole(self._fd, _frame(payload))
        os.fdatasync(self._fd)
        self._chain.advance(record, payload)
        self.size += FRAME.size + len(payload)
        self._note(record)
        self._busy = False
        return record

    async def compact(self, facts: Sequence[Any]) -> None:
        """Replace every record by as few as hold `facts`, which must rebuild the same state.

        Counters begin at 1 again; the epoch and the newest position of each input are kept. Either
        the old or the whole new journal survives a crash. No append may run meanwhile.
        """
        assert self._owner, "compact follows begin_epoch"
        assert not self._busy, "no append or compaction may run meanwhile"
        self._busy = True
        chain, frames = await asyncio.to_thread(self._pack, tuple(facts))
        fd = await asyncio.to_thread(self._replace, frames)
        os.close(self._fd)
        self._fd = fd
        self._chain = chain
        self.size = len(MAGIC) + sum(len(frame) for frame in frames)
        self._busy = False

    def close(self) -> None:
        """Give the journal up; another process may own it then."""
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock_fd = -1
        self._busy = True

    def _note(self, record: LogRecord) -> None:
        self._at = record.at
        self._positions.update(record.positions)

    # --- opening ---------------------------------------------------------------------------

    def _take_ownership(self) -> None:
        self._lock_fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                raise
            message = f"{self.path}: another process owns this journal; stop it first"
            raise SupersededError(message) from error
        known = os.pread(self._lock_fd, len(KNOWN), 0) == KNOWN
        if not self.path.exists():
            if known:
                message = f"{self.path} is gone; restore it, or remove {self._lock_path} to forget"
                raise MissingLogError(message)
            os.close(self._replace([]))
        if not known:
            os.pwrite(self._lock_fd, KNOWN, 0)
            os.fsync(self._lock_fd)

    def _read(self) -> Iterator[LogRecord]:
        """Yield the records; cut off a torn one at the end.

        Raises:
            CorruptLogError: The file is no journal of this version, or is damaged.
        """
        with self.path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                message = f"{self.path} does not begin like a journal of this version"
                raise CorruptLogError(message)
            self.size = len(MAGIC)
            while (payload := _next_payload(file)) is not None:
                yield self._chain.read(payload, f"byte {self.size}")
                self.size += FRAME.size + len(payload)
            file.seek(self.size)
            rest = file.read(FRAME_BYTES_MAX + 1)
        if rest:
            self._cut(rest)

    def _cut(self, rest: bytes) -> None:
        """Remove `rest`, what one interrupted append left.

        Raises:
            CorruptLogError: It is more than one append leaves: the journal is damaged.
        """
        if len(rest) > FRAME_BYTES_MAX or _holds_frame(rest):
            message = (
                f"{self.path} is damaged at byte {self.size}, before its end; "
                f"restore it from a backup, or have the node rejoin as a new one"
            )
            raise CorruptLogError(message)
        log.warning("%s: cut off %d bytes of an interrupted append", self.path, len(rest))
        fd = os.open(self.path, os.O_WRONLY)
        try:
            os.ftruncate(fd, self.size)
            os.fsync(fd)
        finally:
            os.close(fd)

    # --- rewriting -------------------------------------------------------------------------

    def _pack(self, facts: tuple[Any, ...]) -> tuple[Chain, list[bytes]]:
        """Return the frames of a journal that holds `facts`, and the chain behind them."""
        chain = Chain(self._chain.name, self._facts)
        frames = []
        batches = _batches(facts)
        for index, batch in enumerate(batches):
            positions = self._positions if index == len(batches) - 1 else {}
            record, payload = chain.encode(batch, positions, self._at, self._chain.epoch)
            chain.advance(record, payload)
            frames.append(_frame(payload))
        return chain, frames

    def _replace(self, frames: Sequence[bytes]) -> int:
        """Make `frames` the journal, atomically, and return its descriptor for appending."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        fd = os.open(self._part_path, flags, 0o600)
        try:
            _write_whole(fd, MAGIC + b"".join(frames))
            os.fsync(fd)
            self._part_path.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _frame(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _next_payload(file: BinaryIO) -> bytes | None:
    """Return the payload of the next whole frame, or None at the end or at anything else."""
    head = file.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    length, checksum = FRAME.unpack(head)
    if not 0 < length <= RECORD_BYTES_MAX:
        return None
    payload = file.read(length)
    whole = len(payload) == length and zlib.crc32(payload) == checksum
    return payload if whole else None


def _holds_frame(rest: bytes) -> bool:
    """Return whether a whole frame begins anywhere in `rest`: then `rest` is no torn append."""
    for start in range(len(rest) - FRAME.size):
        length, checksum = FRAME.unpack_from(rest, start)
        end = start + FRAME.size + length
        plausible = length > 0 and end <= len(rest)
        if plausible and zlib.crc32(rest[start + FRAME.size : end]) == checksum:
            return True
    return False


def _write_whole(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _batches(facts: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Split facts into runs of about COMPACT_BYTES_MAX; without facts, one empty run."""
    batches: list[list[Any]] = [[]]
    size = 0
    for fact in facts:
        fact_size = len(msgspec.json.encode(fact)) + 1
        if batches[-1] and size + fact_size > COMPACT_BYTES_MAX:
            batches.append([])
            size = 0
        batches[-1].append(fact)
        size += fact_size
    return [tuple(batch) for batch in batches]
