"""One simulated run of a trace, from its jobs to their outcomes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping

import msgspec

from skep.policy.api import Policy
from skep.units import Duration
from skep.wire.cluster import Cluster
from skep_lab.outcome import RunResult
from skep_lab.simulator.settings import Settings
from skep_lab.simulator.specs import node_gpus, nodes_of
from skep_lab.simulator.world import NONE_GIVEN, Judge, News, Watch, World
from skep_lab.traces.job import Trace
from skep_lab.workloads.situation import Speeds


def run(
    trace: Trace,
    cluster: Cluster,
    settings: Settings,
    speeds: Speeds,
    *,
    news: Iterable[tuple[Duration, News]] = (),
    clock: Callable[[], float] | None = None,
    watch: Watch | None = None,
    judge: Judge | None = None,
    policies: Mapping[str, Policy] = NONE_GIVEN,
) -> RunResult:
    """Return what became of a trace's jobs on a cluster; equal arguments give equal results.

    Interrupted by `watch` or by Ctrl-C, or at `settings.until`, the result contains what has
    happened so far, and is `cut`.

    Args:
        trace: The jobs.
        cluster: The cluster.
        settings: Costs, policies and more.
        speeds: The workload model.
        news: Other requests of operators and tenants, and when: drained nodes, requests about
            jobs (`j1` is the first of the trace).
        clock: Returns processor seconds, only for `cpu_s`.
        watch: Is called at times with the number of ended jobs and of all jobs, and returns
            whether to continue.
        judge: Is called with every decision.
        policies: By VC, policies that have no name in a cluster file (laboratory planners), instead
            of the cluster's.
    """
    began = clock() if clock is not None else 0.0
    collects = gc.isenabled()
    gc.disable()  # There are no reference cycles here, and all objects live as long as the run.
    try:
        world = World(trace, cluster, settings, speeds, news, judge, policies=policies)
        try:
            cut = not world.run(watch)
        except KeyboardInterrupt:
            cut = True
    finally:
        if collects:
            gc.enable()
    result = _result(world, cut=cut or world.ledger.open > 0)
    cpu_s = clock() - began if clock is not None else 0.0
    return msgspec.structs.replace(result, cpu_s=cpu_s)


def _result(world: World, *, cut: bool) -> RunResult:
    cells, ledger = world.allocator.state.cells, world.ledger
    owned = {
        vc: sum(
            chain.topology.size[level] * count
            for chain in cells.chains.values()
            for (owner, _), pool in chain.pools.items()
            if owner == vc
            for level, count in enumerate(pool.total)
        )
        for vc in world.cluster.vcs
    }
    return RunResult(
        trace=world.trace.name,
        cluster=name_of(world.cluster),
        policy=policy_of(world.cluster, world.policies),
        seed=world.settings.seed,
        gpus=sum(chain.topology.leaves for chain in cells.chains.values()),
        node_gpus=node_gpus(world.cluster),
        jobs=ledger.outcomes(world.now),
        samples=tuple(world.samples.taken),
        vc_gpus=owned,
        nodes=nodes_of(world.cluster),
        events=ledger.events,
        decisions=ledger.digest(),
        cut=cut,
        stuck=world.stuck,
    )


def name_of(cluster: Cluster) -> str:
    """Return a cluster in words: `279 x 8 v100`."""
    parts = []
    for chain in cluster.chains.values():
        part = Cluster(chains={"c": chain})
        parts.append(f"{len(chain.nodes)} x {node_gpus(part)} {chain.gpu}")
    return ", ".join(parts)


def policy_of(cluster: Cluster, given: Mapping[str, Policy] = NONE_GIVEN) -> str:
    """Return the policies of a run in words: a single name if all VCs have it.

    Args:
        cluster: The cluster.
        given: Policies by VC instead of the cluster's.
    """
    names = list(
        dict.fromkeys(
            given[name].name if name in given else vc.policy for name, vc in cluster.vcs.items()
        )
    )
    return " + ".join(names)
