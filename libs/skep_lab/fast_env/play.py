"""A trace under a policy in the fast environment: the counterpart of `simulator.run`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from skep.cells.levels import gpus_per_node
from skep.units import in_seconds, seconds
from skep.wire.cluster import Cluster
from skep.wire.spec import TIME_S_MAX, suits
from skep_lab.fast_env import engine
from skep_lab.fast_env.arrays import (
    COST,
    JOB,
    NEVER,
    Floats,
    Ints,
    JobArrays,
    NodeArrays,
    State,
    ints,
    new_state,
)
from skep_lab.fast_env.engine import Rule
from skep_lab.simulator.settings import AT_ONCE, Costs, Settings
from skep_lab.simulator.specs import NOISY_SIGMA, node_gpus, shape
from skep_lab.traces.job import TraceJob
from skep_lab.workloads.situation import Situation

RULES: Mapping[str, Rule] = {
    "fifo": Rule(engine.ARRIVAL),
    "backfill": Rule(engine.ARRIVAL, strict=False),
    "packing": Rule(engine.ARRIVAL, packing=True),
    "sif": Rule(engine.SHORTEST),
    "spf": Rule(engine.SMALLEST),
    "lrf": Rule(engine.FEWEST),
}
"""The policies of `skep.policy.registry` that the fast environment has."""


class SpeedTable(NamedTuple):
    """Speeds by model, type of GPU, and nodes beyond the fewest; a `Speeds` for production too."""

    models: tuple[str, ...]
    kinds: tuple[str, ...]
    node_gpus: int
    speeds: Floats
    """[models, kinds, LEVELS] relative to the speed in the trace."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return the speed of the table; 1.0 for a model that it does not have."""
        if job.model not in self.models:
            return 1.0
        gpus = sum(where.spread)
        more = len(where.spread) - -(-gpus // self.node_gpus)
        level = min(max(more, 0), self.speeds.shape[2] - 1)
        model, kind = self.models.index(job.model), self.kinds.index(where.gpu_type)
        return float(self.speeds[model, kind, level])

    def mini_batch_s(self, job: TraceJob, where: Situation) -> float:
        """Return 0.0: unknown."""
        return 0.0

    def utilisation(self, job: TraceJob, where: Situation) -> float:
        """Return 1.0."""
        return 1.0

    def memory(self, job: TraceJob) -> int:
        """Return 0: unknown."""
        return 0

    def unknown(self, jobs: tuple[TraceJob, ...]) -> dict[str, int]:
        """Return nothing: a model without a row has speed 1."""
        return {}


class Played(NamedTuple):
    """What became of the jobs, in the order of the trace. Times are nanoseconds; NEVER: not yet."""

    first: Ints
    ended: Ints
    waited: Ints
    lost: Ints
    overhead: Ints


def rule_of(policy: str, options: Mapping[str, Any] = {}) -> Rule:
    """Return how a policy serves its queue.

    Args:
        policy: A name of `RULES`.
        options: Its options in the cluster file: `strict`, or none.

    Raises:
        ValueError: The fast environment does not have the policy, or the option.
    """
    if policy not in RULES:
        reason = f"no policy {policy!r} in the fast environment; there are {', '.join(RULES)}"
        raise ValueError(reason)
    unknown = [name for name in options if name != "strict" or policy in ("fifo", "backfill")]
    if unknown:
        reason = f"policy {policy} has no option {unknown[0]!r} in the fast environment"
        raise ValueError(reason)
    return RULES[policy]._replace(**options)


def nodes_of(cluster: Cluster) -> NodeArrays:
    """Return the nodes of a cluster, chain by chain.

    Raises:
        ValueError: There are levels other than node, pins, or not just one VC that owns all nodes.
    """
    sizes: list[int] = []
    kinds: list[int] = []
    for number, chain in enumerate(cluster.chains.values()):
        if len(chain.levels) != 1:
            reason = "the fast environment has no levels but GPU and node"
            raise ValueError(reason)
        sizes += [gpus_per_node(chain)] * len(chain.nodes)
        kinds += [number] * len(chain.nodes)
    owned = sum(each.count for vc in cluster.vcs.values() for each in vc.cells)
    if len(cluster.vcs) != 1 or owned != len(sizes) or cluster.pins:
        reason = "the fast environment has one VC, which owns every node, and no pinned cells"
        raise ValueError(reason)
    return NodeArrays(ints(sizes), ints(kinds))


def jobs_of(
    jobs: Sequence[TraceJob],
    cluster: Cluster,
    settings: Settings,
    models: Sequence[str] = (),
    told_after: int = 0,
) -> JobArrays:
    """Return jobs as arrays.

    Args:
        jobs: The jobs of a trace, in the order of submission.
        cluster: Where they are submitted: its nodes decide how a gang is divided.
        settings: What owners say of run times (`hints`), with the seed of that.
        models: The models of the table of speeds; another model has the row after the last.
        told_after: Nanoseconds after its submission at which a job's run time is known.

    Raises:
        ValueError: A job asks for what the fast environment does not have.
    """
    types = [chain.gpu for chain in cluster.chains.values()]
    sizes = {kind: node_gpus(cluster, kind) for kind in ("", *types)}
    rows = {model: row for row, model in enumerate(models)}
    shapes, kinds = [], []
    for job, following in pairwise(jobs):
        if following.at < job.at:
            reason = f"job {following.id} comes before {job.id}: sort jobs by `at`"
            raise ValueError(reason)
    for job in jobs:
        _check(job)
        tied = job.gpu_type if job.tied else ""
        shapes.append(shape(job, sizes.get(tied, sizes[""])))
        kinds.append(sum(1 << at for at, kind in enumerate(types) if suits(tied, kind)))
    return JobArrays(
        at=ints([job.at for job in jobs]),
        run=ints([job.run_time for job in jobs]),
        workers=ints([workers for workers, _ in shapes]),
        each=ints([gpus for _, gpus in shapes]),
        model=ints([rows.get(job.model, len(rows)) for job in jobs]),
        kinds=ints(kinds),
        priority=ints([job.priority for job in jobs]),
        told=ints([_told(job, settings) for job in jobs]),
        told_at=ints([told_after] * len(jobs)),
    )


def _check(job: TraceJob) -> None:
    """Check that a job can be played.

    Raises:
        ValueError: It asks for what the fast environment does not have.
    """
    asks = {
        "opportunistic": job.opportunistic,
        "within": job.within,
        "cpus": job.cpus,
        "memory": job.memory,
        "servers": job.servers,
    }
    for field, value in asks.items():
        if value:
            reason = f"job {job.id}: the fast environment does not know `{field}`"
            raise ValueError(reason)
    if job.gpus < 1:
        reason = f"job {job.id}: the fast environment has only jobs with GPUs"
        raise ValueError(reason)


def _told(job: TraceJob, settings: Settings) -> int:
    """Return what the owner says about the run time (`simulator.specs.Owners`)."""
    if settings.hints == "none" or not 0 < job.run_time < seconds(TIME_S_MAX):
        return NEVER
    factor = 1.0
    if settings.hints == "noisy":
        rng = random.Random(f"hint {settings.seed} {job.id}")
        factor = rng.lognormvariate(0.0, NOISY_SIGMA)
    return seconds(min(in_seconds(job.run_time) * factor, TIME_S_MAX))


def costs_of(costs: Costs) -> Ints:
    """Return costs as an array of nanoseconds."""
    made = np.zeros(len(COST), np.int64)
    for field, at in COST._asdict().items():
        made[at] = seconds(
            getattr(costs, "checkpoint_every_s" if field == "store_every" else f"{field}_s")
        )
    return made


def prepare(
    jobs: Sequence[TraceJob],
    cluster: Cluster,
    settings: Settings,
    table: SpeedTable | None = None,
    told_after: int = 0,
) -> State:
    """Return a batch of one environment with these jobs on this cluster.

    Args:
        jobs: The jobs of a trace, in the order of submission.
        cluster: One VC owns every node.
        settings: Costs, and what owners say; its policies are not looked at.
        table: Speeds; None: every job has speed 1 everywhere.
        told_after: Nanoseconds after its submission at which a job's run time is known.
    """
    made = jobs_of(jobs, cluster, settings, table.models if table else (), told_after)
    speed = None
    if table is not None:
        speed = np.concatenate([table.speeds, np.ones((1, *table.speeds.shape[1:]))])
    return new_state([made], nodes_of(cluster), speed=speed, costs=costs_of(settings.costs))


def rule_for(settings: Settings, policy: str, options: Mapping[str, Any] = {}) -> Rule:
    """Return how a policy serves its queue, with the quirks of a run.

    Raises:
        ValueError: The fast environment does not have the policy, the option, or the quirk.
    """
    unknown = sorted(settings.compat - {AT_ONCE})
    if unknown:
        reason = f"the fast environment has no switch {unknown[0]!r}; it has {AT_ONCE}"
        raise ValueError(reason)
    return rule_of(policy, options)._replace(at_once=AT_ONCE in settings.compat)


def play(
    jobs: Sequence[TraceJob],
    cluster: Cluster,
    settings: Settings,
    policy: str,
    options: Mapping[str, Any] = {},
    table: SpeedTable | None = None,
) -> Played:
    """Return what becomes of a trace's jobs under a policy.

    Args:
        jobs: The jobs, in the order of submission.
        cluster: One VC owns every node.
        settings: Costs, what owners say, and whether instants are known at once.
        policy: A name of `RULES`.
        options: Its options.
        table: Speeds; None: every job has speed 1 everywhere.

    Raises:
        ValueError: Something is asked for that the fast environment does not have.
    """
    state = prepare(jobs, cluster, settings, table)
    engine.run_all(state, rule_for(settings, policy, options))
    count = len(jobs)
    return Played(
        first=state.jobs[0, :count, JOB.first],
        ended=state.jobs[0, :count, JOB.ended],
        waited=state.jobs[0, :count, JOB.waited],
        lost=state.jobs[0, :count, JOB.lost],
        overhead=state.jobs[0, :count, JOB.overhead],
    )
