"""What is kept from one view of a VC to the next: differences, sums, and timers.

A view of ten thousand jobs is made for every decision, and almost all of its elements are the
objects of the view before. State that is derived from views is therefore changed only where two
views differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from skep.base.timers import TimerHeap
from skep.policy.view import JobView, NodeView

CHUNKS = (256, 32, 4, 1)
"""Elements of two views that are compared at once: most are the same objects."""

_Part = TypeVar("_Part", JobView, NodeView)
_Key = TypeVar("_Key")

Change = tuple[JobView | None, JobView | None]
"""A job in the view before, and in this one; None: it was not, or is not, in the view."""


def changes(
    before: Sequence[_Part], after: Sequence[_Part]
) -> Iterator[tuple[_Part | None, _Part | None]]:
    """Yield the elements that differ between two views.

    Args:
        before: Jobs or nodes of the earlier view.
        after: Those of the later view, in the same order: jobs by `sequence`, nodes by place.

    Yields:
        Pairs of the old and the new element; None: it was added, or removed.
    """
    left = right = 0
    while left < len(before) and right < len(after):
        for size in CHUNKS:
            if before[left : left + size] == after[right : right + size]:
                left, right = left + size, right + size
                break
        else:
            old, new = before[left], after[right]
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
    """Return the place of a job in the order of its view; None for a node."""
    return part.sequence if isinstance(part, JobView) else None


def add(sums: dict[_Key, int], key: _Key, more: int) -> None:
    """Add to a sum, and remove it where it becomes 0.

    Args:
        sums: By key; changed.
        key: The key of the sum.
        more: What to add; it may be negative.
    """
    left = sums.get(key, 0) + more
    if left:
        sums[key] = left
    else:
        sums.pop(key, None)


def keep(jobs: dict[str, JobView], job: JobView, come: bool) -> None:
    """Add a job to a table, or remove it.

    Args:
        jobs: By id; changed.
        job: The job.
        come: True to add it, False to remove it.
    """
    if come:
        jobs[job.job] = job
    else:
        jobs.pop(job.job, None)


def set_or_cancel(timers: TimerHeap[str], name: str, at: int, come: bool) -> None:
    """Set the timer of a job that comes; cancel that of one that goes.

    Args:
        timers: Changed.
        name: The id of the job.
        at: When the timer is due, in nanoseconds.
        come: True to set it, False to cancel it.
    """
    if come:
        timers.set_timer(name, at)
    else:
        timers.cancel(name)
