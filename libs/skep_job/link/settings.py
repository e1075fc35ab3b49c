"""What the agent tells a job through its environment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import NamedTuple

REPORT_S = 1.0
"""How often a job reports, unless SKEP_REPORT_S says otherwise."""
REPORT_S_MIN = 0.05
REPORT_S_MAX = 60.0
assert REPORT_S_MIN <= REPORT_S <= REPORT_S_MAX

TEXT_MAX = 1_000
"""Characters of a job id or a secret: every message must stay far below the largest frame."""

SOCKET_NAME_BYTES_MAX = 80
"""Bytes of the socket's file name: with `/proc/self/fd/<n>/` before it, it must fit in 107."""

INTEGER_MAX = 2**53
"""Beyond this, JSON readers that use floating point lose digits."""


class Settings(NamedTuple):
    """Where to report, and as which process."""

    socket_path: str  # absolute
    job: str
    attempt: int
    rank: int
    world: int
    secret: str
    report_every_s: float
    host_bytes: int | None = None  # what `release` may put into the host's memory; None: no bound
    part: int = 0  # which process of its rank this one is ...
    parts: int = 1  # ... and of how many that train together

    @property
    def process(self) -> int:
        """Return which of all processes that train together this one is, from 0."""
        return self.rank * self.parts + self.part

    @property
    def processes(self) -> int:
        """Return how many processes train together."""
        return self.world * self.parts


class Unobserved(NamedTuple):
    """The process runs without reporting; `why` is empty when no reports were asked for."""

    why: str = ""


def read(environ: Mapping[str, str]) -> Settings | Unobserved:
    """Return the settings in `environ`, or why there are none.

    SKEP_SOCK (a Unix socket's path; absent or empty: not observed), SKEP_JOB and SKEP_GEN (the
    attempt) are required together; SKEP_RANK_SECRET, SKEP_RANK and SKEP_WORLD (else RANK and
    WORLD_SIZE), SKEP_REPORT_S (seconds, kept within 0.05 to 60) and SKEP_HOST_BYTES (no bound)
    have defaults.
    """
    path = environ.get("SKEP_SOCK", "")
    if not path:
        return Unobserved()
    if len(os.fsencode(os.path.basename(path))) > SOCKET_NAME_BYTES_MAX:
        return Unobserved(
            f"the file name in SKEP_SOCK is longer than {SOCKET_NAME_BYTES_MAX} bytes; "
            "give the socket a shorter name"
        )
    for name in ("SKEP_JOB", "SKEP_RANK_SECRET"):
        if len(environ.get(name, "")) > TEXT_MAX:
            return Unobserved(f"{name} is longer than {TEXT_MAX} characters")
    if not environ.get("SKEP_JOB"):
        return Unobserved("SKEP_SOCK is set and SKEP_JOB is not; set it to the job's id")

    attempt = _integer(environ, "SKEP_GEN", None)
    # Launchers inside the job set the latter of the two for their own children.
    rank = _integer(environ, "SKEP_RANK" if environ.get("SKEP_RANK") else "RANK", 0)
    world = _integer(environ, "SKEP_WORLD" if environ.get("SKEP_WORLD") else "WORLD_SIZE", 1)
    report_every_s = _seconds(environ, "SKEP_REPORT_S", REPORT_S)
    host_bytes = (
        None if not environ.get("SKEP_HOST_BYTES") else _integer(environ, "SKEP_HOST_BYTES", None)
    )
    for value in (attempt, rank, world, report_every_s, host_bytes):
        if isinstance(value, Unobserved):
            return value
    assert isinstance(attempt, int)
    assert isinstance(rank, int)
    assert isinstance(world, int)
    assert isinstance(report_every_s, float)
    assert not isinstance(host_bytes, Unobserved)
    return Settings(
        socket_path=os.path.abspath(path),  # The script may change its working directory.
        job=environ["SKEP_JOB"],
        attempt=attempt,
        rank=rank,
        world=world,
        secret=environ.get("SKEP_RANK_SECRET", ""),
        report_every_s=min(max(report_every_s, REPORT_S_MIN), REPORT_S_MAX),
        host_bytes=host_bytes,
    )


def _integer(environ: Mapping[str, str], name: str, default: int | None) -> int | Unobserved:
    text = environ.get(name, "").strip()
    if not text:
        if default is None:
            return Unobserved(f"SKEP_SOCK is set and {name} is not; set it to a whole number")
        return default
    if text.isascii() and text.isdecimal() and len(text) <= len(str(INTEGER_MAX)):
        number = int(text)
        if number <= INTEGER_MAX:
            return number
    return Unobserved(f"{name} is {text[:40]!r}, expected a whole number from 0")


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float | Unobserved:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        return Unobserved(f"{name} is {text[:40]!r}, expected a number of seconds")
    return number
