"""HiveD's evaluation (sections 5.1 to 5.3): private clusters, quotas of GPUs, and cells.

There are three arms for one workload (`traces.generators.hived`): every tenant in a cluster of its
own; all in one cluster with quotas (`quota`); all in one cluster with cells, which is the
production allocator (`simulator`) with jobs that borrow idle GPUs. Starting and preempting cost
nothing in any arm: as in the paper, queueing delays are compared. But suspending and moving jobs
costs what Gandiva says (`TURNS`), and a suspended job waits. A job that is larger than all that its
tenant owns can run in no private cluster, and is left out of all arms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from skep.units import Duration, in_seconds, seconds
from skep.wire.cluster import Chain, Cluster, Quota, VirtualCluster
from skep_lab.experiments import gandiva
from skep_lab.experiments.quota import RULES, QuotaRun, Rules
from skep_lab.experiments.quotagandiva import GandivaRun
from skep_lab.experiments.quotalas import LasRun
from skep_lab.measures.series import series
from skep_lab.outcome import RunResult
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import EVERYTHING, Costs, Settings
from skep_lab.traces.generators import hived
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady

WINDOW_S = 12 * 3600.0
"""Delays are averaged over 12 hours of submission (section 5.1)."""
SAMPLE_S = 3600.0
SLACK_S = 60.0
"""A mean delay within this of the private one is the same: the allocator's own turns take time."""
COSTS = Costs(checkpoint_every_s=1.0)
"""What is preempted loses at most a second: in the paper's simulator nothing."""
SCHEDULERS: dict[str, type[QuotaRun] | type[LasRun]] = {
    "fifo": QuotaRun,
    "tiresias-l": LasRun,
    "gandiva": GandivaRun,
}
"""What serves quotas, by the policy inside VCs."""

Waited = dict[str, float]
"""Seconds in the queue, by job."""
Policies = Mapping[str, Any]


class Manner(NamedTuple):
    """What the production machines may do with jobs, and what that costs."""

    can: tuple[str, ...] = ("checkpoint",)
    costs: Costs = COSTS
    beyond: Literal["opportunistic", "wait"] = "opportunistic"
    """What jobs do in cells that are more than their tenant's: they borrow, or wait."""


STOPPED = Manner()
TURNS = Manner(EVERYTHING, msgspec.structs.replace(gandiva.COSTS, checkpoint_every_s=1.0))


class Arm(msgspec.Struct):
    """What came of one arm."""

    waited: Waited
    completion: Waited
    """Seconds from submission to end, by job."""
    preempted_gpus: int = 0
    fragmentation: list[tuple[float, float]] = []
    """Days, as long as jobs come, and the part of nodes without 8 GPUs for high priority."""
    utilisation: float = 0.0
    high: float = 0.0
    """The part of the GPUs that high-priority jobs hold, as long as jobs come (quota arm)."""


class Tenant(msgspec.Struct, frozen=True):
    """A tenant in all arms; delays in seconds. An arm's windows are those worse than private.

    So are its jobs, one by one, as in `studies.audit`: HiveD's own measure are windows.
    """

    jobs: int
    private_s: float
    quota_s: float
    cells_s: float
    quota_windows: int
    cells_windows: int
    windows: int
    quota_excess_s: float
    """By how much its worst window is worse than in its private cluster."""
    cells_excess_s: float
    quota_jobs: int = 0
    cells_jobs: int = 0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of one setting."""

    seed: int
    nodes: int
    left_out: int
    tenants: dict[str, Tenant]
    delays: dict[str, dict[str, list[tuple[float, float]]]]
    """By tenant and arm: day, and the mean delay in seconds of the window that begins there."""
    fragmentation: dict[str, list[tuple[float, float]]]
    preempted_gpus: dict[str, int]
    completion_s: dict[str, float]
    """Mean over all jobs, by arm."""
    utilisation: dict[str, float]
    workload_fragmentation: float
    high: float = 0.0
    """The part of the GPUs with jobs of high priority, quota arm."""

    @property
    def anomalies(self) -> dict[str, int]:
        """Return by arm how many tenants are worse off than alone, over the whole time.

        The result is empty if no tenant was run alone.
        """
        if "private" not in self.completion_s:
            return {}
        return {
            arm: sum(
                getattr(each, f"{arm}_s") > each.private_s + SLACK_S
                for each in self.tenants.values()
            )
            for arm in ("quota", "cells")
            if arm in self.completion_s
        }


def compare(
    seed: int,
    nodes: int,
    options: hived.Options,
    *,
    cells: dict[str, dict[str, int]] | None = None,
    policy: tuple[str, dict[str, Any]] = ("fifo", {}),
    arms: Iterable[str] = ("private", "quota", "cells"),
    cluster: Cluster | None = None,
    beside: Mapping[str, dict[str, int]] | None = None,
    plain: bool = False,
    rules: Rules = RULES,
    manner: Manner = STOPPED,
    tell: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Return the outcome of a seed's workload on so many nodes.

    Args:
        seed: The seed.
        nodes: How many nodes.
        options: Of the workload.
        cells: By tenant, its cells; None: those of `hived.assign`.
        policy: The policy inside VCs and private clusters; quotas have it from SCHEDULERS.
        arms: Which arms to run.
        cluster: A cluster with the cells in another form (`static`).
        beside: Other cells: jobs that these cannot hold are left out too, so that both are
            compared with one workload.
        plain: Whether private clusters are run by the quotas' scheduler too, as in the paper:
            two months in seconds.
        rules: The rules of quotas.
        manner: What the production machines may do with jobs.
        tell: Called with the name of each arm before it runs.
    """
    owned = cells if cells is not None else hived.assign(nodes)
    owned = {vc: each for vc, each in owned.items() if vc not in options.without}
    drawn = hived.generate(seed, options)
    fits = tuple(
        job
        for job in drawn.jobs
        if fits_in(job, owned[job.vc]) and (beside is None or fits_in(job, beside[job.vc]))
    )
    trace = Trace(name=drawn.name, jobs=fits)
    found: dict[str, Arm] = {}
    if "private" in arms:
        tell("private")
        found["private"] = (
            alone(trace, owned, policy[0]) if plain else private(trace, owned, seed, policy, manner)
        )
    if "quota" in arms:
        tell("quota")
        found["quota"] = quota(trace, owned, nodes, rules, policy[0])
    if "cells" in arms:
        tell("cells")
        whole = cluster if cluster is not None else hived.cluster(nodes, owned)
        found["cells"] = shared(trace, whole, seed, policy, manner)
    return _outcome(seed, nodes, len(drawn.jobs) - len(fits), trace, found, list(owned))


def private(
    trace: Trace,
    owned: Mapping[str, dict[str, int]],
    seed: int,
    policy: tuple[str, dict[str, Any]],
    manner: Manner = STOPPED,
) -> Arm:
    """Return every tenant's jobs in a cluster of its own cells and nothing else.

    Args:
        trace: The jobs of all tenants.
        owned: By tenant, its cells.
        seed: The seed of the run.
        policy: The policy of every cluster.
        manner: What the production machines may do with jobs.
    """
    both = Arm({}, {})
    for vc, cells in owned.items():
        own = Trace(name=vc, jobs=tuple(job for job in trace.jobs if job.vc == vc))
        nodes = -(-hived.gpus_of(cells) // hived.NODE_GPUS)
        result = _run(
            own, hived.cluster(nodes, {vc: cells}), seed, policy, manner._replace(beyond="wait")
        )
        arm = _arm(result)
        both.waited |= arm.waited
        both.completion |= arm.completion
    return both


def shared(
    trace: Trace,
    cluster: Cluster,
    seed: int,
    policy: tuple[str, dict[str, Any]] = ("fifo", {}),
    manner: Manner = STOPPED,
) -> Arm:
    """Return all tenants in one cluster, each with its cells, borrowing idle GPUs.

    Args:
        trace: The jobs.
        cluster: The cluster.
        seed: The seed of the run.
        policy: The policy of every VC.
        manner: What the production machines may do with jobs.
    """
    result = _run(trace, cluster, seed, policy, manner)
    arm = _arm(result)
    seen = series(result)
    last = in_seconds(trace.jobs[-1].at - trace.jobs[0].at) if trace.jobs else 0.0
    arm.fragmentation = [
        (at / 86400, level)
        for at, level in zip(seen.at, seen.no_affinity, strict=False)
        if at <= last
    ]
    taken = [allocated for at, allocated in zip(seen.at, seen.allocated, strict=True) if at <= last]
    arm.utilisation = sum(taken) / max(1, len(taken)) / result.gpus
    return arm


def alone(trace: Trace, owned: Mapping[str, dict[str, int]], policy: str = "fifo") -> Arm:
    """Return every tenant's jobs in a cluster of its own, scheduled as by `quota`.

    Args:
        trace: The jobs of all tenants.
        owned: By tenant, its cells, of which only the GPUs count.
        policy: A key of SCHEDULERS.
    """
    both = Arm({}, {})
    for vc, cells in owned.items():
        own = Trace(name=vc, jobs=tuple(job for job in trace.jobs if job.vc == vc))
        nodes = -(-hived.gpus_of(cells) // hived.NODE_GPUS)
        arm = quota(own, {vc: cells}, nodes, Rules(beyond=False), policy)
        both.waited |= arm.waited
        both.completion |= arm.completion
    return both


def quota(
    trace: Trace,
    owned: Mapping[str, dict[str, int]],
    nodes: int,
    rules: Rules = RULES,
    policy: str = "fifo",
) -> Arm:
    """Return all tenants in one cluster, each with a number of GPUs.

    Args:
        trace: The jobs of all tenants.
        owned: By tenant, its cells, of which only the GPUs count.
        nodes: How many nodes.
        rules: Choices that the paper leaves open.
        policy: A key of SCHEDULERS.
    """
    gpus = {vc: hived.gpus_of(cells) for vc, cells in owned.items()}
    played = SCHEDULERS[policy](trace.jobs, gpus, nodes, seconds(SAMPLE_S), rules)
    played.run()
    waited = {job.id: in_seconds(each) for job, each in zip(trace.jobs, played.waited, strict=True)}
    completion = {
        job.id: in_seconds(end - job.at)
        for job, end in zip(trace.jobs, played.ended, strict=True)
        if end is not None
    }
    last = trace.jobs[-1].at if trace.jobs else 0
    seen = [each for each in played.samples if each.at <= last]
    gpu_samples = max(1, len(seen)) * nodes * hived.NODE_GPUS
    return Arm(
        waited,
        completion,
        played.preempted_gpus,
        [(in_seconds(Duration(each.at)) / 86400, each.no_affinity) for each in seen],
        sum(each.taken for each in seen) / gpu_samples,
        sum(each.high for each in seen) / gpu_samples,
    )


def static(nodes: int, owned: Mapping[str, dict[str, int]] | None = None) -> Cluster:
    """Return the cluster with every tenant's cells bound to nodes permanently (Figure 10).

    Each tenant's nodes are a chain of their own, all owned by that tenant: there is nothing to
    choose. Opportunistic jobs still use idle GPUs of every chain.

    Args:
        nodes: How many nodes.
        owned: By tenant, its cells; None: those of `hived.assign`.
    """
    cells = dict(owned) if owned is not None else hived.assign(nodes)
    whole = hived.cluster(nodes, cells)
    (shape,) = whole.chains.values()
    chains: dict[str, Chain] = {}
    vcs: dict[str, VirtualCluster] = {}
    given = 0
    for vc, each in cells.items():
        count = -(-hived.gpus_of(each) // hived.NODE_GPUS)
        own = shape.nodes[given : given + count]
        given += count
        chains[vc] = msgspec.structs.replace(shape, nodes=own)
        vcs[vc] = VirtualCluster(
            cells=tuple(
                Quota(chain=vc, level=level, count=number) for level, number in each.items()
            )
        )
    if given < len(shape.nodes):
        chains["spare"] = msgspec.structs.replace(shape, nodes=shape.nodes[given:])
    return Cluster(chains=chains, vcs=vcs)


def fits_in(job: TraceJob, cells: dict[str, int]) -> bool:
    """Return whether a tenant's own cells hold a job when no other job is there."""
    if job.gpus <= hived.NODE_GPUS:
        return max(dict(hived.LEVELS)[level] for level in cells) >= job.gpus
    return cells.get("node", 0) * hived.NODE_GPUS >= job.gpus


def _run(
    trace: Trace, cluster: Cluster, seed: int, policy: tuple[str, dict[str, Any]], manner: Manner
) -> RunResult:
    settings = Settings(
        seed=seed,
        costs=manner.costs,
        over_quota=manner.beyond,
        sample_every_s=SAMPLE_S,
        can=manner.can,
        policies={} if policy[0] == "fifo" else dict.fromkeys(cluster.vcs, policy),
    )
    return run(trace, cluster, settings, Steady())


def _arm(result: RunResult) -> Arm:
    lost = [each.job.id for each in result.jobs if each.ended is None]
    if lost:
        reason = f"{len(lost)} jobs never ended, {lost[0]} first: means would be of the others only"
        raise ValueError(reason)
    waited = {each.job.id: in_seconds(each.waited) for each in result.jobs}
    completion = {
        each.job.id: in_seconds(each.ended - each.job.at)
        for each in result.jobs
        if each.ended is not None
    }
    gpus = sum(each.preempted * each.job.gpus for each in result.jobs)
    return Arm(waited, completion, gpus)


def _outcome(
    seed: int, nodes: int, left_out: int, trace: Trace, arms: Mapping[str, Arm], vcs: Iterable[str]
) -> Outcome:
    tenants: dict[str, Tenant] = {}
    delays: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for vc in vcs:
        jobs = [job for job in trace.jobs if job.vc == vc]
        by_arm = {name: _windows(jobs, arm.waited) for name, arm in arms.items()}
        delays[vc] = by_arm
        mean = {name: _mean(arm.waited[job.id] for job in jobs) for name, arm in arms.items()}
        excess = {
            name: [
                mine - alone
                for (_, mine), (_, alone) in zip(
                    by_arm[name], by_arm.get("private", by_arm[name]), strict=True
                )
            ]
            for name in by_arm
        }
        tenants[vc] = Tenant(
            len(jobs),
            mean.get("private", 0.0),
            mean.get("quota", 0.0),
            mean.get("cells", 0.0),
            sum(each > SLACK_S for each in excess.get("quota", [])),
            sum(each > SLACK_S for each in excess.get("cells", [])),
            len(by_arm[next(iter(by_arm))]),
            max(excess.get("quota", []), default=0.0),
            max(excess.get("cells", []), default=0.0),
            _worse(jobs, arms, "quota"),
            _worse(jobs, arms, "cells"),
        )
    return Outcome(
        seed=seed,
        nodes=nodes,
        left_out=left_out,
        tenants=tenants,
        delays=delays,
        fragmentation={name: arm.fragmentation for name, arm in arms.items() if arm.fragmentation},
        preempted_gpus={name: arm.preempted_gpus for name, arm in arms.items()},
        completion_s={name: _mean(arm.completion.values()) for name, arm in arms.items()},
        utilisation={name: arm.utilisation for name, arm in arms.items() if arm.utilisation},
        workload_fragmentation=hived.fragmentation(trace),
        high=arms["quota"].high if "quota" in arms else 0.0,
    )


def _worse(jobs: Iterable[TraceJob], arms: Mapping[str, Arm], name: str) -> int:
    """Return how many jobs wait longer in an arm than alone, each compared with itself."""
    if name not in arms or "private" not in arms:
        return 0
    here, there = arms[name].waited, arms["private"].waited
    return sum(here[job.id] > there[job.id] + SLACK_S for job in jobs)


def _windows(jobs: Iterable[TraceJob], waited: Waited) -> list[tuple[float, float]]:
    by_window: dict[int, list[float]] = {}
    for job in jobs:
        by_window.setdefault(int(in_seconds(job.at) // WINDOW_S), []).append(waited[job.id])
    return [(at * WINDOW_S / 86400, _mean(each)) for at, each in sorted(by_window.items())]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
