"""Check what a rank reports: an agent may be broken, and must not break its reader."""

from __future__ import annotations

from skep.perf.course import Course
from skep.units import Instant
from skep.wire.bounds import INSTANT_MAX
from skep.wire.reports import RankProgress

COUNT_MAX = 10**15
"""Larger values come from a broken agent; findings from smaller values can always be encoded."""


def is_sane(rank: RankProgress) -> bool:
    """Return whether a rank's values are in range."""
    return (
        0 <= rank.steps <= COUNT_MAX
        and 0 <= rank.last_step_at < INSTANT_MAX
        and 0 <= rank.step_ns <= COUNT_MAX
        and 0 <= rank.utilisation <= 1000
        and 0 <= rank.memory <= COUNT_MAX
        and (rank.own is None or 0 <= rank.own.load_ns <= COUNT_MAX)
        and (rank.own is None or 0 <= rank.own.own_ns <= COUNT_MAX)
    )


def course_of(rank: RankProgress, at: Instant) -> Course:
    """Return how a rank continues; with impossible values it makes no further mini-batches.

    Args:
        rank: What it reported.
        at: When it reported that.
    """
    sane = is_sane(rank) and rank.last_step_at <= at < rank.next_at <= at + rank.step_ns
    return Course(at, rank.steps, rank.last_step_at, rank.next_at if sane else 0, rank.step_ns)
