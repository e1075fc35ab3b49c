"""What jobs a cluster had, out of its allocator's log: arrivals, run times, and what was predicted.

    records --> the allocator's own fold, with the predictions noted beside --> Observer --> Window

A job counts once it has run and ended. Its run time is that of its last attempt, at the size and on
the nodes that its owner asked for: a stretch at another size or place counts by the speed predicted
there. What is stated of it is what its policy saw when the job was first placed.

A window does not say: which jobs have not ended, that GPUs are of several types, and that jobs
share GPUs. Workers of several GPUs are so many workers of one, and such a job is not elastic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skep.ledger.job_state import JobState, State
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.policies import job_rates, policy_views
from skep.machines.allocator.policies.policy_memory import Planned
from skep.policy.schedulers.fifo import Fifo
from skep.policy.sight import job_sight
from skep.units import Instant
from skep.wire.advice import Outlook, QueueAdvice
from skep.wire.cluster import VirtualCluster
from skep.wire.facts import EpochBegan, JobBound, JobEnded, JobQueued, JobRequeued
from skep.wire.inputs import NotesReader
from skep.wire.learned import JobSight
from skep_lab.learn.progress import UnfitError
from skep_lab.learn.protocol import LEVELS
from skep_lab.live_log.decide_again import Recorded

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KEPT_MAX = 5_000
"""Ended jobs of a VC that are kept, the latest: a window has no more."""
WORKERS_MAX = 512
"""A wider gang is left out: curves have a number for each worker."""
RUN_MAX = 365 * 86_400 * 10**9
"""A year, in nanoseconds: no run time is longer, whatever speeds were stated."""
TOLD_MIN = 0.5
"""Of a window's jobs, the part of which some run time must be stated."""


class Seen(NamedTuple):
    """A job that has run and ended."""

    at: int
    """When it was submitted, in nanoseconds."""
    run: int
    """Nanoseconds, as it was submitted and unspread."""
    sight: JobSight
    """What was stated of it when it was first placed."""


class Window(NamedTuple):
    """The jobs of a VC in the order of their submission; arrays as `protocol.Drawn` has them."""

    at: Ints
    run: Ints
    workers: Ints
    most: Ints
    least: Ints
    told_run: Ints
    told_growth: Floats
    """[J, W + 1]"""
    told_spread: Floats
    """[J, LEVELS]"""
    gpus: int
    """Of the VC."""
    node_gpus: int
    untold: int
    """Jobs of which no run time was stated: the median of the others stands for theirs."""
    doubt: float


class _Course:
    """A job on its way: what was stated of it, and what it has done in this attempt."""

    def __init__(self, submitted_at: int) -> None:
        self.submitted_at = submitted_at
        self.sight: JobSight | None = None
        self.run = 0.0
        self.at = 0


class Observer:
    """Follows the records of an allocator; it must be shown all of them, in order."""

    def __init__(self) -> None:
        """Begin before the first record."""
        self._machine = AllocatorMachine()
        self._notes = NotesReader()
        self._courses: dict[str, _Course] = {}
        self._ended: dict[str, deque[Seen]] = {}
        self.counts: dict[str, int] = {}
        """By VC, how many of its jobs have run and ended."""
        self.at = Instant(0)
        """Of the latest record."""

    @property
    def vcs(self) -> dict[str, VirtualCluster]:
        """Return the virtual clusters by name."""
        return self._machine.tx.state.cells.cluster.vcs

    def take(self, record: Recorded) -> Iterator[str]:
        """Take over a record; yield the VC of each job that has run and ended by it.

        Args:
            record: The next one.

        Raises:
            IllegalTransitionError: A fact cannot follow for its job.
        """
        self.at = record.at
        if record.facts and isinstance(record.facts[0], EpochBegan):
            self._notes = NotesReader()
        for one in self._notes.read(record.noted) if record.noted else ():
            self._hear(one.message, one.at)
        for fact in record.facts:
            vc = self._fact(fact, record.at)
            if vc:
                yield vc
        policy_views.bring_up(self._machine.tx, None)
        soft = self._machine.tx.soft
        for due in (soft.ripe, soft.reshare, soft.telling.unsure, soft.telling.unsettled):
            due.clear()  # It would be worked off by decisions, and none is made here.

    def _hear(self, message: Any, at: Instant) -> None:
        tx = self._machine.tx
        match message:
            case Outlook():
                job_rates.heard(tx, message, at)
            case QueueAdvice():
                for each in message.jobs:
                    job = tx.state.jobs.get(each.job)
                    if job is not None:
                        policy_views.predicted(tx, job, each)
            case _:
                pass

    def _fact(self, fact: Any, now: Instant) -> str:
        """Apply a fact; return the VC of a job that it ends, if the job has run."""
        name = getattr(fact, "job", "")
        job, course = self._machine.tx.state.jobs.get(name), self._courses.get(name)
        if job is not None and course is not None:
            self._goes_on(course, job, now)
            if isinstance(fact, JobBound) and course.sight is None:
                view = policy_views.of_job(self._machine.tx, job)
                course.sight = job_sight(view) if view is not None else None
            elif isinstance(fact, JobRequeued):
                course.run = 0.0
        elif isinstance(fact, JobQueued) and not fact.spec.opportunistic:
            self._courses[name] = _Course(fact.submitted_at)
        vc = job.spec.vc if job is not None else ""
        self._machine.apply(fact)
        if not isinstance(fact, JobEnded):
            return ""
        self._courses.pop(name, None)
        if course is None or course.sight is None or course.run < 1:
            return ""
        seen = Seen(course.submitted_at, int(min(course.run, RUN_MAX)), course.sight)
        self._ended.setdefault(vc, deque(maxlen=KEPT_MAX)).append(seen)
        self.counts[vc] = self.counts.get(vc, 0) + 1
        return vc

    def _goes_on(self, course: _Course, job: JobState, now: Instant) -> None:
        """Count what a job has done since the last fact about it."""
        sight = course.sight
        if job.state is State.RUNNING and job.change is None and sight is not None:
            chain = self._machine.tx.state.cells.chains.get(job.chain)
            inside = chain.topology.node_size if chain is not None else 1
            beyond = len(job.members) - -(-job.size * sight.each // inside)
            since = max(course.at, job.since)
            course.run += max(now - since, 0) * _speed(sight, job.size, beyond)
        course.at = now

    def window(self, vc: str, most: int) -> Window:
        """Return the latest jobs of a VC that have run and ended.

        Args:
            vc: The VC.
            most: No more than these.

        Raises:
            UnfitError: There are none, or the log does not say what is needed of them.
        """
        tx = self._machine.tx
        view = policy_views.of_vc(tx, Planned(vc, Fifo()), self.at)
        node_gpus = max(min(view.node_gpus, view.gpus), 1)
        held = max(view.gpus // node_gpus, 1) * node_gpus
        latest = [*self._ended.get(vc, ())][-most:]
        seen = sorted(
            (each for each in latest if _gpus(each.sight) <= min(held, WORKERS_MAX)),
            key=lambda each: (each.at, each.sight.sequence),
        )
        if not seen:
            text = f"none of the jobs of VC {vc} has run to its end on GPUs that it has now"
            raise UnfitError(text)
        return _window(seen, vc, held, node_gpus)


def _gpus(sight: JobSight) -> int:
    return sight.workers * sight.each


def _speed(sight: JobSight, workers: int, beyond: int) -> float:
    """Return the stated speed of a job at a size, over that as it was submitted.

    Where none is stated, each worker does as much as any other.

    Args:
        sight: What is stated.
        workers: Its size.
        beyond: On how many nodes more it is than it needs.
    """
    rates = dict(sight.rates)
    now, then = rates.get(workers, 0), rates.get(sight.workers, 0)
    growth = now / then if now and then else workers / sight.workers
    return min(growth, WORKERS_MAX) / _slowdown(sight, beyond)


def _slowdown(sight: JobSight, beyond: int) -> float:
    """Return the stated time on so many nodes more than are needed, over that on those."""
    nodes = sight.slowdown[0][0] + beyond if sight.slowdown else 0
    known = [slow for count, slow in sight.slowdown if count <= nodes]
    return max(known[-1] / 1000, 1.0) if known else 1.0


def _window(seen: Sequence[Seen], vc: str, gpus: int, node_gpus: int) -> Window:
    told = [_told(each.sight) for each in seen]
    known = [each for each in told if each is not None]
    if len(known) < TOLD_MIN * len(seen):
        text = f"of {len(seen)} jobs of VC {vc} only {len(known)} say how long they run: give them"
        text += " `size.run_time`, or mini-batches and a family"
        raise UnfitError(text)
    usual = int(median(known))
    elastic = [_is_elastic(each.sight) for each in seen]
    sizes = [_gpus(each.sight) for each in seen]
    most = [
        min(each.sight.most, gpus, WORKERS_MAX) if may else size
        for each, may, size in zip(seen, elastic, sizes, strict=True)
    ]
    least = [
        each.sight.least if may else size
        for each, may, size in zip(seen, elastic, sizes, strict=True)
    ]
    width = max(*most, *sizes)
    first = seen[0].at
    return Window(
        at=np.array([each.at - first for each in seen], np.int64) // 8 * 8,
        run=np.array([each.run for each in seen], np.int64),
        workers=np.array(sizes, np.int64),
        most=np.array(most, np.int64),
        least=np.array(least, np.int64),
        told_run=np.array([usual if each is None else each for each in told], np.int64),
        told_growth=np.array(
            [_growth(each.sight, width, may) for each, may in zip(seen, elastic, strict=True)]
        ),
        told_spread=np.array(
            [[1 / _slowdown(each.sight, beyond) for beyond in range(LEVELS)] for each in seen]
        ),
        gpus=gpus,
        node_gpus=node_gpus,
        untold=len(seen) - len(known),
        doubt=max(each.sight.doubt for each in seen) / 1000,
    )


def _told(sight: JobSight) -> int | None:
    """Return how long a job was said to run, in nanoseconds, when it was first placed."""
    if sight.left is not None and sight.left > 0:
        return min(int(sight.left), RUN_MAX)
    return (
        min(int(sight.expected), RUN_MAX)
        if sight.expected is not None and sight.expected > 0
        else None
    )


def _is_elastic(sight: JobSight) -> bool:
    """Return whether a job may have other sizes, and how fast it is there is known."""
    return sight.each == 1 and sight.most > sight.least and len(sight.rates) > 1


def _growth(sight: JobSight, width: int, elastic: bool) -> Floats:
    """Return the stated speed by workers; sizes that were not stated lie between their neighbours.

    That of a job with one size matters nowhere: it is as if it grew with its workers.
    """
    sizes = np.arange(width + 1.0)
    if not elastic:
        return sizes
    known = [(0, 0), *((size, rate) for size, rate in sight.rates if size > 0)]
    made = np.interp(sizes, [size for size, _ in known], [rate for _, rate in known])
    return np.asarray(np.minimum(made / max(made[1], 1e-9), WORKERS_MAX), dtype=np.float64)
