"""What is kept from one view of a VC to the next: what has changed, sums, and when things are due.

A view of ten thousand jobs is new with every decision, and almost all that is in it is the very
same: so what is kept of it is changed where the view is different from the one before.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from skep.policy.view import JobView, NodeView
from skep.units import Instant

CHUNK = 256
"""Elements of two views that are compared at once: most are the very same."""
STALE = 64
"""So many more than twice those that are due may be in a heap before it is made anew."""
NEVER = Instant(2**62)

_Part = TypeVar("_Part", JobView, NodeView)
_Key = TypeVar("_Key")

Change = tuple[JobView | None, JobView | None]
"""How a job was seen, and how it is seen now; None: not at all."""


class Times:
    """When something is due, by job: the soonest of those that are still to come."""

    def __init__(self) -> None:
        """Have nothing due."""
        self._heap: list[tuple[int, str]] = []
        self._at: dict[str, int] = {}

    def put(self, name: str, at: int) -> None:
        """Say when something is due of a job, whatever was said before."""
        self._at[name] = at
        heapq.heappush(self._heap, (at, name))
        if len(self._heap) > 2 * len(self._at) + STALE:
            self._heap = sorted((at, name) for name, at in self._at.items())

    def drop(self, name: str) -> None:
        """Have nothing due of a job."""
        self._at.pop(name, None)

    def pop(self, until: int) -> Iterator[str]:
        """Yield who was due by then, and forget it."""
        while self._heap and self._heap[0][0] <= until:
            at, name = heapq.heappop(self._heap)
            if self._at.get(name) == at:
                del self._at[name]
                yield name

    def pass_by(self, now: int) -> None:
        """Forget what was due by now."""
        for _ in self.pop(now):
            pass

    def peek(self, until: int, apart: Iterable[str] = ()) -> Iterator[tuple[int, str]]:
        """Yield what is due before then, the soonest first, but of those `apart`."""
        passed, heap = [], self._heap
        try:
            while heap and heap[0][0] < until:
                at, name = entry = heap[0]
                if self._at.get(name) != at:
                    heapq.heappop(heap)
                    continue
                passed.append(heapq.heappop(heap))
                if name not in apart:
                    yield entry
        finally:
            for entry in passed:
                heapq.heappush(heap, entry)

    def first(self, apart: Iterable[str] = ()) -> int | None:
        """Return when the soonest is due, but of those `apart`; None: nothing is."""
        return next((at for at, _ in self.peek(NEVER, apart)), None)


def changes(
    before: Sequence[_Part], after: Sequence[_Part]
) -> Iterator[tuple[_Part | None, _Part | None]]:
    """Yield what is different: what was there, and what is there instead."""
    left = right = 0
    while left < len(before) and right < len(after):
        if before[left : left + CHUNK] == after[right : right + CHUNK]:
            left, right = left + CHUNK, right + CHUNK
            continue
        for _ in range(CHUNK):
            if left >= len(before) or right >= len(after):
                break
            old, new = before[left], after[right]
            if old is new or old == new:
                left, right = left + 1, right + 1
                continue
            first, second = _place(old), _place(new)
            if first is None or second is None or first == second:
                yield old, new
                left, right = left + 1, right + 1
            elif first < second:
                yield old, None
                left += 1
            else:
                yield None, new
                right += 1
    for old in before[left:]:
        yield old, None
    for new in after[right:]:
        yield None, new


def _place(part: JobView | NodeView) -> int | None:
    """Return the place of a job in the order of its view; nodes are compared place by place."""
    return part.sequence if isinstance(part, JobView) else None


def add(sums: dict[_Key, int], key: _Key, more: int) -> None:
    """Change a sum. There is none where it would be 0."""
    left = sums.get(key, 0) + more
    if left:
        sums[key] = left
    else:
        sums.pop(key, None)


def keep(jobs: dict[str, JobView], job: JobView, come: bool) -> None:
    """Take a job in, or out."""
    if come:
        jobs[job.job] = job
    else:
        jobs.pop(job.job, None)


def due(times: Times, name: str, at: int, come: bool) -> None:
    """Say when something is due of a job, or that nothing is."""
    if come:
        times.put(name, at)
    else:
        times.drop(name)
