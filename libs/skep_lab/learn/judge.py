"""The judgement of the protocol: a policy plays a held-out trace in the production simulator.

Every policy is told the same. `Told` writes what the trace states of run times, speeds and
slowdowns into the views of its jobs, with what they have done, as the advisor does with its
predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np

from skep.learn.decide import decide
from skep.learn.features import times
from skep.learn.modelfile import Model
from skep.learn.scene import Scene, row_of
from skep.policy.api import Planner, Policy
from skep.policy.capacity import FreeCapacity
from skep.policy.parts import queued
from skep.policy.plan import Plan, Resize, Turn
from skep.policy.sight import job_sight, seen, sight_of
from skep.policy.sizes import resizable
from skep.policy.view import HOLDING, JobView, Phase, VcView
from skep.units import Duration, Instant, seconds
from skep.wire.learned import MOVES_MAX
from skep.wire.reasons import Reason
from skep_lab.fast_env import scores
from skep_lab.fast_env.queue import NEVER_ENDS_S
from skep_lab.learn import protocol
from skep_lab.learn.protocol import COSTS, LEVELS, NODE_GPUS, Drawn, Setting
from skep_lab.measures.job import effectiveness
from skep_lab.outcome import RunResult
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import EVERYTHING
from skep_lab.simulator.settings import Settings as RunSettings

MILLI = 1000
RHYTHM = seconds(600.0)
"""A learned policy looks again after so long without an event."""


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a trace, in seconds; see `protocol.METRICS`."""

    mean_jct_s: float
    p99_jct_s: float
    p99_wait_s: float
    makespan_s: float
    effectiveness: float
    unfinished: int = 0


def play(setting: Setting, number: int, policy: Policy, *, exact: bool = False) -> Played:
    """Return what becomes of a trace under a policy in the production simulator.

    Args:
        setting: The setting.
        number: The number of the trace.
        policy: The policy, which is told what the trace states.
        exact: Whether it is told true speeds instead.
    """
    drawn = protocol.draw(setting, number)
    if exact:
        truth = drawn.pool
        drawn = drawn._replace(
            told_growth=truth.growth[drawn.model], told_spread=truth.spread[drawn.model]
        )
    trace = protocol.trace_of(drawn, setting.name)
    settings = RunSettings(seed=number, costs=COSTS, can=EVERYTHING)
    told = Told(inner=policy, drawn=drawn)
    cluster = uniform(setting.nodes, NODE_GPUS)
    result = run(trace, cluster, settings, protocol.TruthOf(drawn), policies={ALL: told})
    return played(result)


def played(result: RunResult) -> Played:
    """Return a run by the measures of the protocol.

    A job that has not ended counts NEVER_ENDS_S, as in the fast environment: a policy that starves
    jobs is not the better for it.
    """
    ended = [each for each in result.jobs if each.ended is not None]
    took = [(each.ended or 0) - each.job.at for each in ended]
    jct = np.array(took + [seconds(NEVER_ENDS_S)] * (len(result.jobs) - len(ended))) / 1e9
    waits = np.array([each.waited for each in result.jobs]) / 1e9
    first = min(each.job.at for each in result.jobs)
    last = max((each.ended or 0 for each in ended), default=first)
    return Played(
        mean_jct_s=float(jct.mean()),
        p99_jct_s=float(np.quantile(jct, 0.99)),
        p99_wait_s=float(np.quantile(waits, 0.99)),
        makespan_s=(last - first) / 1e9,
        effectiveness=float(np.mean([effectiveness(each) or 0.0 for each in ended] or [0.0])),
        unfinished=len(result.jobs) - len(ended),
    )


# --- what is told --------------------------------------------------------------------------------


class Told(Policy, frozen=True, kw_only=True):
    """Another policy, whose views say what a trace states of its jobs."""

    name: ClassVar[str] = "told"
    source: ClassVar[str] = "Skep"
    inner: Policy
    drawn: Drawn

    @property
    def sees_nodes(self) -> bool:
        """Return what the other policy sees."""
        return self.inner.sees_nodes

    @property
    def sees_cells(self) -> bool:
        """Return what the other policy sees."""
        return self.inner.sees_cells

    def planner(self) -> Planner:
        """Return its function, with a view between."""
        plan, views = self.inner.planner(), _Views(self.drawn)
        return lambda view: plan(views.told(view))


class _Course(msgspec.Struct):
    """How far a job is, by the speeds at which it has truly run."""

    view: JobView | None = None
    """As it was last seen, and as it was shown."""
    shown: JobView | None = None
    at: int = 0
    rate: float = 0.0
    done: float = 0.0
    """Nanoseconds at speed 1."""


class _Views:
    """Views with what is told of their jobs."""

    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        self._truth = protocol.TruthOf(drawn)
        self._courses: dict[str, _Course] = {}

    def told(self, view: VcView) -> VcView:
        """Return a view with what is told."""
        jobs = tuple(self._told(job, view.now) for job in view.jobs)
        if len(self._courses) > 2 * len(jobs) + 64:
            alive = {job.job for job in view.jobs}
            self._courses = {name: each for name, each in self._courses.items() if name in alive}
        return msgspec.structs.replace(view, jobs=jobs)

    def _told(self, job: JobView, now: Instant) -> JobView:
        course = self._courses.setdefault(job.job, _Course())
        if course.view is job and course.shown is not None:
            return course.shown
        before, number = course.view, int((job.spec.name or "t0")[1:])
        changed = before is None or (before.phase, before.workers, before.nodes) != (
            job.phase,
            job.workers,
            job.nodes,
        )
        if changed:
            self._follow(course, job, number, now)
        course.view, course.shown = job, self._shown(course, job, number, now)
        return course.shown

    def _follow(self, course: _Course, job: JobView, number: int, now: Instant) -> None:
        """Count what a job has done until now, and take over how it goes on."""
        if course.rate > 0:
            spent = now - course.at
            before = course.view
            if before is not None and job.phase is Phase.RUNNING:
                spent -= min(spent, seconds(COSTS.resize_s))
            course.done += spent * course.rate
        course.at = now
        course.rate = self._speed(job, number, told=False) if job.phase is Phase.RUNNING else 0.0

    def _speed(self, job: JobView, number: int, *, told: bool) -> float:
        """Return the speed of a job where it is, over that as it was submitted."""
        drawn, model = self._drawn, int(self._drawn.model[number])
        growth = drawn.told_growth[number] if told else drawn.pool.growth[model]
        spread = drawn.told_spread[number] if told else drawn.pool.spread[model]
        beyond = max(len(job.nodes), 1) - -(-job.workers // NODE_GPUS)
        level = min(max(beyond, 0), LEVELS - 1)
        return float(growth[job.workers] / growth[int(drawn.workers[number])] * spread[level])

    def _shown(self, course: _Course, job: JobView, number: int, now: Instant) -> JobView:
        drawn = self._drawn
        left = None
        if job.phase in (Phase.RUNNING, Phase.STARTING, Phase.AWAY):
            part = max(1.0 - course.done / float(drawn.run[number]), 0.0)
            rest = float(drawn.told_run[number]) * part / self._speed(job, number, told=True)
            since = max(course.at - job.since, 0) if job.phase is Phase.RUNNING else 0
            left = Duration(round(rest) + since)
        sizes = range(int(drawn.least[number]), int(drawn.most[number]) + 1)
        rates = tuple((size, _milli(drawn.told_growth[number, size])) for size in sizes)
        fewest = -(-job.workers // NODE_GPUS)
        most = max(int(drawn.most[number]), fewest)
        slowdown = tuple(
            (fewest + level, round(MILLI / float(drawn.told_spread[number, level])))
            for level in range(LEVELS)
            if fewest + level <= most
        )
        return msgspec.structs.replace(
            job,
            left=left,
            rates=rates,
            rate_workers=job.workers,
            slowdown=slowdown,
            pause=seconds(COSTS.resize_s),
        )


def _milli(rate: float) -> int:
    return max(round(MILLI * rate), 1)


# --- the learned policy --------------------------------------------------------------------------


class Network(Policy, frozen=True, kw_only=True):
    """A model decides at once on each view of its VC; its moves are followed as advice is.

    With `compiled` it is `fast_env.scores.decide` that decides: the same moves, but where scores
    differ by no more than rounding, for a third of the time.
    """

    name: ClassVar[str] = "network"
    source: ClassVar[str] = "Skep"
    model: Model
    compiled: bool = False

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    def planner(self) -> Planner:
        """Return a function that follows the VC from view to view."""
        model = self.model
        if self.compiled:
            rows = _Rows(model)
            return lambda view: _plan(view, rows.moves(view))
        scene = Scene()

        def plan(view: VcView) -> Plan:
            scene.follow(sight_of(view, 0))
            decision = decide(model, scene, view.now / 1e9)
            return _plan(view, [(m.job, m.workers, m.spread) for m in decision.moves])

        return plan


class _Rows:
    """The rows of the jobs of a VC from view to view: those of jobs that change are made anew."""

    def __init__(self, model: Model) -> None:
        self._net = scores.net_of(model.net.weights)
        self._work = scores.work_of(0, self._net)
        self._moves = np.zeros((MOVES_MAX, 3))
        self._known: dict[str, tuple[JobView, list[float]]] = {}
        self._arrivals = Scene()
        """It is shown the jobs that have just come, and has the row of the cluster by that."""

    def moves(self, view: VcView) -> list[tuple[str, int, bool]]:
        """Return what the network would do: jobs, their workers, and whether they are spread."""
        jobs, now = seen(view.jobs), view.now / 1e9
        rows = self._rows(jobs)
        came = {job.job for job in jobs if job.job not in self._known}
        self._known = {job.job: (job, row) for job, row in zip(jobs, rows, strict=True)}
        new = msgspec.structs.replace(view, jobs=tuple(job for job in jobs if job.job in came))
        self._arrivals.follow(sight_of(new, 0))
        if not rows:
            return []
        if len(rows) >= len(self._work.shares):
            self._work = scores.work_of(2 * len(rows), self._net)
        cluster = self._arrivals.cluster(now, times(self._arrivals.raw, now))
        by = self._net, self._work
        count = scores.decide(np.array(rows), cluster, now, by, self._moves)
        made = self._moves[:count].tolist()
        return [(jobs[int(row)].job, int(workers), spread > 0) for row, workers, spread in made]

    def _rows(self, jobs: Sequence[JobView]) -> list[list[float]]:
        made = []
        for job in jobs:
            known = self._known.get(job.job)
            same = known is not None and known[0] is job
            made.append(known[1] if known is not None and same else row_of(job_sight(job)))
        return made


def _plan(view: VcView, moves: list[tuple[str, int, bool]]) -> Plan:
    """Return moves as a plan."""
    jobs = {job.job: job for job in view.jobs}
    capacity = FreeCapacity(
        view, [job for job in view.jobs if job.phase in HOLDING and not job.borrows]
    )
    turns, actions = list[Turn](), list[Resize]()
    for name, workers, spread in moves:
        job = jobs[name]
        if job.phase is Phase.RUNNING:
            if resizable(job) and workers != job.workers:
                actions.append(Resize(name, Reason.MOST_GAIN, workers))
            continue
        size = workers if job.spec.elastic is not None else 0
        asks = msgspec.structs.replace(job, workers=workers, gpus=workers) if size else job
        place = capacity.fit(asks)
        if place is None or (not spread and len(place) > -(-asks.gpus // NODE_GPUS)):
            continue
        capacity.take_gpus(asks, asks.gpus, place)
        turns.append(Turn(name, Reason.MOST_GAIN, tuple(node for node, _ in place), workers=size))
    return Plan(
        turns=tuple(turns), strict=False, actions=tuple(actions), look_at=Instant(view.now + RHYTHM)
    )


class Windowed(Policy, frozen=True, kw_only=True):
    """Another policy, which sees the first waiting jobs only."""

    name: ClassVar[str] = "windowed"
    source: ClassVar[str] = "SCHED², section III-B"
    inner: Policy
    window: int = protocol.WINDOW

    @property
    def sees_nodes(self) -> bool:
        """Return what the other policy sees."""
        return self.inner.sees_nodes

    @property
    def sees_cells(self) -> bool:
        """Return what the other policy sees."""
        return self.inner.sees_cells

    def planner(self) -> Planner:
        """Return its function, with a view between."""
        plan = self.inner.planner()

        def windowed(view: VcView) -> Plan:
            waiting = sorted(queued(view), key=lambda job: job.sequence)[self.window :]
            hidden = {job.job for job in waiting}
            jobs = tuple(job for job in view.jobs if job.job not in hidden)
            return plan(msgspec.structs.replace(view, jobs=jobs))

        return windowed


class Random(Policy, frozen=True, kw_only=True):
    """Waiting jobs in an order that their names draw; none blocks another."""

    name: ClassVar[str] = "random"
    source: ClassVar[str] = "Skep"

    def plan(self, view: VcView) -> Plan:
        """Return turns in that order."""
        waiting = sorted(queued(view), key=lambda job: hash_of(job.job))
        return Plan(turns=tuple(Turn(job.job, Reason.ARRIVAL) for job in waiting), strict=False)


def hash_of(name: str) -> int:
    """Return a number that looks random (FNV-1a)."""
    made = 2166136261
    for each in name.encode():
        made = (made ^ each) * 16777619 % 2**32
    return made
