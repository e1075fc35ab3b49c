"""The advisor: in which order queued jobs had better start, and how those that run go.

    allocator's facts, Rates --> queue, runs, speeds of families --> QueueAdvice, Outlook
    Profiled --> facts of what mini-batches took, where that is new --> speeds of families

It follows the allocator's facts from the beginning of their stream at every start, so it holds
the same queue as the allocator, a moment later; what admission records is in them as far as it
matters here. All that is soft. What it records is what mini-batches took on so many GPUs and nodes
(`perf.profiles`): that would take days to be measured again.

What a mini-batch takes is learned per family, from runs that ended and, once it is steady, from
the rate of runs that go on. A queued job with a size hint and a known family has a predicted
remaining time; `policies.order` sorts by it. Advice goes out when the order changed, and again
before it expires; nothing is said while nothing waits or nothing can be predicted, or while the
backlog of facts is being read. The allocator works the same without it.

Of jobs in VCs with a policy it tells how they go, and how their families scale, whenever that has
become something else (`perf.outlook`): what a policy sees of rates is that.

What was measured is fitted when nothing else is to be done, a piece at each wake (`perf.fitting`).
The allocator and admission are told what came of it; when one of them begins anew, everything.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import msgspec

from skep.estimates.calibration import PREDICTED, Calibration
from skep.estimates.judging import Judging
from skep.ids import job_id, job_sequence
from skep.learn.advising import EXPIRES_AFTER, RESEND_AFTER, ActsAtOnce, Advising, Models, NoModels
from skep.learn.guard import Guard
from skep.ledger import runs
from skep.machines.base import Effect, Record, Restarted, Send, Tick
from skep.perf import predict
from skep.perf.fitting import Fitting, Model
from skep.perf.outlook import Outlooks, Runner
from skep.perf.profile_watch import is_sane
from skep.perf.profiles import Tenants, name_of
from skep.perf.progress import LEARNED_STEPS
from skep.policy.order import Group, Ranked, Waiting, shortest_remaining_first
from skep.units import Duration, Instant, after, seconds
from skep.wire import subjects
from skep.wire.advice import ADVISED_MAX, JobAdvice, QueueAdvice
from skep.wire.changes import JobPrioritised
from skep.wire.cluster import FIFO, Cluster
from skep.wire.codec import Facts, ServiceFact, Unreadable
from skep.wire.estimates import CalibrationKept, EstimateJudged
from skep.wire.facts import (
    CellsSet,
    End,
    EpochBegan,
    JobDeferred,
    JobEligible,
    JobEnded,
    JobQueued,
    NodeAdded,
)
from skep.wire.findings import Finding, Measured, PhaseChanged, RateLearned, Rates, Stalled
from skep.wire.following import BlockMeasured, GuardFact, ShadowSeen, StageSet
from skep.wire.held_up import GangSlowed
from skep.wire.learned import LearnedAdvice, Sight, SightWanted
from skep.wire.node import NodeJoined
from skep.wire.profile import AdvisorFact, Fingerprint, Profiled, ProfileMeasured
from skep.wire.spec import PRIORITY_MAX
from skep.wire.trials import Judged

AdvisorEvent = Facts | Finding | Sight | Unreadable
"""What the advisor takes from outside."""

ADVISE_EVERY = seconds(0.5)
"""How often a changed order is worth computing and sending: 512 jobs take about 4 ms."""

AGE_MAX = seconds(3600.0)
"""A job that has waited for longer is overtaken by no other: no length keeps it out for ever."""

BACKLOG_LAG = seconds(30.0)
"""A record older than this when it arrives is history: the queue it leads to is not in force."""

BACKLOG_PAUSE = seconds(1.0)
"""Without history for this long, all of it has been read."""

JOBS_MAX = 1_000_000
"""Unfinished jobs followed, the first ones: as many as one VC may have, at about 0.5 KiB each."""

NODES_MAX = 20_000
"""Nodes whose GPU types are known: more than can exist."""

SEQUENCE_BITS = 64

assert ADVISE_EVERY < RESEND_AFTER


class _Shown(msgspec.Struct):
    """What an attempt showed: the first fingerprint, and where its mini-batches were timed.

    So a job that lies leads to one fact for each size and place that it was given, as any other.
    """

    attempt: int
    fingerprint: Fingerprint | None = None
    places: dict[tuple[int, int, bool], None] = {}


class _Job(runs.Run, kw_only=True, gc=False):
    """An unfinished job and its run: `attempt` is 0 while it waits."""

    job: str
    position: int
    group: Group
    submitted_at: Instant
    family: str
    gpus: int
    gpu_type: str
    total: int | None
    ran_on: str = ""
    steps: int = 0
    rate_milli: int = 0
    learned: bool = False
    vc: str = ""
    each: int = 1
    """GPUs of a worker."""
    shared_batch: int = 0
    """Samples of a mini-batch, if its workers share them out however many there are; 0: they do
    not, or its spec does not say it."""
    shown: _Shown | None = None
    deferred: bool = False
    """It waits outside of its queue."""


def _position(priority: int, sequence: int) -> int:
    """Return the place of a job in the queue: by priority, then by arrival."""
    return ((PRIORITY_MAX - priority) << SEQUENCE_BITS) + sequence


class AdvisorMachine:
    """The behaviour of the advisor service."""

    def __init__(
        self, *, judges: bool = False, models: Models | None = None, guards: bool = False
    ) -> None:
        """Start knowing nothing: the allocator's facts are read from the beginning.

        Args:
            judges: Whether it has a log to record in what came of estimates.
            models: The learned models that there are; None: none.
            guards: Whether models have to prove themselves in each VC; else they act at once.
        """
        self._jobs: dict[str, _Job] = {}
        self._queue: list[int] = []
        """Positions of queued jobs, sorted: by priority, then arrival."""
        self._queued: dict[int, _Job] = {}
        self._types: dict[str, str] = {}
        """The GPU type of each node that has one type only."""
        self._speeds = predict.FamilySpeeds()
        self._changed = False
        self._advised: tuple[str, ...] = ()
        self._advised_at = Instant(0)
        self._ranked_at = Instant(0)
        self._quiet_until = Instant(0)
        self._outlooks = Outlooks()
        self.profiles = Tenants()
        self.fitting = Fitting(self.profiles)
        self.calibration = Calibration()
        kept = self.fitting.kept
        self._judging = Judging(self._types, self.calibration, kept) if judges else None
        self.fitting.widening = lambda model: self.calibration.widening(model.vc, model.name)
        self.guard = Guard() if guards else None
        self.advising = Advising(models or NoModels(), self.guard or ActsAtOnce())
        self._planned: dict[str, None] = {}
        """VCs with a policy."""
        self.resend_after, self.expires_after = RESEND_AFTER, EXPIRES_AFTER
        """A simulation in which nothing is lost may be less busy."""

    def decide(self, event: AdvisorEvent | Restarted | Tick, now: Instant) -> list[Effect]:
        """Take over an event and return the advice that is due.

        Args:
            event: What came. Only the facts of the allocator, rates and profiles change something.
            now: The time. Records that are BACKLOG_LAG older put advice off.

        Returns:
            What was measured and what came of estimates, as facts; the order of the queue; how
            jobs go.
        """
        effects: list[Effect] = []
        match event:
            case Facts():
                if now - event.at > BACKLOG_LAG:
                    self._quiet_until = after(now, BACKLOG_PAUSE)
                if event.service == "allocator":
                    for fact in event.facts:
                        self._fact(fact, now)
                    effects += self._judge(event, now)
                elif any(isinstance(fact, EpochBegan) for fact in event.facts):
                    self.fitting.again(now)
            case Rates():
                self._rates(event, now)
                effects += self._judge(event, now)
            case Tick() | Restarted() | Unreadable():
                pass
            case RateLearned() | PhaseChanged() | Stalled() | Judged() | GangSlowed():
                pass  # What it comes to is in the rates.
            case Measured():
                pass  # How well a job learns moves it neither in the queue nor elsewhere.
            case Profiled():
                effects += self._profiled(event, now)
            case Sight():
                effects += map(_told, self.advising.sight(event, now))
        effects += self._due(now)
        if self.guard is not None and now >= self._quiet_until:
            for step in self.guard.look(now):
                self.apply(step)
                effects.append(Record(step))
        due = self.fitting.wake_at()
        if isinstance(event, Tick) and due is not None and max(due, self._quiet_until) <= now:
            effects += [Send(subjects.ADVICE_OUTLOOK, each) for each in self.fitting.work(now)]
        return effects

    def _due(self, now: Instant) -> list[Effect]:
        """Return what is to be said at this time, whatever came."""
        effects: list[Effect] = []
        due = self._advise_at()
        if due is not None and due <= now:
            effects += self._advise(now)
        due = self._outlooks.wake_at()
        if due is not None and max(due, self._quiet_until) <= now:
            outlooks = self._outlooks.take(now)
            effects += [Send(subjects.ADVICE_OUTLOOK, each) for each in outlooks]
        due = self.advising.wake_at()
        if due is not None and max(due, self._quiet_until) <= now:
            effects += map(_told, self.advising.due(now))
        return effects

    def apply(self, fact: AdvisorFact) -> None:
        """Take over what was measured, or what came of estimates."""
        match fact:
            case EstimateJudged():
                self.calibration.apply(fact)
                if any(outcome.what.startswith(PREDICTED) for outcome in fact.outcomes):
                    self.fitting.changed(Model(fact.vc, fact.family, fact.gpu_type), fact.at)
            case CalibrationKept():
                self.calibration.apply(fact)
            case ProfileMeasured():
                self.profiles.apply(fact)
                if name_of(fact):
                    self.fitting.changed(Model(fact.vc, name_of(fact), fact.gpu_type), fact.at)
                if fact.family and not fact.shared:
                    key = fact.family, fact.gpu_type
                    step_ns = Duration(fact.p50_ns)
                    self._outlooks.learn(key, fact.gpus, fact.nodes, fact.job, step_ns)
            case StageSet() | ShadowSeen() | BlockMeasured():
                if self.guard is not None:
                    self.guard.apply(fact)
            case EpochBegan():
                pass

    def snapshot(self) -> list[ProfileMeasured | CalibrationKept | GuardFact]:
        """Return what the log comes to: facts that lead to the same state."""
        stages = self.guard.facts() if self.guard is not None else ()
        return [*self.profiles.facts(), *self.calibration.facts(), *stages]

    def wake_at(self) -> Instant | None:
        """Return when there is something to say, or None while there could be nothing."""
        times = [self._outlooks.wake_at(), self.fitting.wake_at(), self.advising.wake_at()]
        if self.guard is not None:
            times.append(self.guard.wake_at())
        planned = [max(at, self._quiet_until) for at in times if at is not None]
        advise = self._advise_at()
        return min(planned if advise is None else [advise, *planned], default=None)

    def _advise_at(self) -> Instant | None:
        """Return when the order is next looked at."""
        if not self._queue or not len(self._speeds):
            return None
        if self._changed:
            return max(after(self._ranked_at, ADVISE_EVERY), self._quiet_until)
        if self._advised:
            return max(after(self._advised_at, self.resend_after), self._quiet_until)
        return None

    def remaining(self, job: str) -> Duration | None:
        """Return how long an unfinished job will still run once it runs; None if unknown.

        A running job goes on at its own rate as soon as it has one.

        Args:
            job: The identifier of the job.

        Returns:
            Nanoseconds. None: the job is not followed, gave no size, or its speed is not known.
        """
        known = self._jobs.get(job)
        if known is None:
            return None
        return self._remaining(known)

    def check(self) -> None:
        """Assert that the queue is exactly the jobs that wait, in order, and the bounds.

        Raises:
            AssertionError: That does not hold.
        """
        assert sorted(self._queued) == self._queue
        for position, job in self._queued.items():
            assert position == job.position
            assert self._jobs[job.job] is job
        waiting = [job for job in self._jobs.values() if job.attempt == 0 and not job.deferred]
        assert len(waiting) == len(self._queue)
        assert len(self._jobs) <= JOBS_MAX
        assert len(self._types) <= NODES_MAX
        assert len(self._advised) <= ADVISED_MAX
        self._speeds.check()
        self._outlooks.check()
        self.profiles.check()
        self.fitting.check()
        self.calibration.check()
        self.advising.check()
        if self.guard is not None:
            self.guard.check()
        if self._judging is not None:
            self._judging.check()

    # --- what is known -----------------------------------------------------------------------

    def _fact(self, fact: ServiceFact, now: Instant) -> None:
        """Take over one fact of the allocator."""
        if self.guard is not None:
            self.guard.hear(fact)
        delta = runs.apply(self._jobs, fact)
        if delta is not runs.NO_CHANGE:
            self._follow(delta, now)
        match fact:
            case JobQueued():
                self._admit(fact)
            case JobPrioritised():
                self._prioritise(fact)
            case JobDeferred() | JobEligible():
                self._defer(fact)
            case JobEnded():
                self._end(fact)
            case NodeAdded():
                self._node(fact.joined)
            case CellsSet(cluster=cluster):
                self._plan(cluster, now)
                self.advising.set_cluster(cluster)
                if self.guard is not None:
                    self.guard.set_cluster(cluster)
            case EpochBegan():
                self._outlooks.again(now)
                self.fitting.again(now)
            case _:
                pass  # What it says about runs was all.

    def _follow(self, delta: runs.RunDelta, now: Instant) -> None:
        """Take over what a fact changed in the run of a job."""
        for name in delta.shares:
            self._shares(name)
        job = self._jobs.get(delta.job)
        if job is None:
            return
        if delta.waits:
            self._wait(job)
        if delta.began:
            self._leave(job)
        if delta.placed:
            self._begins(job, now)

    def _plan(self, cluster: Cluster, now: Instant) -> None:
        """Follow the jobs of VCs that have a policy now."""
        before = self._planned
        self._planned = {vc: None for vc, each in cluster.vcs.items() if each.policy != FIFO}
        if self._planned.keys() - before.keys():
            self.fitting.again(now)  # What a policy goes by is kept for VCs that have one only.
        for job in self._jobs.values() if self._planned.keys() != before.keys() else ():
            if job.vc not in self._planned:
                self._outlooks.end(job.job)
            elif job.vc not in before and job.attempt:
                self._begins(job, now)

    def _admit(self, fact: JobQueued) -> None:
        sequence = job_sequence(fact.job)
        if sequence is None or fact.job != job_id(sequence):
            return
        if fact.job in self._jobs or len(self._jobs) >= JOBS_MAX:
            return
        spec = fact.spec
        job = _Job(
            job=fact.job,
            position=_position(spec.priority, sequence),
            group=(spec.vc, spec.opportunistic, spec.priority),
            submitted_at=fact.submitted_at,
            family=spec.size.family or "",
            gpus=spec.gpus,
            gpu_type=spec.resources.only_type,
            total=spec.size.total(),
            vc=spec.vc,
            each=spec.resources.gpus,
            shared_batch=(spec.size.batch_size or 0) if spec.elastic is not None else 0,
        )
        self._jobs[fact.job] = job
        self._wait(job)

    def _defer(self, fact: JobDeferred | JobEligible) -> None:
        """Have a job wait outside of its queue, or in it again."""
        job = self._jobs.get(fact.job)
        if job is None:
            return
        if isinstance(fact, JobEligible):
            job.deferred = False
            self._wait(job)
        elif not job.deferred:
            job.deferred = True
            self._leave(job)

    def _prioritise(self, fact: JobPrioritised) -> None:
        """Let a job wait at another place."""
        job, sequence = self._jobs.get(fact.job), job_sequence(fact.job)
        if job is None or sequence is None:
            return
        waits = job.position in self._queued
        if waits:
            self._leave(job)
        job.position = _position(fact.priority, sequence)
        job.group = (*job.group[:2], fact.priority)
        if waits:
            self._wait(job)

    def _wait(self, job: _Job) -> None:
        job.steps, job.rate_milli, job.learned = 0, 0, False
        self._outlooks.end(job.job)
        insort(self._queue, job.position)
        self._queued[job.position] = job
        self._changed = True

    def _leave(self, job: _Job) -> None:
        del self._queue[bisect_left(self._queue, job.position)]
        del self._queued[job.position]
        self._changed = True

    def _begins(self, job: _Job, now: Instant) -> None:
        """Follow an attempt that is somewhere, or elsewhere from now on."""
        types = sorted({self._types.get(node, "") for node in job.nodes})
        job.ran_on = types[0] if len(types) == 1 and types[0] else job.gpu_type
        if job.family and job.ran_on:
            self.fitting.ran(Model(job.vc, job.family, job.ran_on), None, now)
        if job.vc in self._planned:
            runner = Runner(
                job.job,
                job.attempt,
                (job.family, job.ran_on),
                job.each,
                len(job.nodes),
                job.total,
                job.shares,
            )
            self._outlooks.begin(runner)

    def _shares(self, name: str) -> None:
        """Note that what a job's mini-batches take says nothing of it alone from now on."""
        runner = self._outlooks.runners.get(name)
        if runner is not None:
            runner.shares = True

    def _end(self, fact: JobEnded) -> None:
        job = self._jobs.pop(fact.job, None)
        if job is None:
            return
        self._outlooks.end(job.job)
        if job.attempt == 0:
            if not job.deferred:
                self._leave(job)
            return
        ran_ns = fact.at - fact.ran_at if fact.ran_at else 0
        succeeded = fact.end is End.SUCCEEDED
        self._learn(job, predict.run_step_ns(fact.steps, ran_ns, fact.step_ns, succeeded))

    def _node(self, joined: NodeJoined) -> None:
        types = sorted({gpu.type for gpu in joined.gpus})
        if len(types) != 1:
            self._types.pop(joined.node, None)
        elif joined.node in self._types or len(self._types) < NODES_MAX:
            self._types[joined.node] = types[0]

    def _rates(self, rates: Rates, now: Instant) -> None:
        jobs, steady = self._jobs, []
        for rate in rates.jobs:
            job = jobs.get(rate.job)
            if job is None or job.attempt != rate.attempt or not job.attempt:
                continue
            job.steps, job.rate_milli = rate.steps, rate.rate_milli
            if not job.learned and rate.steps >= LEARNED_STEPS:
                steady.append(job)
            if job.vc in self._planned:
                self._outlooks.measured(rate, now)
        for job in sorted(steady, key=lambda job: job.position):
            # Whose rates are told first must make no difference.
            job.learned = self._learn(job, predict.rate_step_ns(job.rate_milli))

    def _profiled(self, found: Profiled, now: Instant) -> list[Effect]:
        """Take over what an attempt shows; return the fact of it, if it is one."""
        job = self._jobs.get(found.job)
        if job is None or not job.attempt or job.attempt != found.attempt:
            return []
        if now < self._quiet_until:
            return []  # Where it runs is still being read. It is told again.
        if job.shown is None or job.shown.attempt != found.attempt:
            job.shown = _Shown(found.attempt)
        job.shown.fingerprint = job.shown.fingerprint or found.fingerprint
        if job.family and job.ran_on:
            model = Model(job.vc, job.family, job.ran_on)
            self.fitting.ran(model, job.shown.fingerprint, now)
        timing = found.timing
        if timing is None or not is_sane(timing) or not found.workers or not job.nodes:
            return []
        fact = ProfileMeasured(
            at=now,
            job=job.job,
            attempt=job.attempt,
            vc=job.vc,
            family=job.family,
            gpu_type=job.ran_on,
            gpus=found.workers * job.each,
            nodes=len(job.nodes),
            p10_ns=timing.p10_ns,
            p50_ns=timing.p50_ns,
            p90_ns=timing.p90_ns,
            samples=timing.samples,
            spread_milli=1000 * timing.deviation_ns // timing.mean_ns,
            batch=_batch(job, found.workers),
            shared=job.shares,
            fingerprint=job.shown.fingerprint,
        )
        place = fact.gpus, fact.nodes, fact.shared
        known = place in job.shown.places or not self.profiles.is_news(fact)
        if known or fact.nodes > fact.gpus:
            return []
        job.shown.places[place] = None
        self.apply(fact)
        return [Record(fact)]

    def _judge(self, event: Facts | Rates, now: Instant) -> list[Effect]:
        """Estimate, and return what came of earlier estimates, as facts."""
        judging = self._judging
        if judging is None:
            return []
        if isinstance(event, Facts):
            for fact in event.facts:
                judging.fact(fact, now, live=now - event.at <= BACKLOG_LAG)
        else:
            for rate in event.jobs:
                judging.measured(rate, now)
        judging.look(now, lambda: self._turns(now))
        due = judging.take()
        for fact in due:
            self.apply(fact)
        return [Record(fact) for fact in due]

    def _learn(self, job: _Job, step_ns: Duration | None) -> bool:
        """Take over what a mini-batch of a run takes; return whether that was of any use."""
        if not job.family or step_ns is None:
            return False
        self._speeds.learn(job.family, job.gpus, job.ran_on, job.job, step_ns)
        self._changed = True
        return True

    # --- what is advised ---------------------------------------------------------------------

    def _advise(self, now: Instant) -> list[Effect]:
        ranked = self._rank(now)
        self._ranked_at, self._changed = now, False
        if all(each.waiting.remaining is None for each in ranked):
            self._advised = ()
            return []
        order = tuple(each.waiting.job for each in ranked)
        if order == self._advised and now < after(self._advised_at, self.resend_after):
            return []
        self._advised, self._advised_at = order, now
        jobs = tuple(
            JobAdvice(job=waiting.job, why=why, remaining=waiting.remaining)
            for waiting, why in ranked
        )
        advice = QueueAdvice(at=now, expires_at=after(now, self.expires_after), jobs=jobs)
        return [Send(subjects.ADVICE_QUEUE, advice)]

    def _rank(self, now: Instant) -> list[Ranked]:
        queued = self._queued
        first = [queued[position] for position in self._queue[:ADVISED_MAX]]
        waiting = [
            Waiting(job.job, job.group, job.submitted_at, self._remaining(job)) for job in first
        ]
        return shortest_remaining_first(waiting, Instant(now - AGE_MAX))

    def _turns(self, now: Instant) -> dict[str, int]:
        """Return which of the first jobs that wait comes when."""
        return {each.waiting.job: turn for turn, each in enumerate(self._rank(now))}

    def _remaining(self, job: _Job) -> Duration | None:
        if job.total is None:
            return None
        step_ns = predict.rate_step_ns(job.rate_milli)
        if step_ns is None and job.family:
            step_ns = self._speeds.step_ns(job.family, job.gpus, job.gpu_type)
        return predict.remaining(job.total, job.steps, step_ns)


def _told(message: LearnedAdvice | SightWanted) -> Send:
    return Send(subjects.ADVICE_LEARNED, message)


def _batch(job: _Job, workers: int) -> int:
    """Return how many samples a mini-batch has on each GPU, as far as it shows; 0: unknown."""
    shown = job.shown.fingerprint if job.shown is not None else None
    if job.shared_batch:
        return max(1, job.shared_batch // (workers * job.each))
    if shown is None or len(shown.batch) < 2:
        return 0
    return max(1, shown.batch[0] * max(1, shown.processes) // max(1, job.each))
