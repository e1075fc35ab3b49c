"""Old messages of streams as files: packed segments, each bound to the one before it.

    archive/ALLOC/segments.json                     what there is, in order
    archive/ALLOC/000000000001-000000020000.jsonl.gz

A segment is an export (`exported`) of one stream. `segments.json` names its SHA-256, and a chain:
the hash of that and of the chain before it. A segment is complete, read back and listed before the
stream gives its messages up, so at every moment the archive and the stream together have all of
them; some may be in both.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from skep.units import Instant
from skep.wire.bounds import UNDECODABLE
from skep_services import durable
from skep_services.adapters import exported
from skep_services.links import NO_RECORD
from skep_services.ports import CorruptLogError, Delivery

VERSION = 1
INDEX = "segments.json"
READ_BYTES = 1024 * 1024


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Some messages of a stream. All from `first` to `last` are in it that the stream had."""

    file: str
    first: int
    last: int
    messages: int
    began_at: Instant
    ended_at: Instant
    size: int
    sha256: str
    chain: str


class _Index(msgspec.Struct, frozen=True):
    v: int
    stream: str
    segments: tuple[Segment, ...]


class ArchiveError(CorruptLogError):
    """An archive is damaged, or lacks what is needed; the text says what and where."""


class Archive:
    """The archive in a folder, which need not be there. One process adds to it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def segments(self, stream: str) -> tuple[Segment, ...]:
        """Return what there is of a stream, the chain verified.

        Raises:
            ArchiveError: The list is damaged.
        """
        path = self.folder / stream / INDEX
        try:
            index = msgspec.json.decode(path.read_bytes(), type=_Index)
        except FileNotFoundError:
            return ()
        except (*UNDECODABLE, OSError) as error:
            text = f"{path} cannot be read ({error}): restore the archive from a backup"
            raise ArchiveError(text) from error
        if index.v != VERSION or index.stream != stream:
            text = f"{path}: version {index.v} of {index.stream}, not {VERSION} of {stream}"
            raise ArchiveError(text)
        chain, last = NO_RECORD, 0
        for one in index.segments:
            chain = _linked(chain, one.sha256)
            if one.chain != chain or one.first != last + 1 or one.last < one.first:
                text = f"{path}: {one.file} does not continue the segments before it"
                raise ArchiveError(text)
            last = one.last
        return index.segments

    def last(self, stream: str) -> int:
        """Return the sequence up to which a stream is archived; 0: it is not."""
        segments = self.segments(stream)
        return segments[-1].last if segments else 0

    def read(self, stream: str, after: int = 0) -> Iterator[Delivery]:
        """Yield the archived messages behind a sequence, in order.

        Raises:
            ArchiveError: A segment is damaged or missing.
        """
        for one in self.segments(stream):
            if one.last > after:
                self.verify(stream, one)
                for message in self._messages(stream, one):
                    if message.sequence > after:
                        yield message

    def verify(self, stream: str, segment: Segment) -> None:
        """Return if a segment's file is what was written.

        Raises:
            ArchiveError: It is not, or is missing.
        """
        path = self.folder / stream / segment.file
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while part := file.read(READ_BYTES):
                    digest.update(part)
        except OSError as error:
            text = f"{path} cannot be read ({error.strerror}): restore the archive from a backup"
            raise ArchiveError(text) from error
        if digest.hexdigest() != segment.sha256:
            text = f"{path} is damaged (its hash is another): restore the archive from a backup"
            raise ArchiveError(text)

    def add(self, stream: str, messages: Sequence[Delivery], last: int) -> Segment:
        """Add a segment. It is durable, and was read back, on return.

        Args:
            stream: The stream.
            messages: All messages that it has behind what is archived, up to `last`.
            last: The sequence up to which the segment speaks; messages before it may be gone.

        Raises:
            ArchiveError: What is read back is not what was written.
            OSError: It cannot be written.
        """
        before = self.segments(stream)
        first = before[-1].last + 1 if before else 1
        assert messages, "an empty segment says nothing"
        assert first <= messages[0].sequence, (stream, first, messages[0].sequence)
        assert messages[-1].sequence <= last, (stream, messages[-1].sequence, last)
        folder = self.folder / stream
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{first:012}-{last:012}.jsonl.gz"
        draft = folder / f".{name}"
        exported.write(draft, {stream: messages})
        os.chmod(draft, 0o600)
        _sync(draft)
        os.replace(draft, folder / name)
        durable.sync_folder(str(folder))
        data = (folder / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        segment = Segment(
            file=name,
            first=first,
            last=last,
            messages=len(messages),
            began_at=messages[0].at,
            ended_at=messages[-1].at,
            size=len(data),
            sha256=digest,
            chain=_linked(before[-1].chain if before else NO_RECORD, digest),
        )
        if list(self._messages(stream, segment)) != list(messages):
            text = f"{folder / name}: what was read back is not what was written"
            raise ArchiveError(text)
        index = _Index(VERSION, stream, (*before, segment))
        durable.write(str(folder / INDEX), msgspec.json.encode(index), 0o600)
        return segment

    def _messages(self, stream: str, segment: Segment) -> Iterator[Delivery]:
        path = self.folder / stream / segment.file
        try:
            yield from exported.each(path, stream)
        except (exported.ExportError, OSError) as error:
            text = f"{path} cannot be read ({error}): restore the archive from a backup"
            raise ArchiveError(text) from error


def _linked(chain: str, digest: str) -> str:
    return hashlib.sha256(f"{chain}{digest}".encode()).hexdigest()


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
