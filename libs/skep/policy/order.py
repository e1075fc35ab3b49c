"""Among equals the shortest remaining job first (SRTF), as far as lengths are known.

Jobs are equal if they wait in one queue: same VC, class and priority. Order across queues stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from skep.units import Duration, Instant
from skep.wire.reasons import Reason

Group = tuple[str, bool, int]
"""Jobs that may change places: VC, opportunistic, priority."""


class Waiting(NamedTuple):
    """A queued job: whom it waits among, since when, and its predicted time, None if unknown."""

    job: str
    group: Group
    submitted_at: Instant
    remaining: Duration | None


class Ranked(NamedTuple):
    """A queued job at its place in the order, and why it is there."""

    waiting: Waiting
    why: Reason


def shortest_remaining_first(queue: Sequence[Waiting], aged_before: Instant) -> list[Ranked]:
    """Return the queue (in order of arrival) with predicted jobs of a group shortest first.

    Predicted jobs share out the places that predicted jobs of their group had; all others keep
    theirs. A job submitted before `aged_before` keeps its place too, and no job that came after
    it is put ahead of it, which bounds how long a long job can be overtaken.
    """
    ranked = [Ranked(waiting, Reason.ARRIVAL) for waiting in queue]
    places: dict[Group, list[int]] = {}
    for place, waiting in enumerate(queue):
        if waiting.submitted_at < aged_before:
            _share_out(ranked, places.pop(waiting.group, []))
        elif waiting.remaining is not None:
            places.setdefault(waiting.group, []).append(place)
    for group_places in places.values():
        _share_out(ranked, group_places)
    return ranked


def _share_out(ranked: list[Ranked], places: list[int]) -> None:
    ordered = sorted((ranked[place].waiting for place in places), key=_remaining)
    for place, waiting in zip(places, ordered, strict=True):
        ranked[place] = Ranked(waiting, Reason.PREDICTED_SHORTEST)


def _remaining(waiting: Waiting) -> Duration:
    assert waiting.remaining is not None, waiting
    return waiting.remaining
