"""When a job is to have ended or may begin, as its spec says it, and the GPUs allowed for it.

A time without its zone is refused: the reader, the cluster and the tenant may be in three zones,
and a promise by the wrong one is worse than none.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire.bounds import INSTANT_MAX
from skep.wire.reasons import Reason
from skep.wire.spec import GANG_GPUS_MAX, TIME_S_MAX, JobSpec, Problem
from skep.wire.times import time_s

RANGE = re.compile(r"\s*(\d{1,6})(?:\s*\.\.\s*(\d{1,6}))?\s*")
"""A number of GPUs, or two of them: `8`, `1..16`."""
WANTED = "a time with its zone, such as `2026-11-24T08:00+00:00`, or a length such as `90m`, `8h`"


def time_problem(key: str, value: int | str) -> Problem | None:
    """Return why a text says no instant; None: it says one.

    Args:
        key: The key of the spec: `finish_by` or `begin`.
        value: Seconds from submission, or the text.
    """
    path = f"$.{key}"
    length_s = time_s(value)
    if length_s is not None:
        if 1 <= length_s <= TIME_S_MAX:
            return None
        text = f"`{key}` must be a length of a second to a year"
        return Problem(path=path, reason=Reason.BAD_VALUE, text=text, suggestion=f"use {WANTED}")
    assert isinstance(value, str), value
    when = _time(value)
    if when is None:
        text = f"`{key}` must be {WANTED}"
        return Problem(path=path, reason=Reason.BAD_VALUE, text=text)
    if when.tzinfo is None:
        text = f"`{key}` has no time zone: `{value.strip()}` is another instant in each"
        return Problem(
            path=path,
            reason=Reason.NO_TIME_ZONE,
            text=text,
            suggestion=f"add it: `{value.strip()}Z` is in UTC, `{value.strip()}+01:00` one ahead",
        )
    if not 0 < _instant(when) < INSTANT_MAX:
        text = f"`{key}` must be after 1970 and before 2116"
        return Problem(path=path, reason=Reason.BAD_VALUE, text=text)
    return None


def normal_time(value: int | str) -> int | str:
    """Return a time without problems in its one form: seconds, or text in UTC."""
    length_s = time_s(value)
    if length_s is not None:
        return length_s
    when = _time(str(value))
    assert when is not None, value
    return told(_instant(when))


def finish_by(spec: JobSpec, submitted_at: Instant) -> Instant | None:
    """Return when a job is to have ended by its `finish_by`; None: it does not say so.

    Args:
        spec: A spec without problems.
        submitted_at: When it was submitted.
    """
    return _instant_of(spec.finish_by, submitted_at)


def begin(spec: JobSpec, submitted_at: Instant) -> Instant | None:
    """Return when a job may begin by its `begin`; None: it does not say so.

    Args:
        spec: A spec without problems.
        submitted_at: When it was submitted.
    """
    return _instant_of(spec.begin, submitted_at)


def _instant_of(value: int | str | None, submitted_at: Instant) -> Instant | None:
    if value is None:
        return None
    length_s = time_s(value)
    if length_s is not None:
        return Instant(submitted_at + seconds(length_s))
    when = _time(str(value))
    return None if when is None else _instant(when)


def gpus_range(value: int | str) -> tuple[int, int] | None:
    """Return the fewest and the most GPUs that a text allows; None: it is no range.

    Args:
        value: A number, or text such as `8` or `1..16`.
    """
    match = RANGE.fullmatch(str(value))
    if match is None:
        return None
    least = int(match[1])
    most = int(match[2]) if match[2] else least
    return (least, most) if 1 <= least <= most <= GANG_GPUS_MAX else None


def told(at: Instant) -> str:
    """Return an instant as text in UTC, to the second: `2026-11-24T08:00:00Z`."""
    when = datetime.fromtimestamp(at // NS_PER_SECOND, UTC)
    return when.isoformat().replace("+00:00", "Z")


def _time(text: str) -> datetime | None:
    """Return a time, with its zone if it names one; None: the text is none."""
    text = text.strip()
    if not re.match(r"\d{4}-\d\d-\d\d[T ]", text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _instant(when: datetime) -> Instant:
    assert when.tzinfo is not None, when
    return Instant(int(when.timestamp()) * NS_PER_SECOND)
