"""When waiting jobs start: the queue of a virtual cluster is played on, with drawn lengths.

Each play draws the lengths of all jobs from their spans, and serves the queue in its order in the
parts of nodes that the VC owns: as the allocator does, no job overtakes another one. What most
plays agree on is likely. Lengths are not independent (owners and models are off in the same
direction), so half of the variance of each draw is common to all jobs of a play.

Not played: later jobs that go first, idle GPUs of others, what a policy does. A part of the wait is
added for it, and a job that may have idle GPUs may start at any moment. How wrong that is shows in
the outcomes, which widen the spans (`calibration`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from skep.estimates.spans import Z, at_z, span
from skep.units import Duration, seconds
from skep.wire.promises import Lasts

PLAYS = 19
"""Odd; of so many sorted values the second, tenth and eighteenth are P10, P50 and P90."""
WAITING_MAX = 256
"""Jobs of one queue that are looked at: 19 plays of it take some 50 ms."""
RUNNING_MAX = 2_000
COMMON = math.sqrt(0.5)
NEVER = float(1 << 62)
SOON_NS = seconds(5.0)
"""A start is seen, and the GPUs of a job that ends are given to the next, within so long."""
NOT_PLAYED = 0.2
"""The standard deviation that is taken for all that is not played: of the logarithm of a wait."""
DRAWS = 64
"""Different draws: of so many, none is far out."""

_NORMAL = NormalDist()
_DRAWS = tuple(_NORMAL.inv_cdf((each + 0.5) / DRAWS) for each in range(DRAWS))
_COMMON = tuple(COMMON * _NORMAL.inv_cdf((each + 0.5) / PLAYS) for each in range(PLAYS))

assert PLAYS % 2 == 1
assert (PLAYS + 1) % 10 == 0


class Runs(NamedTuple):
    """A job that has GPUs of the VC: where, how many, and for how long (None: not known)."""

    number: int
    gpu_type: str
    places: tuple[tuple[str, int], ...]
    """Nodes, and its GPUs there."""
    left: Lasts | None


class Waits(NamedTuple):
    """A job that waits: the types that it may have, what it wants, and how long it runs then."""

    number: int
    gpu_types: tuple[str, ...]
    workers: int
    each: int
    """GPUs of a worker, all on one node."""
    lasts: Lasts | None
    early: bool = False
    """It may also start at any moment: idle GPUs are lent to it, or a policy has it go first."""


class Played(NamedTuple):
    """When a job starts and ends, from now on; None: it is not known."""

    start: Lasts | None = None
    end: Lasts | None = None


UNKNOWN = Played()
Owned = Mapping[str, Sequence[int]]
"""By type: the GPUs of each part of a node that the VC owns."""
Taken = tuple[tuple[int, int], ...]
"""Parts, by their position, and GPUs of them."""


def starts(owned: Owned, running: Sequence[Runs], waiting: Sequence[Waits]) -> list[Played]:
    """Return when each job of a queue starts and ends.

    Args:
        owned: What the VC owns.
        running: What has GPUs of it.
        waiting: The queue, in its order. Beyond WAITING_MAX nothing is known.
    """
    if len(running) > RUNNING_MAX:
        return [UNKNOWN] * len(waiting)
    queue = waiting[:WAITING_MAX]
    begins: list[list[float]] = [[] for _ in queue]
    ends: list[list[float]] = [[] for _ in queue]
    first = {kind: _Pool(parts) for kind, parts in owned.items()}
    held = [(job, pool.hold(job.places)) for job in running if (pool := first.get(job.gpu_type))]
    for play in range(PLAYS):
        pools = {kind: pool.copy() for kind, pool in first.items()}
        for job, taken in held:
            pools[job.gpu_type].until(_drawn(job.left, job.number, play), taken)
        for waits, begin, end in zip(queue, begins, ends, strict=True):
            lasts = _drawn(waits.lasts, waits.number, play)
            at = _begins(pools, waits, lasts)
            begin.append(at)
            end.append(at + lasts)
    found = [_played(*each) for each in zip(queue, begins, ends, strict=True)]
    return found + [UNKNOWN] * (len(waiting) - len(queue))


def _begins(pools: Mapping[str, _Pool], job: Waits, lasts: float) -> float:
    """Return when a job begins, and give it its GPUs: of several types those with the most free."""
    fits = [pool for kind in job.gpu_types if (pool := pools.get(kind)) and pool.is_for(job)]
    if not fits:
        return NEVER
    return max(fits, key=lambda pool: pool.total).begin(job, lasts)


class _Pool:
    """The parts of nodes with one type of GPU, and until when which of them are held."""

    __slots__ = ("_at", "_by_free", "_ends", "_free", "_nodes", "_sizes", "total")

    def __init__(self, parts: Sequence[int]) -> None:
        self._sizes = sorted(parts, reverse=True)
        self._free = list(self._sizes)
        self.total = sum(parts)
        self._nodes: dict[str, int] = {}
        self._ends: list[tuple[float, int, Taken]] = []
        self._by_free: list[list[int]] = []
        self._at = 0.0
        """When the latest job began: the next one begins no earlier."""

    def copy(self) -> _Pool:
        """Return another one with the same jobs, to be played on."""
        other = _Pool(())
        other._sizes, other._free, other.total = self._sizes, list(self._free), self.total
        most = max(self._sizes, default=0)
        other._by_free = [[] for _ in range(most + 1)]
        for part in reversed(range(len(self._free))):
            other._by_free[self._free[part]].append(part)
        return other

    def hold(self, places: Sequence[tuple[str, int]]) -> Taken:
        """Take what a running job has; each node is a part of the VC's.

        What is beyond its parts is borrowed, and holds up none of them.
        """
        taken = []
        for node, gpus in places:
            part = self._nodes.get(node)
            if part is None:
                if len(self._nodes) == len(self._sizes):
                    continue
                part = self._nodes[node] = len(self._nodes)
            had = min(gpus, self._free[part])
            self._free[part] -= had
            self.total -= had
            taken.append((part, had))
        return tuple(taken)

    def until(self, at: float, taken: Taken) -> None:
        """Give back at an instant what was taken."""
        heapq.heappush(self._ends, (at, len(self._ends), taken))

    def is_for(self, job: Waits) -> bool:
        """Return whether it could hold a job if nothing else ran."""
        return sum(size // job.each for size in self._sizes) >= job.workers

    def begin(self, job: Waits, lasts: float) -> float:
        """Return when a job has its GPUs, and hold them."""
        while (taken := self._place(job)) is None:
            if not self._ends or self._at >= NEVER:
                self._at = NEVER
                return NEVER
            until, _, back = heapq.heappop(self._ends)
            self._at = max(self._at, until)
            for part, gpus in back:
                self._set(part, self._free[part] + gpus)
        self.until(self._at + lasts, taken)
        return self._at

    def _place(self, job: Waits) -> Taken | None:
        """Take the fullest parts that hold the workers; None: they do not fit now."""
        if self.total < job.workers * job.each:
            return None
        taken: list[tuple[int, int]] = []
        for _ in range(job.workers):
            part = self._fullest(job.each)
            if part is None:
                for back, gpus in taken:
                    self._set(back, self._free[back] + gpus)
                return None
            self._set(part, self._free[part] - job.each)
            taken.append((part, job.each))
        return tuple(taken)

    def _fullest(self, gpus: int) -> int | None:
        for amount in range(gpus, len(self._by_free)):
            parts = self._by_free[amount]
            while parts:
                if self._free[parts[-1]] == amount:
                    return parts[-1]
                parts.pop()  # It has another amount by now.
        return None

    def _set(self, part: int, free: int) -> None:
        self.total += free - self._free[part]
        self._free[part] = free
        self._by_free[free].append(part)


def _drawn(lasts: Lasts | None, number: int, play: int) -> float:
    """Return one of a job's lengths: always the same for the same job and play."""
    if lasts is None:
        return NEVER
    own = _DRAWS[_mixed(number * PLAYS + play) % DRAWS]
    return at_z(lasts, _COMMON[play] + COMMON * own)


def _mixed(number: int) -> int:
    """Return a number that has nothing to do with its neighbours' (SplitMix64)."""
    mixed = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return mixed ^ (mixed >> 31)


def _played(job: Waits, begins: list[float], ends: list[float]) -> Played:
    """Return what plays come to; None: in too many of them it does not happen.

    What is not played makes a job earlier or later by a part of its wait, and its end as much. One
    that may start at any moment does so one time in ten.
    """
    begin, end = _sorted(begins), _sorted(ends)
    if begin is None:
        return UNKNOWN
    low, middle, high = begin
    factor = math.exp(Z * NOT_PLAYED)
    earlier, later = middle * (1 - 1 / factor), middle * (factor - 1)
    if job.early:
        earlier = middle
    early = math.hypot(middle - low, earlier)
    late = math.hypot(high - middle, later)
    start = span(middle - early, middle + SOON_NS // 5, middle + late + SOON_NS)
    if end is None:
        return Played(start)
    low, middle, high = end
    early, late = math.hypot(middle - low, earlier), math.hypot(high - middle, later)
    return Played(start, span(middle - early, middle + SOON_NS // 5, middle + late + SOON_NS))


def _sorted(values: list[float]) -> tuple[float, float, float] | None:
    tenth = (PLAYS + 1) // 10
    values.sort()
    if values[-tenth] >= NEVER:
        return None
    return values[tenth - 1], values[PLAYS // 2], values[-tenth]


def now() -> Lasts:
    """Return the span of what happens at once."""
    return Lasts(p10=Duration(0), p50=Duration(0), p90=SOON_NS)
