"""Order queued jobs of one group by predicted remaining time (SRTF).

A group is one queue: same VC, class and priority. The order across groups does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from skep.units import Duration, Instant
from skep.wire.reasons import Reason

Group = tuple[str, bool, int]
"""Jobs that may change places: VC, opportunistic, priority."""


class Waiting(NamedTuple):
    """A queued job: its group, its time of submission, and its predicted time (None: unknown)."""

    job: str
    group: Group
    submitted_at: Instant
    remaining: Duration | None


class Ranked(NamedTuple):
    """A queued job at its place in the order, and why it is there."""

    waiting: Waiting
    why: Reason


def shortest_remaining_first(queue: Sequence[Waiting], aged_before: Instant) -> list[Ranked]:
    """Return the queue with the predicted jobs of each group sorted, shortest first.

    Predicted jobs of a group share the places that these jobs had; all other jobs keep theirs. A
    job submitted before `aged_before` keeps its place too, and no job that came later is put ahead
    of it. This bounds how long a long job can be overtaken.

    Args:
        queue: All queued jobs, in order of arrival.
        aged_before: Jobs submitted before this instant keep their places.

    Returns:
        Every job of the queue in its new order, each with the reason for its place.
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
