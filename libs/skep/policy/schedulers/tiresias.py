"""Tiresias: least attained service first, in discrete queues, or by Gittins index.

Service is GPUs multiplied by time. Tiresias-L needs no knowledge of jobs; Tiresias-G needs the
distribution of the service that jobs need.

Source: Tiresias (NSDI 2019), sections 3.2 and 3.3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from math import ceil
from typing import Any, ClassVar

from skep.policy.parts import Preemptive, check_one_or_more
from skep.policy.roster import Course, Courses, Key
from skep.policy.view import QUEUED, JobView, Phase, VcView
from skep.units import NS_PER_SECOND, Instant
from skep.wire.reasons import Reason

SAMPLES_MIN = 10
"""With fewer ended jobs, their service does not predict that of the next one."""


class TiresiasL(Preemptive, frozen=True):
    """Discretised two-dimensional LAS.

    A job with less service than the first of `thresholds` (GPU-seconds) is in the first queue, and
    so on. Within a queue no job is stopped for another: running jobs come first, then waiting ones
    in the order in which they first began. With `starvation` > 0, a job that has waited that many
    times as long as it ran returns to the first queue, and its service counts from 0 again.
    """

    name: ClassVar[str] = "tiresias-l"
    source: ClassVar[str] = "Tiresias (NSDI 2019), sections 3.2 and 3.3"
    thresholds: tuple[float, ...] = (3250,)
    starvation: float = 0

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `thresholds` are missing, not positive or not ascending, or `starvation`
                is negative.
        """
        if not self.thresholds:
            reason = "thresholds are GPU-seconds, at least one: without, all are in one queue"
            raise ValueError(reason)
        if list(self.thresholds) != sorted(set(self.thresholds)) or min(self.thresholds) <= 0:
            reason = f"thresholds are GPU-seconds, each more than the one before: {self.thresholds}"
            raise ValueError(reason)
        if self.starvation < 0:
            reason = f"starvation is a multiple of a job's run time, 0 or more: {self.starvation}"
            raise ValueError(reason)

    def key(self, view: VcView) -> Key:
        """Return the queue (Tiresias, section 3.3), then the place in it.

        In a queue running jobs come first, the earliest start first; then waiting jobs, those that
        have run before first.
        """
        limits, now = self._limits(), view.now

        def key(job: JobView) -> tuple[int, bool, bool, int]:
            queue = bisect_right(limits, self.service(job, now))
            waits = job.phase in QUEUED or job.phase is Phase.STOPPING
            return queue, waits, not job.began_at, job.began_at if waits else job.since

        return key

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.LEAST_ATTAINED

    def service(self, job: JobView, now: Instant) -> int:
        """Return the GPU-nanoseconds that count for a job's queue (Tiresias, section 3.3).

        After a promotion for starvation it counts from the job's latest start.

        Args:
            job: The job.
            now: The time of the view.
        """
        waits = job.phase in QUEUED or job.phase is Phase.STARTING
        if waits and not job.stood and self._starved(job, now - job.waiting_since):
            return 0  # Its start ends the wait, and must not undo the promotion.
        runs = job.phase is Phase.RUNNING and not job.stood
        if runs and self._starved(job, job.since - job.waiting_since):
            return max(now - job.since, 0) * job.gpus
        return job.attained(now)

    def courses(self, view: VcView) -> Courses:
        """Return that a job keeps its key until it is in another queue."""
        key, limits, now = self.key(view), self._limits(), view.now
        return lambda job: Course(key(job), until=self._changes_at(job, now, limits))

    def look_at(self, until: Instant | None) -> Instant | None:
        """Return when the next job changes its queue; None: no job does."""
        return until

    def _changes_at(self, job: JobView, now: Instant, limits: list[int]) -> Instant | None:
        if job.phase is Phase.RUNNING:
            if now < job.since:
                return job.since
            service = self.service(job, now)
            queue = bisect_right(limits, service)
            if queue == len(limits):
                return None
            return Instant(now - (service - limits[queue]) // job.gpus)
        waits = job.phase in QUEUED or job.phase is Phase.STARTING
        if waits and self.starvation and job.served and not job.stood:
            at = job.waiting_since + ceil(job.served * self.starvation)
            return Instant(at) if at > now else None
        return None

    def _starved(self, job: JobView, waited: int) -> bool:
        return bool(self.starvation and job.served and waited >= job.served * self.starvation)

    def _limits(self) -> list[int]:
        return [round(limit * NS_PER_SECOND) for limit in self.thresholds]


class TiresiasG(Preemptive, frozen=True):
    """Order jobs by Gittins index: those likely to end with little more service come first.

    `samples` are GPU-seconds that jobs needed. Without them those of the VC's ended jobs are used;
    while these are fewer than ten, the least service comes first, as in LAS. The index looks
    `quantum` GPU-seconds ahead, and changes as often.
    """

    name: ClassVar[str] = "tiresias-g"
    source: ClassVar[str] = "Tiresias (NSDI 2019), section 3.2 (2D-Gittins index)"
    samples: tuple[float, ...] = ()
    quantum: float = 3250

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `quantum` is too short, or a sample is negative.
        """
        check_one_or_more("quantum", self.quantum, "GPU-seconds")
        if any(each < 0 for each in self.samples):
            reason = f"samples are GPU-seconds, 0 or more: not {min(self.samples)}"
            raise ValueError(reason)

    def key(self, view: VcView) -> Key:
        """Return the negative index (Tiresias, section 3.2), then when the job began."""
        quantum = round(self.quantum * NS_PER_SECOND)
        index: Callable[[int], float] = cache(self._index(view, quantum).at)

        def key(job: JobView) -> tuple[float, bool, int]:
            quanta = job.attained(view.now) // quantum
            return -index(quanta * quantum), not job.began_at, job.began_at

        return key

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.HIGHEST_INDEX

    def basis(self, view: VcView) -> Any:
        """Return the sample of which the indices are made."""
        return () if self.samples else view.ended

    def courses(self, view: VcView) -> Courses:
        """Return that a job keeps its key until it has had another quantum."""
        key, now, quantum = self.key(view), view.now, round(self.quantum * NS_PER_SECOND)

        def course(job: JobView) -> Course:
            if job.phase is not Phase.RUNNING:
                return Course(key(job))
            more = quantum - job.attained(now) % quantum
            return Course(key(job), until=Instant(max(now, job.since) - -more // job.gpus))

        return course

    def look_at(self, until: Instant | None) -> Instant | None:
        """Return when the next job has had another quantum; None: no job runs."""
        return until

    def _index(self, view: VcView, quantum: int) -> Gittins:
        if self.samples:
            return Gittins([round(each * NS_PER_SECOND) for each in self.samples], quantum)
        if len(view.ended) >= SAMPLES_MIN:
            return Gittins(view.ended, quantum)
        return Gittins([], quantum)


class Gittins:
    """The Gittins index of a sample of service times, for a fixed quantum.

    After service a: P(S - a <= quantum | S > a) / E[min(S - a, quantum) | S > a] (Tiresias, section
    3.2).
    """

    def __init__(self, samples: Sequence[int], quantum: int) -> None:
        """Sort the samples.

        Args:
            samples: GPU-nanoseconds that jobs needed.
            quantum: GPU-nanoseconds to look ahead.
        """
        self._samples = sorted(samples)
        self._sums = [0, *accumulate(self._samples)]
        self._quantum = quantum

    def at(self, service: int) -> float:
        """Return the index after some service (Tiresias, section 3.2).

        Beyond the largest sample it is negative, and falls as the service grows.

        Args:
            service: GPU-nanoseconds.

        Returns:
            A chance per GPU-nanosecond; the job with the highest index comes first.
        """
        first = bisect_right(self._samples, service)
        longer = len(self._samples) - first
        if not longer:
            return -float(service)
        last = bisect_right(self._samples, service + self._quantum)
        inside = self._sums[last] - self._sums[first] - (last - first) * service
        expected = inside + (len(self._samples) - last) * self._quantum
        return (last - first) / expected
