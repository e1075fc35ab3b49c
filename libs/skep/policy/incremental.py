"""What is kept from one view of a VC to the next: what has changed, sums, and timers.

A view of ten thousand jobs is new with every decision, and almost all that is in it is the very
same: so what is kept of it is changed where the view is different from the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from skep.base.timers import TimerHeap
from skep.policy.view import JobView, NodeView

CHUNK = 256
"""Elements of two views that are compared at once: most are the very same."""

_Part = TypeVar("_Part", JobView, NodeView)
_Key = TypeVar("_Key")

Change = tuple[JobView | None, JobView | None]
"""How a job was seen, and how it is seen now; None: not at all."""


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


def set_or_cancel(timers: TimerHeap[str], name: str, at: int, come: bool) -> None:
    """Set the timer of a job that comes; cancel that of one that goes. `at` in ns."""
    if come:
        timers.set_timer(name, at)
    else:
        timers.cancel(name)
