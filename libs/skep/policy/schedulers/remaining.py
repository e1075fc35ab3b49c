"""Shortest remaining time first, with preemption: time alone, or time multiplied by GPUs.

Source: Tiresias, section 2.2 (`srtf`) and 3.1 (`srsf`); Muri, section 6.1.
"""

from __future__ import annotations

from typing import ClassVar

from skep.policy.parts import Preemptive, unknown_last
from skep.policy.roster import Course, Courses, Key
from skep.policy.view import JobView, Phase, VcView
from skep.units import Instant
from skep.wire.reasons import Reason


class Srtf(Preemptive, frozen=True):
    """Run the jobs with the shortest remaining time, whatever their sizes (SRTF).

    Jobs of unknown length come last, in the order of arrival.
    """

    name: ClassVar[str] = "srtf"
    source: ClassVar[str] = "Tiresias, section 2.2 (time-based SJF); Muri, section 6.1"
    by_run_times: ClassVar[bool] = True

    def key(self, view: VcView) -> Key:
        """Return the remaining time."""
        now = view.now
        return lambda job: unknown_last(job.remaining(now))

    def courses(self, view: VcView) -> Courses:
        """Return that jobs which run keep their order, until one has run as long as was said."""
        return lambda job: _course(job, view.now, job.remaining(view.now), 1)

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.SHORTEST_REMAINING


class Srsf(Preemptive, frozen=True):
    """Shortest remaining service first: remaining time multiplied by GPUs (time and space)."""

    name: ClassVar[str] = "srsf"
    source: ClassVar[str] = "Tiresias, section 3.1 (SRSF); Muri, section 6.1"
    by_run_times: ClassVar[bool] = True

    def key(self, view: VcView) -> Key:
        """Return the remaining time multiplied by GPUs."""
        return lambda job: unknown_last(_service(job, view.now))

    def courses(self, view: VcView) -> Courses:
        """Return that jobs of a size which run keep their order, as with `srtf`."""
        return lambda job: _course(job, view.now, job.remaining(view.now), job.gpus)

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.LEAST_REMAINING_SERVICE


def _service(job: JobView, now: Instant) -> int | None:
    remaining = job.remaining(now)
    return None if remaining is None else remaining * job.gpus


def _course(job: JobView, now: Instant, remaining: int | None, weight: int) -> Course:
    """Return how `weight` times the remaining time of a job changes: it ends when it ends."""
    if job.phase is not Phase.RUNNING or not remaining:
        return Course(unknown_last(remaining and remaining * weight))
    if now < job.since:
        return Course(unknown_last(remaining * weight), until=job.since)
    ends = Instant(now + remaining)
    return Course(ends, like=weight, until=ends)
