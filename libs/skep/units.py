"""Quantities: integers with their unit in the type."""

from __future__ import annotations

from typing import NewType

Instant = NewType("Instant", int)
"""A point in time: wall-clock nanoseconds since 1970-01-01 UTC."""

Duration = NewType("Duration", int)
"""A length of time in nanoseconds."""

NS_PER_SECOND = 1_000_000_000
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def seconds(value: float) -> Duration:
    """Return `value` seconds as a duration."""
    return Duration(round(value * NS_PER_SECOND))


def after(instant: Instant, duration: Duration) -> Instant:
    """Return the instant `duration` later than `instant`."""
    return Instant(instant + duration)


def in_seconds(duration: int) -> float:
    """Return a length of time in nanoseconds as seconds."""
    return duration / NS_PER_SECOND
