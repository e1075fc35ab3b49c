"""Opens traces for `skep traces` and `skep sim`: files, packed or not, and generators' names.

Measurements that give run times to Gavel's and Pollux's traces are in the folder that
SKEP_SHARED_DATA names, unless another place is given.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from skep_lab.traces.formats import lengths
from skep_lab.traces.generators import registry
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.traces.read import read

GAVEL = "gavel/isolated_throughput.csv"
POLLUX = "pollux/traces"


class NoTraceError(Exception):
    """What was asked for is no file and no generator, or measurements cannot be read."""


def load(
    text: str,
    *,
    form: str | None = None,
    seed: int = 0,
    lenient: bool = False,
    measured: str | None = None,
    past: str | None = None,
) -> Trace:
    """Return the trace of a file or of a generator.

    A file goes before a generator of the same name.

    Args:
        text: The file (`-`: standard input), or `GENERATOR[:option=value,...]`.
        form: The file's format; None: its first line decides.
        seed: Of the generator.
        lenient: Problems of the file are in the result, and are no error.
        measured: A file of Gavel's speeds or a folder of Pollux's; None: as in SKEP_SHARED_DATA.
        past: A trace of Philly that HiveD's workload is drawn from.

    Raises:
        NoTraceError: Neither is there, an option is wrong, or the file cannot be read; it says
            why.
        BadTraceError: The file cannot be used as it is.
    """
    if text == "-" or os.path.exists(text):
        name = STDIN if text == "-" else os.path.basename(text)
        return read(lines_of(text), name, form, lenient=lenient, lengths=lengths_in(measured))
    try:
        older = load(past, lenient=lenient) if past is not None else None
        return registry.make(text, seed, older)
    except registry.WrongGeneratorError as error:
        reason = f"{text}: no such file" if _is_path(text) else f"{error} (and no file {text})"
        raise NoTraceError(reason) from None


def is_generated(text: str) -> bool:
    """Return whether another seed makes another trace of it."""
    return text != "-" and not os.path.exists(text)


def lines_of(path: str) -> Iterator[str]:
    """Yield the lines of a file or of standard input, unpacked if its content is packed by gzip.

    Args:
        path: The file; `-`: standard input.

    Raises:
        NoTraceError: It cannot be read, is no text, or is truncated or damaged.
    """
    name = STDIN if path == "-" else path
    try:
        with _opened(path) as file:
            begin = file.peek(BEGIN_BYTES)[:BEGIN_BYTES]
            packed = begin.startswith(GZIP) or (path.endswith(".gz") and begin != b"")
            if not packed:
                _check_text(name, begin)
            whole = gzip.GzipFile(fileobj=file) if packed else file
            with io.TextIOWrapper(whole, "utf-8", errors="replace", newline="") as text:
                yield from text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        reason = f"{name}: not a whole gzip file ({error}): fetch or pack it again"
        raise NoTraceError(reason) from None
    except OSError as error:
        reason = f"{name}: cannot be read: {error.strerror or error}"
        raise NoTraceError(reason) from None


STDIN = "standard input"
GZIP = b"\x1f\x8b"
BEGIN_BYTES = 512
PACKED = {
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7z",
}
"""How files begin that other programs packed."""
OTHER_TEXT = (b"\xff\xfe", b"\xfe\xff")
"""How text in UTF-16 begins."""


def _opened(path: str) -> io.BufferedReader:
    """Open a file or standard input, as bytes.

    Raises:
        NoTraceError: Standard input is closed.
        OSError: The file cannot be opened.
    """
    if path != "-":
        return open(path, "rb")
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except (AttributeError, ValueError):
        reason = f"{STDIN} is closed: name a file"
        raise NoTraceError(reason) from None


def _check_text(name: str, begin: bytes) -> None:
    """Check how a file begins.

    Raises:
        NoTraceError: It is packed by another program than gzip, or no text in UTF-8.
    """
    by = next((by for magic, by in PACKED.items() if begin.startswith(magic)), None)
    if by is not None:
        reason = f"{name}: is packed by {by}: unpack it, or pack it by gzip"
        raise NoTraceError(reason)
    if begin.startswith(OTHER_TEXT):
        reason = f"{name}: is text in UTF-16: store it as UTF-8"
        raise NoTraceError(reason)
    if b"\0" in begin:
        reason = f"{name}: is no text: a trace is a table or JSON lines, or that packed by gzip"
        raise NoTraceError(reason)


def lengths_in(measured: str | None) -> Callable[[TraceJob], float] | None:
    """Return run times by what was measured, None where nothing is. It is read when first asked."""
    given = measured or os.environ.get("SKEP_SHARED_DATA")
    if not given:
        return None
    found: list[Callable[[TraceJob], float]] = []

    def length(job: TraceJob) -> float:
        if not found:
            found.extend(_measured(Path(given)))
        return max(each(job) for each in found)

    return length


def _measured(place: Path) -> list[Callable[[TraceJob], float]]:
    """Return run times by each of the measurements that a place holds.

    Raises:
        NoTraceError: It holds none, or they cannot be read.
    """
    try:
        if place.is_file():
            return [lengths.gavel(lines_of(str(place)))]
        found = []
        if (place / GAVEL).exists():
            found.append(lengths.gavel(lines_of(str(place / GAVEL))))
        pollux = place / POLLUX if (place / POLLUX).exists() else place
        if applications := _applications(pollux):
            found.append(lengths.pollux(applications))
    except ValueError as error:
        reason = f"{place}: {error}"
        raise NoTraceError(reason) from None
    if not found:
        reason = f"{place}: neither Gavel's speeds ({GAVEL}) nor Pollux's tables ({POLLUX})"
        raise NoTraceError(reason)
    return found


def _applications(folder: Path) -> dict[str, lengths.Measured]:
    return {
        each.parent.name: lengths.Measured(
            tuple(lines_of(str(each))),
            {
                int(table.stem.rpartition("-")[2]): tuple(lines_of(str(table)))
                for table in sorted(each.parent.glob("validation-*.csv"))
            },
        )
        for each in sorted(folder.glob("*/placements.csv"))
    }


def _is_path(text: str) -> bool:
    return "/" in text or Path(text.partition(":")[0]).suffix != ""
