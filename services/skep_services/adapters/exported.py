"""A cluster's streams as a file: one message as JSON on a line, packed if the name ends in .gz."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from skep.units import Instant
from skep.wire import subjects
from skep_services.ports import Delivery

STREAMS = tuple(subjects.STREAMS)


BEGINNING = b'{"stream":'
TELL_EVERY = 2000
"""Lines between two words on how far reading is."""


class ExportError(Exception):
    """A file is no export; the text says where and why."""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    stream: str
    sequence: int
    at: Instant
    subject: str
    payload: str = ""
    raw: bytes = b""
    """The payload if it is no text: in JSON base64."""
    headers: Mapping[str, str] = {}


class Writer:
    """An export that is written message by message."""

    def __init__(self, path: Path) -> None:
        """Begin the file; it is packed if its name ends in .gz.

        Raises:
            OSError: The file cannot be written.
        """
        self._file = _open(path, "wb")
        self._encoder = msgspec.json.Encoder()

    def write(self, one: Delivery) -> None:
        """Write a message."""
        self._file.write(self._encoder.encode(_line(one.stream, one)) + b"\n")

    def close(self) -> None:
        """End the file."""
        self._file.close()


def write(path: Path, streams: Mapping[str, Sequence[Delivery]]) -> None:
    """Write the messages of streams.

    Args:
        path: The file; it is packed if its name ends in .gz.
        streams: The messages by stream, in order.

    Raises:
        OSError: The file cannot be written.
    """
    encoder = msgspec.json.Encoder()
    lines = (encoder.encode(_line(stream, one)) for stream in streams for one in streams[stream])
    with _open(path, "wb") as file:
        for line in lines:
            file.write(line + b"\n")


def _line(stream: str, one: Delivery) -> _Line:
    payload, raw = "", b""
    try:
        payload = one.payload.decode()
    except UnicodeDecodeError:
        raw = one.payload
    return _Line(stream, one.sequence, one.at, one.subject, payload, raw, one.headers)


def is_export(path: str) -> bool:
    """Return whether a file begins like an export.

    Raises:
        OSError: The file cannot be opened.
    """
    with _open(Path(path), "rb") as file:
        try:
            return file.read(len(BEGINNING)) == BEGINNING
        except (EOFError, OSError, zlib.error):
            return False


def read(path: Path) -> dict[str, list[Delivery]]:
    """Return the messages by stream.

    Raises:
        ExportError: The file is no export, or is cut short.
        OSError: The file cannot be read.
    """
    decoder = msgspec.json.Decoder(_Line)
    found: dict[str, list[Delivery]] = {stream: [] for stream in STREAMS}
    with _open(path, "rb") as file:
        for number, line in enumerate(_lines(file, path), 1):
            try:
                one = decoder.decode(line)
            except msgspec.MsgspecError as error:
                text = f"{path}, line {number}: not a message of an export: {error}"
                raise ExportError(text) from error
            found.setdefault(one.stream, []).append(
                Delivery(
                    one.subject,
                    one.raw or one.payload.encode(),
                    one.headers,
                    one.stream,
                    one.sequence,
                    one.at,
                )
            )
    return found


def each(
    path: Path, stream: str, told: Callable[[float], None] = lambda _: None
) -> Iterator[Delivery]:
    """Yield the messages of one stream, without having all of them in memory.

    Args:
        path: The file.
        stream: The stream.
        told: Is told now and then which part of the file was read, 0 to 1.

    Raises:
        ExportError: The file is no export, or is cut short.
        OSError: The file cannot be read.
    """
    decoder = msgspec.json.Decoder(_Line)
    begins = BEGINNING + msgspec.json.encode(stream) + b","
    size = path.stat().st_size
    with open(path, "rb") as packed, _unpacked(packed, path) as file:
        for number, line in enumerate(_lines(file, path), 1):
            if number % TELL_EVERY == 0:
                told(packed.tell() / max(size, 1))
            if not line.startswith(begins):
                if not line.startswith(BEGINNING):
                    text = f"{path}, line {number}: not a message of an export"
                    raise ExportError(text)
                continue
            try:
                one = decoder.decode(line)
            except msgspec.MsgspecError as error:
                text = f"{path}, line {number}: not a message of an export: {error}"
                raise ExportError(text) from error
            payload = one.raw or one.payload.encode()
            yield Delivery(one.subject, payload, one.headers, one.stream, one.sequence, one.at)


def _unpacked(packed: BinaryIO, path: Path) -> Any:
    return gzip.open(packed) if path.suffix == ".gz" else contextlib.nullcontext(packed)


def _lines(file: Iterable[bytes], path: Path) -> Iterable[bytes]:
    try:
        yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        text = f"{path}: cut short or damaged: {error}"
        raise ExportError(text) from error


def _open(path: Path, mode: str) -> gzip.GzipFile:
    if path.suffix == ".gz":
        return gzip.open(path, mode)  # type: ignore[return-value]
    return open(path, mode)  # type: ignore[return-value]
