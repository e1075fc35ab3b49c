"""Traces: read from a file, or made by a generator."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator

from skep.traces.job import Trace
from skep.traces.read import read
from skep_services.simulations.inputs import WrongError


def by_seed(text: str) -> bool:
    """Return whether another seed makes another trace: not of a file."""
    return not os.path.exists(text)


def load(text: str, *, form: str | None, seed: int, home: str | None, lenient: bool) -> Trace:
    """Return the trace of a file or generator. Raises WrongError, BadTraceError, OSError."""
    if not os.path.exists(text):
        reason = f"--trace {text}: no such file"
        raise WrongError(reason)
    return read(_lines(text), os.path.basename(text), form, lenient=lenient)


def _lines(path: str) -> Iterator[str]:
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8", errors="replace", newline="") as file:
        yield from file
