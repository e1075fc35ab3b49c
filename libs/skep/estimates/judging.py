"""Notes what is estimated of jobs, and judges it when they start and end.

    JobQueued --look--> start    JobBound --> length    Rates --> end, by its rate
         JobEnded: each of them held or not --> EstimateJudged

It makes the same estimates as people are shown, by the same functions. Estimates are soft: those
that were made before a restart are not judged, but a job that still runs is estimated again by its
rate. Of an attempt there is one fact at most, and only of jobs that were estimated or that say how
long the next one takes.

A start is estimated for jobs that still wait some seconds after they were queued: that others start
at once says nothing. Plays of a queue are some LOOK_EVERY apart; jobs are judged that came between.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import msgspec

from skep.estimates.calibration import START, Calibration, judged
from skep.estimates.lengths import (
    MILLI_NS,
    Known,
    Pace,
    Work,
    by_rate,
    remaining,
    slowest,
    whole,
    work_of,
)
from skep.estimates.starts import WAITING_MAX, Owned, Played, Runs, Waits, starts
from skep.ids import job_sequence
from skep.ledger import runs
from skep.perf.fitted import FitsKept
from skep.perf.progress import LEARNED_STEPS
from skep.promises.cells import own_parts
from skep.units import Duration, Instant, after, seconds
from skep.wire.cluster import FIFO, Cluster
from skep.wire.estimates import EstimateJudged, Outcome
from skep.wire.facts import (
    CellsSet,
    End,
    JobBound,
    JobDeferred,
    JobEligible,
    JobEnded,
    JobQueued,
    Member,
)
from skep.wire.findings import JobRate
from skep.wire.promises import Lasts
from skep.wire.spec import JobSpec, suits

LOOK_EVERY = seconds(10.0)
"""How often a queue is played: it takes some 20 ms."""
WAITS_NS = seconds(2.0)
"""A job that has not started by then waits."""
FRESH_MAX = 1_000
"""Jobs whose start is not estimated yet; of further ones it is not judged."""
JOBS_MAX = 100_000
"""Unfinished jobs whose estimates are judged, at about 1 KiB each: the first ones."""


BORROWS = ("auto", "opportunistic")
"""What `over_quota` says of a job that may have idle GPUs while it waits."""
Places = tuple[tuple[str, int], ...]
"""Nodes, and GPUs there."""
Lengths = Callable[[], Lasts | None]
"""Returns how long a job runs; None: that is not known."""


class Made(NamedTuple):
    """An estimate, and when it was made."""

    what: str
    lasts: Lasts
    at: Instant


class _Job(runs.Run, kw_only=True):
    """An unfinished job, its run, and what was estimated of it."""

    number: int
    work: Work
    spec: JobSpec
    places: Places = ()
    bound_at: Instant = Instant(0)
    borrows: bool = False
    pace: Pace | None = None
    paced_at: Instant = Instant(0)
    start: Made | None = None
    started: Outcome | None = None
    ends: dict[str, Made] = msgspec.field(default_factory=dict)
    seen: bool = False
    """Its attempt began while this process followed."""
    deferred: bool = False
    """It waits outside of its queue: when it enters that is not estimated."""


class Queue:
    """The jobs of a VC as plays take them, in any order. The caller adds them."""

    def __init__(self, owned: Owned, turns: Mapping[str, int], *, policy: bool) -> None:
        """Begin without jobs.

        Args:
            owned: The GPUs of each part of a node that the VC owns, by type.
            turns: The advised turn of waiting jobs.
            policy: Whether a policy chooses among the VC's jobs.
        """
        self.owned, self._turns, self._policy = owned, turns, policy
        self._running: list[Runs] = []
        self._waiting: list[tuple[tuple[int, int, int], str, JobSpec, Lengths]] = []

    def runs(self, number: int, gpu_type: str, places: Places, left: Lasts | None) -> None:
        """Add a job that has GPUs of the VC.

        Args:
            number: Its number.
            gpu_type: The type of its GPUs; empty: the only one that the VC owns.
            places: Nodes, and its GPUs there.
            left: How long it still runs.
        """
        kind = gpu_type or next(iter(self.owned), "")
        self._running.append(Runs(number, kind, places, left))

    def waits(self, name: str, spec: JobSpec, number: int, lasts: Lengths) -> None:
        """Add a job that waits.

        Args:
            name: Its id.
            spec: What it wants.
            number: Its number.
            lasts: Returns how long it runs; only of the first jobs is that asked.
        """
        turn = self._turns.get(name, 1 << 30)
        self._waiting.append(((-spec.priority, turn, number), name, spec, lasts))

    def played(self) -> dict[str, Played]:
        """Return when the first jobs that wait start and end."""
        first = heapq.nsmallest(WAITING_MAX, self._waiting, key=itemgetter(0))
        found = starts(self.owned, self._running, [self._waits(*each) for each in first])
        return {name: played for (_, name, *_), played in zip(first, found, strict=True)}

    def _waits(self, key: tuple[int, int, int], _: str, spec: JobSpec, lasts: Lengths) -> Waits:
        wanted = spec.resources
        kinds = tuple(kind for kind in self.owned if suits(wanted.gpu_type, kind))
        early = self._policy or spec.over_quota in BORROWS
        return Waits(key[-1], kinds, wanted.workers, wanted.gpus, lasts(), early)


class Judging:
    """Follows the allocator's facts and rates, from any position on. `take` returns what is due."""

    def __init__(self, types: Mapping[str, str], calibration: Calibration, fits: FitsKept) -> None:
        """Begin without jobs.

        Args:
            types: The GPU type of each node that has one only; kept by its owner.
            calibration: What outcomes have taught; kept by its owner.
            fits: What is predicted of speeds; likewise.
        """
        self._types, self._calibration, self._fits = types, calibration, fits
        self._jobs: dict[str, _Job] = {}
        self._fresh: dict[str, Instant] = {}
        """Jobs whose start is to be estimated, and when they were queued."""
        self._owned: dict[str, Owned] = {}
        self._planned: set[str] = set()
        """VCs with a policy."""
        self._looked_at = Instant(0)
        self._due: list[EstimateJudged] = []

    def fact(self, fact: object, now: Instant, *, live: bool) -> None:
        """Take over a fact of the allocator.

        Args:
            fact: The fact.
            now: The time.
            live: It was recorded just now: else it is history, of which nothing is judged.
        """
        delta = runs.apply(self._jobs, fact)
        match fact:
            case JobQueued():
                self._queued(fact, now, live=live)
            case JobDeferred() | JobEligible():
                self._deferred(fact, now, live=live)
            case JobBound():
                self._bound(fact, live=live)
            case JobEnded():
                self._ended(fact, live=live)
            case CellsSet(cluster=cluster):
                self._owned = {vc: owned(cluster, vc) for vc in cluster.vcs}
                self._planned = {vc for vc, each in cluster.vcs.items() if each.policy != FIFO}
            case _:
                pass
        moved = delta.placed and not isinstance(fact, JobBound)
        if moved and (job := self._jobs.get(delta.job)) is not None:
            job.places = _spread(job.nodes, job.work.gpus)
        if delta.waits and (job := self._jobs.get(delta.job)) is not None:
            job.ends, job.pace, job.started, job.start, job.seen = {}, None, None, None, False
            if live:
                self._note_fresh(delta.job, now)

    def measured(self, rate: JobRate, now: Instant) -> None:
        """Take over how a job goes.

        Args:
            rate: Of an attempt; ignored if it is not the one that is followed.
            now: When it was told.
        """
        job = self._jobs.get(rate.job)
        if job is None or not job.attempt or job.attempt != rate.attempt:
            return
        job.pace, job.paced_at = pace_of(rate, job.pace), now
        found = by_rate(job.work.total, job.pace)
        if found is not None and found.what not in job.ends and rate.steps >= LEARNED_STEPS:
            job.ends[found.what] = Made(found.what, self._wide(job.work, found), now)

    def look(self, now: Instant, turns: Callable[[], Mapping[str, int]]) -> None:
        """Estimate when jobs of one VC start that were queued since it was last looked.

        Args:
            now: The time.
            turns: Returns the advised turns of jobs.
        """
        first_at = next(iter(self._fresh.values()), now)
        if now < after(first_at, WAITS_NS) or now < after(self._looked_at, LOOK_EVERY):
            return
        self._looked_at = now
        first = next(iter(self._fresh))
        vc = self._jobs[first].work.vc
        fresh = [
            name
            for name, at in self._fresh.items()
            if self._jobs[name].work.vc == vc and now >= after(at, WAITS_NS)
        ]
        for name in fresh:
            del self._fresh[name]
        played = self._played(vc, turns(), now)
        for name in fresh:
            start = played[name].start if name in played else None
            if start is not None:
                work = self._jobs[name].work
                wide = self._calibration.widened(work.vc, work.family, START, start)
                self._jobs[name].start = Made(START, wide, now)

    def take(self) -> list[EstimateJudged]:
        """Return what is to be recorded, once."""
        due, self._due = self._due, []
        return due

    def check(self) -> None:
        """Assert the bounds.

        Raises:
            AssertionError: One of them is broken.
        """
        assert len(self._jobs) <= JOBS_MAX
        assert len(self._fresh) <= FRESH_MAX

    # --- facts -----------------------------------------------------------------------------------

    def _queued(self, fact: JobQueued, now: Instant, *, live: bool) -> None:
        number = job_sequence(fact.job)
        if number is None or fact.job in self._jobs or len(self._jobs) >= JOBS_MAX:
            return
        spec = fact.spec
        self._jobs[fact.job] = _Job(number=number, work=work_of(spec), spec=spec)
        if live:
            self._note_fresh(fact.job, now)

    def _deferred(self, fact: JobDeferred | JobEligible, now: Instant, *, live: bool) -> None:
        job = self._jobs.get(fact.job)
        if job is None:
            return
        job.deferred, job.start = isinstance(fact, JobDeferred), None
        self._fresh.pop(fact.job, None)
        if live and not job.deferred:
            self._note_fresh(fact.job, now)

    def _note_fresh(self, name: str, now: Instant) -> None:
        if len(self._fresh) < FRESH_MAX:
            self._fresh[name] = now

    def _bound(self, fact: JobBound, *, live: bool) -> None:
        job = self._jobs.get(fact.job)
        if job is None:
            return
        self._fresh.pop(fact.job, None)
        job.bound_at, job.ends, job.pace, job.seen = fact.at, {}, None, live
        job.places = places_of(fact.members)
        job.borrows = not any(any(member.levels) for member in fact.members)
        if job.start is not None and live:
            took = Duration(max(fact.at - job.start.at, 0))
            job.started = judged(START, job.start.lasts, took)
        known = self._whole(job) if live and fact.attempt == 1 else None
        if known is not None:
            job.ends[known.what] = Made(known.what, self._wide(job.work, known), fact.at)

    def _ended(self, fact: JobEnded, *, live: bool) -> None:
        job = self._jobs.pop(fact.job, None)
        self._fresh.pop(fact.job, None)
        if job is None or not live or not job.attempt:
            return
        succeeded = fact.end is End.SUCCEEDED
        outcomes = [] if job.started is None else [job.started]
        if succeeded:
            outcomes += [
                judged(made.what, made.lasts, Duration(max(fact.at - made.at, 0)))
                for made in job.ends.values()
            ]
        at_once = succeeded and fact.attempts == 1 and job.seen
        ran = Duration(max(fact.at - job.bound_at, 0) if at_once else 0)
        total = job.work.total or 0
        if outcomes or (ran and (job.work.declared or (job.work.family and total))):
            self._due.append(
                EstimateJudged(
                    at=fact.at,
                    job=fact.job,
                    attempt=job.attempt,
                    vc=job.work.vc,
                    family=job.work.family,
                    gpu_type=self._type_of(job),
                    gpus=job.work.gpus,
                    nodes=len(job.nodes),
                    outcomes=tuple(outcomes),
                    mini_batches=total if ran else 0,
                    ran=ran,
                    declared=Duration(job.work.declared),
                )
            )

    # --- estimates -------------------------------------------------------------------------------

    def _played(self, vc: str, turns: Mapping[str, int], now: Instant) -> dict[str, Played]:
        queue = Queue(self._owned.get(vc, {}), turns, policy=vc in self._planned)
        for name, job in self._jobs.items():
            work = job.work
            if work.vc != vc:
                continue
            if not job.attempt:
                if not (job.spec.opportunistic or job.deferred):
                    queue.waits(name, job.spec, job.number, partial(self._all_of, job))
            elif not job.borrows:
                ran = max(now - job.bound_at, 0)
                pace = None if job.pace is None else gone_on(job.pace, now - job.paced_at)
                known = remaining(work, pace, ran, partial(self._whole, job))
                queue.runs(job.number, self._type_of(job), job.places, self._lasts(job, known))
        return queue.played()

    def _whole(self, job: _Job) -> Known | None:
        known = self._calibration.runs(job.work.vc, job.work.family)
        seen = self._calibration.lengths(job.work.vc)
        types = sorted({self._types.get(node, "") for node in job.nodes})
        if len(types) < 2 or "" in types:
            types = [self._type_of(job)]
        nodes = max(len(job.nodes), 1)
        return slowest(
            whole(job.work, nodes, (job.work.gpus, each), (known, seen), self._fits)
            for each in types
        )

    def _all_of(self, job: _Job) -> Lasts | None:
        return self._lasts(job, self._whole(job))

    def _lasts(self, job: _Job, known: Known | None) -> Lasts | None:
        return None if known is None else self._wide(job.work, known)

    def _wide(self, work: Work, known: Known) -> Lasts:
        return self._calibration.widened(work.vc, work.family, known.what, known.lasts)

    def _type_of(self, job: _Job) -> str:
        types = sorted({self._types.get(node, "") for node in job.nodes})
        if len(types) == 1 and types[0]:
            return types[0]
        return only_type(job.work, self._owned.get(job.work.vc, {}))


def owned(cluster: Cluster, vc: str) -> Owned:
    """Return what a VC owns without pinned cells, which are for few jobs.

    Args:
        cluster: The cells in force.
        vc: The VC.
    """
    found: dict[str, tuple[int, ...]] = {}
    for kind, parts in own_parts(cluster, vc).items():
        if not kind.pin:
            found[kind.gpu_type] = (*found.get(kind.gpu_type, ()), *parts)
    return found


def _spread(nodes: Sequence[str], gpus: int) -> Places:
    """Return the places of an attempt of which only the nodes are known."""
    return tuple((node, max(gpus // len(nodes), 1)) for node in nodes)


def only_type(work: Work, owned: Owned) -> str:
    """Return the type of GPU that a job gets; empty: it may be several.

    Args:
        work: What it has to do.
        owned: What its VC owns.
    """
    return work.gpu_type or (next(iter(owned)) if len(owned) == 1 else "")


def places_of(members: Iterable[Member]) -> Places:
    """Return on which nodes an attempt has how many GPUs."""
    return tuple((each.node, sum(len(rank) for rank in each.devices)) for each in members)


def pace_of(rate: JobRate, before: Pace | None) -> Pace:
    """Return how an attempt goes; how steady it is, is told only now and then.

    Args:
        rate: What was told.
        before: What was known of the same attempt.
    """
    pace = Pace(rate.steps, rate.rate_milli, rate.mean_milli, rate.spread_milli, rate.samples)
    if rate.samples or before is None or not before.samples:
        return pace
    if abs(rate.rate_milli - before.mean) > max(3 * before.spread, before.mean // 10):
        return pace  # It goes otherwise now, and it is not known yet how steadily.
    return pace._replace(mean=before.mean, spread=before.spread, samples=before.samples)


def gone_on(pace: Pace, since: int) -> Pace:
    """Return how an attempt goes that went on as it did: a rate is told when it has changed.

    Args:
        pace: What was told.
        since: How long ago, in nanoseconds.
    """
    made = max(since, 0) * pace.rate_milli // MILLI_NS
    return pace._replace(steps=pace.steps + made)
