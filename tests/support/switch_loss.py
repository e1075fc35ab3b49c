"""What a switch costs in mini-batches, from when they ended. Pure.

A machine's pace drifts by more in a few minutes than a switch costs, so a run with switches and one
without, minutes apart, say little. A switch is therefore compared with the seconds around it: the
mini-batches that would have ended during it, at the pace just before and some time after, less
those that did.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

NS = 1_000_000_000


class Window(NamedTuple):
    """Seconds: how long a switch can be felt, and how long the pace is taken before and after."""

    felt: float = 4.0
    pace: float = 8.0


def lost_s(ends: Sequence[int], switch: int, window: Window) -> float:
    """Return how many seconds of all slots' work a switch cost.

    `ends` are the sorted times (monotonic ns) at which any job's mini-batch ended, and `switch` the
    time at which the first job was told to stop. Negative if more ended than at the pace around it.
    Raises ValueError if nothing ended before or after.
    """
    felt, pace = round(window.felt * NS), round(window.pace * NS)
    before = _between(ends, switch - pace, switch)
    after = _between(ends, switch + felt, switch + felt + pace)
    if not before or not after:
        reason = "no mini-batch ended around the switch: nothing to compare it with"
        raise ValueError(reason)
    per_s = (before + after) / (2 * window.pace)
    return window.felt - _between(ends, switch, switch + felt) / per_s


def _between(ends: Sequence[int], begin: int, end: int) -> int:
    return bisect_left(ends, end) - bisect_left(ends, begin)
