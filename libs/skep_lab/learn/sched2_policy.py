"""SCHED² and its baselines as policies of the production simulator: one job is chosen in each plan.

The agent is asked until it holds (section III-C). A plan is made again when a job got its GPUs, so
one turn in each is enough, and the next plan sees where the cells put it. While a gang has given
back only some of its nodes nothing is chosen: in SCHED²'s environment it gives them back at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from skep.policy.api import Planner, Policy
from skep.policy.capacity import FreeCapacity, Place
from skep.policy.parts import queued
from skep.policy.plan import Plan, Turn
from skep.policy.view import HOLDING, JobView, VcView
from skep.units import Duration
from skep.wire.cluster import Cluster
from skep.wire.reasons import Reason
from skep_lab.fast_env import sched2
from skep_lab.fast_env.arrays import JOB, Ints
from skep_lab.fast_env.play import SpeedTable
from skep_lab.fast_env.sched2 import HOUR, MINUTE, STATISTICS, Options
from skep_lab.fast_env.sched2_rules import FIFO, LRF, RANDOM, SAF, SIF, SPF, Rule
from skep_lab.learn.sched2_play import Act
from skep_lab.learn.sched2_protocol import MODELS
from skep_lab.learn.sched2_teachers import JOB_FEATURES
from skep_lab.simulator.build import uniform
from skep_lab.traces.job import Trace, TraceJob

MILLION = 1_000_000
UNKNOWN = 1 << 62
"""The predicted run time of a job of which nothing is known."""
GPU = "v100"


def cluster_of(options: Options) -> Cluster:
    """Return the cluster of a setting: one VC, `ALL`, owns it."""
    return uniform(sum(options.nodes), options.node_gpus, GPU)


def table_of(options: Options) -> SpeedTable:
    """Return the speeds of a setting, for production and for profiles."""
    return SpeedTable(MODELS, (GPU,), options.node_gpus, sched2.speeds(options))


def trace_of(jobs: Ints, name: str) -> Trace:
    """Return the jobs of an episode as a trace.

    Args:
        jobs: [J, JOB] as they came (`sched2_rules.jobs_of`).
        name: The name of the trace.
    """
    made = [
        TraceJob(
            id=f"s{number}",
            at=Duration(int(job[JOB.at])),
            run_time=Duration(int(job[JOB.run])),
            gpus=int(job[JOB.workers]),
            workers=int(job[JOB.workers]),
            model=MODELS[int(job[JOB.model])],
        )
        for number, job in enumerate(jobs)
    ]
    return Trace(name=name, jobs=tuple(made))


class Profiles:
    """How long jobs run, by how many nodes more than necessary they are on (k = 4 placements)."""

    def __init__(self, table: SpeedTable) -> None:
        """Take the measured speeds."""
        self._speeds = {
            model: [float(each) for each in row[0]]
            for model, row in zip(table.models, table.speeds, strict=True)
        }
        self._node_gpus = table.node_gpus

    def speed(self, job: JobView, level: int) -> float:
        """Return the speed of a job on so many nodes more than necessary."""
        size = job.spec.size
        row = self._speeds.get((size.family if size is not None else None) or "", [1.0])
        return row[min(level, len(row) - 1)]

    def level(self, job: JobView, nodes: int) -> int:
        """Return how many nodes more than necessary a job is on."""
        return max(nodes - -(-job.gpus // self._node_gpus), 0)

    def left(self, job: JobView, now: int) -> int:
        """Return how long a job on GPUs still runs, in nanoseconds."""
        if job.expected is None:
            return UNKNOWN
        whole = int(job.expected / self.speed(job, self.level(job, len(job.nodes)))) + 1
        return max(whole - (now - (job.began_at or now)), 0)


class Sched2Policy(Policy, frozen=True):
    """Each plan starts the job that is chosen, on packed nodes; without one nothing happens."""

    name: ClassVar[str] = "sched2"
    source: ClassVar[str] = "SCHED², section III"
    profiles: Profiles
    nodes: tuple[str, ...]
    """The nodes, in the order in which the network has them."""
    window: int
    act: Act

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    def plan(self, view: VcView) -> Plan:
        """Return the turn of the chosen job."""
        return _one(view, self._choose)

    def _choose(self, view: VcView, jobs: Sequence[JobView], capacity: FreeCapacity) -> int:
        seen = observe(view, jobs, self)
        may = np.zeros((1, self.window + 1), np.bool_)
        places = _Places(capacity, self.profiles)
        may[0, : min(len(jobs), self.window)] = [
            places.beyond(job) >= 0 for job in jobs[: self.window]
        ]
        may[0, self.window] = view.free < view.gpus
        action = int(self.act(seen[None], may)[0])
        return action if action < self.window and may[0, action] else -1


def observe(view: VcView, jobs: Sequence[JobView], policy: Sched2Policy) -> NDArray[np.float32]:
    """Return what SCHED² sees of a VC (table I), as `fast_env.sched2` shows it.

    Args:
        view: The VC.
        jobs: Its waiting jobs, by arrival.
        policy: The setting.
    """
    gpus = max((node.gpus for node in view.nodes), default=1)
    seen = np.zeros(
        len(policy.nodes) * gpus + policy.window * JOB_FEATURES + STATISTICS, np.float32
    )
    on: dict[str, list[int]] = {node: [] for node in policy.nodes}
    for job in view.jobs:
        if job.phase in HOLDING:
            left = policy.profiles.left(job, view.now)
            for node, count in job.nodes:
                on[node] += [left] * count
    for at, node in enumerate(policy.nodes):
        lefts = np.array(sorted(on[node], reverse=True), np.float64) + MINUTE
        seen[at * gpus : at * gpus + len(lefts)] = lefts / (lefts + HOUR)
    at = len(policy.nodes) * gpus
    for job in jobs[: policy.window]:
        seen[at : at + JOB_FEATURES] = [
            *(_time(job, policy.profiles.speed(job, level)) for level in range(4)),
            _squashed(float(job.gpus), 8.0),
            _squashed(float(view.now - job.submitted_at), HOUR),
        ]
        at += JOB_FEATURES
    others = jobs[policy.window :]
    each = float(max(len(others), 1))
    told = sum((job.expected or 0) // MILLION for job in others)
    waited = sum(view.now - job.submitted_at for job in others)
    seen[-STATISTICS:] = [
        _squashed(float(len(others)), 10.0),
        _squashed(sum(job.gpus for job in others) / each, 8.0),
        _squashed(told * 1e6 / each, HOUR),
        _squashed(waited / each, HOUR),
    ]
    return seen


def _squashed(value: float, scale: float) -> float:
    """Return what `sched2.squashed` does, which only kernels may call."""
    return value / (value + scale)


def _time(job: JobView, speed: float) -> float:
    return 1.0 if job.expected is None else _squashed(job.expected / speed, HOUR)


def _one(view: VcView, choose: Callable[[VcView, Sequence[JobView], FreeCapacity], int]) -> Plan:
    """Return a plan with the turn of one job.

    Args:
        view: The VC.
        choose: Returns the place among the waiting jobs, by arrival, of the one that is started; it
            fits. Below 0: none.
    """
    jobs, there = queued(view), [job for job in view.jobs if job.phase in HOLDING]
    if not jobs or view.free != view.gpus - sum(job.gpus for job in there):
        return Plan()
    capacity = FreeCapacity(view, there)
    at = choose(view, jobs, capacity)
    place = capacity.fit(jobs[at]) if at >= 0 else None
    if place is None:
        return Plan()
    return Plan(turns=(Turn(jobs[at].job, Reason.ARRIVAL, tuple(node for node, _ in place)),))


class RulePolicy(Policy, frozen=True):
    """A rule of `fast_env.sched2_rules` for the production simulator, but for the random one."""

    name: ClassVar[str] = "sched2-rule"
    source: ClassVar[str] = "SCHED², section IV-A"
    profiles: Profiles
    rule: Rule

    def __post_init__(self) -> None:
        """Check the rule.

        Raises:
            ValueError: It is random: a plan follows from its view.
        """
        if self.rule.order == RANDOM:
            reason = "a policy is not random"
            raise ValueError(reason)

    @property
    def sees_nodes(self) -> bool:
        """Return True."""
        return True

    def plan(self, view: VcView) -> Plan:
        """Return the turn of the chosen job, as if none had been passed over."""
        return self.planner()(view)

    def planner(self) -> Planner:
        """Return a function that counts how often each job was passed over."""
        passed: dict[str, _Passed] = {}

        def plan(view: VcView) -> Plan:
            return _one(
                view, lambda seen, jobs, capacity: _by_rule(self, passed, seen, jobs, capacity)
            )

        return plan


_Passed = tuple[int, tuple[int, int]]
"""How often a job was passed over, and at which event last: the latest job, and their number."""


class _Places:
    """Where jobs would go now, by their GPUs: all else of them is alike."""

    def __init__(self, capacity: FreeCapacity, profiles: Profiles) -> None:
        self._capacity, self._profiles = capacity, profiles
        self._found: dict[int, Place | None] = {}

    def beyond(self, job: JobView) -> int:
        """Return how many nodes more than necessary it would be on; below 0: it does not fit."""
        if job.gpus not in self._found:
            self._found[job.gpus] = self._capacity.fit(job)
        place = self._found[job.gpus]
        return -1 if place is None else self._profiles.level(job, len(place))


def _by_rule(
    policy: RulePolicy,
    passed: dict[str, _Passed],
    view: VcView,
    jobs: Sequence[JobView],
    capacity: FreeCapacity,
) -> int:
    """Choose as `sched2_rules.choose` does.

    Args:
        policy: The rule.
        passed: By job, how often it was passed over, and at which event last.
        view: The VC.
        jobs: Its waiting jobs, by arrival.
        capacity: What it has free.
    """
    rule, places = policy.rule, _Places(capacity, policy.profiles)
    turn = view.jobs[-1].sequence, len(view.jobs)
    seen = jobs[: rule.window] if rule.window else jobs
    keys = [(_key(policy, job, places), at) for at, job in enumerate(seen)]
    for _, at in sorted(keys):
        job = seen[at]
        count, when = passed.get(job.job, (0, None))
        may = places.beyond(job) >= 0 and _may(rule, job, places, view.now)
        if when == turn or not may:
            if rule.skips:
                continue
            return -1
        if count >= rule.delays or places.beyond(job) == 0:
            return at
        passed[job.job] = count + 1, turn
        if not rule.skips:
            return -1
    return -1


def _may(rule: Rule, job: JobView, places: _Places, now: int) -> bool:
    if rule.relax <= 0.0 or places.beyond(job) == 0:
        return True
    return now - job.submitted_at > rule.relax * (UNKNOWN if job.expected is None else job.expected)


def _key(policy: RulePolicy, job: JobView, places: _Places) -> float:
    order, told = policy.rule.order, float(UNKNOWN if job.expected is None else job.expected)
    if order == SAF:
        return told / policy.profiles.speed(job, max(places.beyond(job), 0))
    return {FIFO: 0.0, SIF: told, LRF: float(job.gpus), SPF: told * job.gpus}[order]


def rule_policy(options: Options, rule: Rule) -> RulePolicy:
    """Return a rule as a policy for a setting."""
    return RulePolicy(profiles=Profiles(table_of(options)), rule=rule)


def sched2_policy(options: Options, act: Act) -> Sched2Policy:
    """Return SCHED² as a policy for a setting.

    Args:
        options: The setting.
        act: Chooses actions, for example `sched2_play.greedy`.
    """
    nodes = tuple(
        cell.node for chain in cluster_of(options).chains.values() for cell in chain.nodes
    )
    return Sched2Policy(
        profiles=Profiles(table_of(options)), nodes=nodes, window=options.window, act=act
    )
