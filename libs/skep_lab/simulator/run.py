"""One simulated run of a trace, from its jobs to what became of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

import msgspec

from skep.units import Duration
from skep.wire.cluster import Cluster
from skep_lab.outcome import RunResult
from skep_lab.simulator.settings import Settings
from skep_lab.simulator.specs import node_gpus, nodes_of
from skep_lab.simulator.world import Judge, News, Watch, World
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
) -> RunResult:
    """Return what became of a trace's jobs on a cluster: the same for the same arguments.

    `news` is what operators and tenants want besides, and when: drained nodes, requests about jobs
    (`j1` is the first of the trace). `clock` tells processor seconds, for `cpu_s` alone.
    `judge` is shown every decision. `watch` is told now and then how many jobs are over, of how
    many, and says whether to go on.
    Interrupted by it or by Ctrl-C, or at `settings.until`, the result is that of what has happened
    so far, and `cut`.
    """
    began = clock() if clock is not None else 0.0
    collects = gc.isenabled()
    gc.disable()  # Nothing here is in cycles, and all of it lives as long as the run.
    try:
        world = World(trace, cluster, settings, speeds, news, judge)
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
        policy=policy_of(world.cluster),
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
    )


def name_of(cluster: Cluster) -> str:
    """Return a cluster in words: `279 x 8 v100`."""
    parts = []
    for chain in cluster.chains.values():
        part = Cluster(chains={"c": chain})
        parts.append(f"{len(chain.nodes)} x {node_gpus(part)} {chain.gpu}")
    return ", ".join(parts)


def policy_of(cluster: Cluster) -> str:
    """Return the policies of a run in words: one name if it is everyone's."""
    names = list(dict.fromkeys(vc.policy for vc in cluster.vcs.values()))
    return " + ".join(names)
