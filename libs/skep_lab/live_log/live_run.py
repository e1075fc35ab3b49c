"""What a live run was, told as a simulated one is: its jobs as a trace, their fates, its costs.

    the allocator's facts --> Trace (who wanted what, how long it ran), RunResult, Cluster, Costs

So the same jobs can be played again under other policies or cells, and be compared in the same
measures. A job's `run_time` is what it ran in the attempt that ended it, without what it stood
suspended, and in attempts that failed of themselves; of those that were preempted or lost with a
node only what was stored on request is work. Whatever a trace cannot say is in its notes, with
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from skep.cells.levels import gpus_owned
from skep.units import Duration, Instant, in_seconds
from skep.wire.changes import Goal, GpusRegained, JobChanged, JobChanging
from skep.wire.changes import Result as ChangeResult
from skep.wire.cluster import Cluster
from skep.wire.commands import Resume
from skep.wire.facts import (
    CellsSet,
    End,
    GpuQuarantined,
    JobBound,
    JobEnded,
    JobQueued,
    JobRan,
    JobRequeued,
    JobStopping,
    NodeDrained,
    NodeLost,
)
from skep.wire.moves import JobMoved
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed, GangWidened
from skep.wire.spec import JobSpec
from skep_lab.live_log.decide_again import Recorded
from skep_lab.outcome import PREEMPTED, JobOutcome, RunResult, Span, stopped_by
from skep_lab.simulator.run import name_of
from skep_lab.simulator.settings import Costs
from skep_lab.simulator.specs import node_gpus, nodes_of
from skep_lab.traces.job import RowProblem, Trace, TraceJob

NAME = "live"
Window = tuple[Instant, Instant]


class Life(msgspec.Struct):
    """One job as it was. Times are wall-clock ns, 0: not (yet)."""

    job: str
    spec: JobSpec
    submitted_at: int
    spans: list[tuple[int, int, str]] = []
    """Where it ran: from, to, and what ended that."""
    attempt_ns: int = 0
    """Run in this attempt so far."""
    kept_ns: int = 0
    """What of that a checkpoint holds which was stored on request, as before it made room."""
    work_ns: int = 0
    """Run in earlier attempts that ended of themselves."""
    lost_ns: int = 0
    waited_ns: int = 0
    waiting_since: int = 0
    bound_at: int = 0
    began: int = 0
    ran_at: int = 0
    """Since when it runs now."""
    goes_on: bool = False
    """It was told to go on where it has moved."""
    stopping_at: int = 0
    ended: int = 0
    end: End | None = None
    why: Reason | None = None
    preempted: int = 0
    suspended: int = 0
    migrated: int = 0
    resized: int = 0
    gpus: int = 0
    spread: tuple[int, ...] = ()
    chain: str = ""
    borrowed: bool = False

    def stands(self, at: int, why: str) -> None:
        """End a stretch in which it ran."""
        if self.ran_at:
            self.spans.append((self.ran_at, max(at, self.ran_at), why))
            self.attempt_ns += max(0, at - self.ran_at)
        self.ran_at = 0

    def waits(self, at: int) -> None:
        """Have it wait, if it does not yet."""
        self.waiting_since = self.waiting_since or at

    def waits_no_more(self, at: int) -> None:
        """End its waiting: it has GPUs, or no need of them."""
        if self.waiting_since:
            self.waited_ns += max(0, at - self.waiting_since)
        self.waiting_since = 0

    def stores(self, at: int) -> None:
        """Note that all it has done so far is stored."""
        self.kept_ns = self.attempt_ns + (max(0, at - self.ran_at) if self.ran_at else 0)


class Lived(msgspec.Struct, frozen=True, kw_only=True):
    """A live run. Times in it count from `begin` (wall-clock ns)."""

    begin: Instant
    trace: Trace
    result: RunResult
    cluster: Cluster
    costs: Costs
    ids: tuple[str, ...]
    """The jobs of the trace."""


class NothingError(Exception):
    """The log holds no job that ran; the text says what it holds."""


def lived(records: Iterable[Recorded], window: Window | None = None) -> Lived:
    """Return what the allocator's records say of jobs that were submitted within a window.

    Args:
        records: The records, in order.
        window: The first and the last instant; no record after the last is read. None: all jobs
            count.

    Raises:
        NothingError: No such job has run to its end.
    """
    fold = _Fold()
    for record in records:
        if window is not None and record.at > window[1]:
            break
        for fact in record.facts:
            fold.note(fact, record.at)
    lives = [
        life
        for life in fold.lives.values()
        if window is None or window[0] <= life.submitted_at <= window[1]
    ]
    usable = [life for life in lives if life.end is not None and life.began]
    if not usable or fold.cluster is None:
        text = f"of {len(lives)} jobs submitted none has run to its end"
        raise NothingError(text)
    begin = Instant(min(life.submitted_at for life in usable))
    usable.sort(key=lambda life: life.submitted_at)
    trace = Trace(
        name=NAME,
        jobs=tuple(_trace_job(life, begin) for life in usable),
        problems=tuple(_problems(lives)),
        notes=tuple(fold.notes(usable)),
    )
    outcomes = tuple(map(_outcome, usable, trace.jobs, [begin] * len(usable)))
    return Lived(
        begin=begin,
        trace=trace,
        result=_result(fold.cluster, outcomes),
        cluster=fold.cluster,
        costs=fold.costs(),
        ids=tuple(life.job for life in usable),
    )


class _Fold:
    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.cluster: Cluster | None = None
        self._gpus = 0
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._happened: dict[str, int] = {}

    def note(self, fact: object, at: Instant) -> None:
        """Take over one fact of a record stored at `at`."""
        match fact:
            case CellsSet():
                self._cells(fact.cluster)
            case NodeLost() | NodeDrained() | GpuQuarantined():
                self._happen(type(fact).__name__)
            case JobQueued():
                self.lives[fact.job] = Life(
                    fact.job, fact.spec, fact.submitted_at, waiting_since=fact.submitted_at
                )
            case JobBound():
                self._bound(self.lives[fact.job], fact)
                if fact.ranked is Reason.LENT_MEANWHILE:
                    self._happen("idle GPUs lent before a job's turn")
            case JobRan():
                life = self.lives[fact.job]
                life.began = life.began or fact.at
                life.ran_at = fact.at
                self._starts.append(fact.at - life.bound_at)
            case JobStopping():
                self.lives[fact.job].stopping_at = fact.at
            case JobRequeued():
                self._requeued(self.lives[fact.job], fact)
            case JobEnded():
                self._ended(self.lives[fact.job], fact)
            case JobChanging():
                self.lives[fact.job].goes_on = isinstance(fact.change, Resume)
            case JobChanged():
                self._changed(self.lives[fact.job], fact)
            case GpusRegained():
                self.lives[fact.job].waits_no_more(fact.at)
            case JobMoved():
                self.lives[fact.job].migrated += 1
                self.lives[fact.job].waits_no_more(fact.at)
                self._happen(type(fact).__name__)
            case GangWidened() | GangNarrowed():
                self.lives[fact.job].resized += 1
                self._happen(type(fact).__name__)
            case _:
                pass  # Everything else changes neither who runs nor where.

    def _cells(self, cluster: Cluster) -> None:
        """Keep the largest cluster there was: nodes join one by one."""
        gpus = sum(nodes_of(cluster).values())
        if gpus >= self._gpus and cluster.vcs:
            self.cluster, self._gpus = cluster, gpus

    def _happen(self, what: str) -> None:
        self._happened[what] = self._happened.get(what, 0) + 1

    def _bound(self, life: Life, fact: JobBound) -> None:
        spread = sorted((sum(map(len, member.devices)) for member in fact.members), reverse=True)
        life.spread, life.gpus, life.chain = tuple(spread), sum(spread), fact.chain
        life.borrowed = not any(fact.members[0].levels)
        life.waits_no_more(fact.at)
        life.bound_at = fact.at
        life.attempt_ns = life.kept_ns = life.stopping_at = 0

    def _over(self, life: Life, at: Instant, why: str) -> None:
        life.stands(at, why)
        if life.stopping_at:
            self._stops.append(at - life.stopping_at)

    def _requeued(self, life: Life, fact: JobRequeued) -> None:
        why = stopped_by(fact.why)
        self._over(life, fact.at, why)
        life.preempted += why == PREEMPTED
        kept = life.attempt_ns if fact.counted else min(life.kept_ns, life.attempt_ns)
        life.work_ns += kept
        life.lost_ns += life.attempt_ns - kept
        life.attempt_ns = life.kept_ns = 0
        life.waits(fact.at)

    def _ended(self, life: Life, fact: JobEnded) -> None:
        self._over(life, fact.at, "ended")
        life.waits_no_more(fact.at)
        life.ended, life.end, life.why = fact.at, fact.end, fact.why

    def _changed(self, life: Life, fact: JobChanged) -> None:
        if fact.released:
            life.waits(fact.at)  # Its GPUs are others', also where it was to have them again.
        if fact.result is not ChangeResult.DONE:
            return
        match fact.goal:
            case Goal.SUSPEND:
                life.suspended += bool(life.ran_at)
                life.stands(fact.at, "suspended")
            case Goal.CHECKPOINT:
                life.stores(fact.at)
            case Goal.RESUME:
                life.ran_at = life.ran_at or fact.at
            case Goal.MIGRATE if life.goes_on:  # Else it was suspended, and stands there too.
                life.ran_at = life.ran_at or fact.at
            case _:
                pass

    def costs(self) -> Costs:
        """Return what starting and stopping took: medians, in seconds."""
        start = median(self._starts) / 1e9 if self._starts else 0.0
        stop = median(self._stops) / 1e9 if self._stops else 0.0
        return Costs(start_s=max(0.0, round(start, 6)), stop_s=max(0.0, round(stop, 6)))

    def notes(self, lives: Sequence[Life]) -> Iterable[RowProblem]:
        """Yield what a trace cannot say, and how often it was."""
        for what, count in sorted(self._happened.items()):
            yield RowProblem(0, f"{what} ({count}): not in the trace")
        users = sum(life.end is End.CANCELLED for life in lives)
        if users:
            yield RowProblem(0, f"cancelled ({users}): they run as long as they had when they were")
        suspended = sum(life.suspended > 0 for life in lives)
        if suspended:
            yield RowProblem(
                0, f"suspended ({suspended}): their standing still is not in the trace"
            )
        quota = sum(
            life.spec.over_quota == "opportunistic" and not life.spec.opportunistic
            for life in lives
        )
        if quota:
            yield RowProblem(0, f"over_quota: opportunistic ({quota}): such jobs wait instead")


def _problems(lives: Sequence[Life]) -> Iterable[RowProblem]:
    for row, life in enumerate(lives, 1):
        if life.end is None:
            yield RowProblem(row, f"{life.job} has not ended", "job")
        elif not life.began:
            yield RowProblem(row, f"{life.job} never ran: {life.why}", "job")


def _trace_job(life: Life, begin: Instant) -> TraceJob:
    resources = life.spec.resources
    topology, elastic = resources.topology, life.spec.elastic
    return TraceJob(
        id=life.job,
        at=Duration(life.submitted_at - begin),
        run_time=Duration(max(1, life.work_ns + life.attempt_ns)),
        gpus=life.spec.gpus,
        workers=resources.workers,
        vc=life.spec.vc,
        mini_batches=life.spec.size.total() or 0,
        gpu_type=resources.only_type,
        tied=bool(resources.only_type),
        priority=life.spec.priority,
        opportunistic=life.spec.opportunistic,
        within=topology.within if topology is not None else "",
        hard=topology.hard if topology is not None else False,
        workers_min=elastic.min if elastic is not None else 0,
        workers_max=elastic.max if elastic is not None else 0,
        servers=life.spec.ps.servers if life.spec.ps is not None else 0,
        cpus=resources.cpus,
        memory=resources.memory if isinstance(resources.memory, int) else 0,
    )


def _outcome(life: Life, job: TraceJob, begin: Instant) -> JobOutcome:
    return JobOutcome(
        job=job,
        spans=tuple(
            Span(
                began=Duration(since - begin),
                ended=Duration(until - begin),
                gpus=life.gpus,
                spread=life.spread,
                chain=life.chain,
                ended_by=why,
                borrowed=life.borrowed,
            )
            for since, until, why in life.spans
        ),
        began=Duration(life.began - begin),
        ended=Duration(life.ended - begin),
        waited=Duration(life.waited_ns),
        preempted=life.preempted,
        suspended=life.suspended,
        migrated=life.migrated,
        resized=life.resized,
        lost=Duration(life.lost_ns),
    )


def _result(cluster: Cluster, outcomes: tuple[JobOutcome, ...]) -> RunResult:
    each, gpus = node_gpus(cluster), sum(nodes_of(cluster).values())
    return RunResult(
        trace=NAME,
        cluster=name_of(cluster),
        policy="live",
        seed=0,
        gpus=gpus,
        node_gpus=each,
        jobs=outcomes,
        nodes=nodes_of(cluster),
        vc_gpus={vc: gpus_owned(cluster, vc) for vc in cluster.vcs},
        events=sum(2 for outcome in outcomes if outcome.ended),
    )


class Start(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a job first ran, in seconds after the trace's beginning, in one run and in another."""

    job: str
    before: float | None
    after: float | None
    jct_before: float | None = None
    jct_after: float | None = None


def starts(before: RunResult, after: RunResult, least_s: float = 0.001) -> list[Start]:
    """Return the jobs whose first starts differ between two runs, the furthest apart first.

    Args:
        before: A run.
        after: Another run of the same jobs.
        least_s: By how much they differ at least (seconds).
    """
    theirs = {outcome.job.id: outcome for outcome in after.jobs}
    found = []
    for outcome in before.jobs:
        other = theirs.get(outcome.job.id)
        one = Start(
            outcome.job.id,
            _s(outcome.began),
            _s(other.began if other else None),
            _jct(outcome),
            _jct(other) if other else None,
        )
        if (one.before is None) != (one.after is None) or _apart(one) >= least_s:
            found.append(one)
    return sorted(found, key=lambda one: (-_apart(one), one.job))


def _apart(one: Start) -> float:
    if one.before is None or one.after is None:
        return 0.0 if one.before is one.after else float("inf")
    return abs(one.before - one.after)


def _s(time: Duration | None) -> float | None:
    return in_seconds(time) if time is not None else None


def _jct(outcome: JobOutcome) -> float | None:
    return _s(Duration(outcome.ended - outcome.job.at)) if outcome.ended is not None else None
