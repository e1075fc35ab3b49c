"""Measure cells on 65,536 GPUs: 8 racks of 1,024 nodes of 8 GPUs, five levels.

    python -m benchmarks cells
    python -m benchmarks cells --nodes 64      (a cluster of 4,096 GPUs)

Requests go through the allocator's `decide`, which also applies what it records, with the VC's
policy, every leaf bound and the commands to the nodes made. `cell` rows take a cell of a random
level and use one leaf of it, below the machine. Times are CPU time of the thread, in milliseconds.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks._sample import percentiles, say
from skep.cells.decide.fair_share import place_yielding
from skep.cells.forest import Draft
from skep.cells.holds import OPPORTUNISTIC, CellHold, Placement, Request, Spot
from skep.cells.patrol import Patrol
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.cell_watch import ROUND_GPUS
from skep.machines.base import Record, Restarted, Tick
from skep.units import GIB, Instant
from skep.wire import codec
from skep.wire.admin import SetVcs
from skep.wire.bearing import RULES
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep.wire.codec import Facts
from skep.wire.facts import Admitted, CellsSet, EpochBegan, JobBound
from skep.wire.node import Gpu, MemberExited, NodeJoined, Outcome
from skep.wire.spec import JobSpec, Resources

RACKS = 8
GPUS = 8
SEED = 1
NS_PER_MS = 1e6
LOAD = 0.5
"""Of the GPUs, in steady state: above it jobs end in random order."""

Tenants = dict[str, VirtualCluster]


def cluster(nodes: int, vcs: Tenants) -> Cluster:
    """Return eight racks of so many nodes."""
    levels = (
        Level(name="switch", fanout=2),
        Level(name="socket", fanout=2),
        Level(name="node", fanout=2),
        Level(name="rack", fanout=nodes),
    )
    cells = tuple(NodeCell(node=f"n{index:04}") for index in range(RACKS * nodes))
    chain = Chain(gpu="v100", levels=levels, node_level="node", nodes=cells)
    return Cluster(chains={"v100": chain}, vcs=vcs)


def racks(nodes: int) -> Tenants:
    """Return eight tenants with a rack each."""
    del nodes
    owned = VirtualCluster(cells=(Quota(chain="v100", level="rack", count=1),))
    return {f"vc{index}": owned for index in range(RACKS)}


def node_cells(nodes: int) -> Tenants:
    """Return eight tenants with a rack's worth of nodes each, wherever they are."""
    owned = VirtualCluster(cells=(Quota(chain="v100", level="node", count=nodes),))
    return {f"vc{index}": owned for index in range(RACKS)}


def all_levels(nodes: int) -> Tenants:
    """Return four tenants that own cells of every level, which make up the cluster together."""
    # A rack each; of the four racks left half as nodes, then sockets, switches and GPUs.
    counts = {
        "rack": 1,
        "node": nodes // 2,
        "socket": nodes // 2,
        "switch": nodes // 2,
        "gpu": nodes,
    }
    owned = VirtualCluster(
        cells=tuple(
            Quota(chain="v100", level=level, count=count) for level, count in counts.items()
        )
    )
    return {f"vc{index}": owned for index in range(4)}


class Clock:
    """CPU milliseconds of this thread, by what was done."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def __call__(self, what: str, do: Callable[..., Any], *arguments: Any) -> Any:
        """Do it, and note how long it took."""
        begin = time.thread_time_ns()
        result = do(*arguments)
        self.spent.setdefault(what, []).append((time.thread_time_ns() - begin) / NS_PER_MS)
        return result

    def summary(self) -> dict[str, dict[str, float]]:
        """Return count, mean, median, 99th percentile and maximum of each."""
        return {what: percentiles(spent, 4) for what, spent in self.spent.items()}


class Bench:
    """An allocator that knows the whole cluster, healthy and empty."""

    def __init__(self, wanted: Cluster) -> None:
        self.machine = AllocatorMachine()
        self.machine.apply(EpochBegan(epoch=1, owner="bench", rules=RULES))
        self.now = Instant(1_700_000_000_000_000_000)
        begin = time.thread_time()
        self.decide(Restarted(epoch=1))
        self.decide(SetVcs(vcs=wanted.vcs, chains=wanted.chains))
        gpus = tuple(Gpu(index=index, type="v100") for index in range(GPUS))
        for cell in wanted.chains["v100"].nodes:
            self.decide(
                NodeJoined(
                    node=cell.node,
                    identity=f"id-{cell.node}",
                    incarnation=1,
                    address="10.0.0.1",
                    ports=(20000, 20099),
                    gpus=gpus,
                    cpus=64,
                    memory=512 * GIB,
                )
            )
        self.start_s = time.thread_time() - begin
        self.jobs = 0

    def decide(self, event: Any) -> list[Any]:
        """Decide one event a microsecond after the one before: no timer falls due meanwhile."""
        self.now = Instant(self.now + 1_000)
        return self.machine.decide(event, self.now)

    def admitted(self, vc: str, gpus: int, workers: int = 1, *, idle: bool = False) -> Facts:
        """Return the next admitted job."""
        self.jobs += 1
        spec = JobSpec(
            name="bench",
            vc=vc,
            command=("true",),
            service_class="opportunistic" if idle else "guaranteed",
            resources=Resources(gpus=gpus, workers=workers),
        )
        fact = Admitted(job=f"j{self.jobs}", spec=spec, submitted_at=self.now)
        return Facts(service="admission", at=self.now, facts=(fact,))

    @staticmethod
    def bound(effects: list[Any]) -> JobBound | None:
        """Return what was bound, if anything was."""
        facts = [effect.fact for effect in effects if isinstance(effect, Record)]
        return next((fact for fact in facts if isinstance(fact, JobBound)), None)

    def exits(self, fact: JobBound) -> list[MemberExited]:
        """Return the words of every node that its part has ended well."""
        return [
            MemberExited(
                node=member.node,
                identity=member.identity,
                job=fact.job,
                attempt=fact.attempt,
                outcome=Outcome.SUCCEEDED,
                at=self.now,
            )
            for member in fact.members
        ]


def requests(wanted: Cluster, count: int, idle_share: float) -> dict[str, Any]:
    """Return the cost of one-worker jobs of 1, 2, 4 and 8 GPUs, coming and going at half load."""
    bench, rng, clock = Bench(wanted), random.Random(SEED), Clock()
    live: list[JobBound] = []
    used = waiting = 0
    most = len(wanted.chains["v100"].nodes) * GPUS * LOAD
    gc.collect()
    gc.freeze()
    for _ in range(count):
        idle, gpus = rng.random() < idle_share, rng.choice((1, 2, 4, 8))
        event = bench.admitted(rng.choice(list(wanted.vcs)), gpus, idle=idle)
        what = "opportunistic" if idle else "guaranteed"
        fact = bench.bound(clock(what, bench.decide, event))
        if fact is None:
            waiting += 1
        else:
            live.append(fact)
            used += gpus
        while used > most:
            gone = live.pop(rng.randrange(len(live)))
            used -= sum(len(devices) for member in gone.members for devices in member.devices)
            (word,) = bench.exits(gone)
            clock("ended", bench.decide, word)
    gc.unfreeze()
    return {**clock.summary(), "not_bound_at_once": waiting}


def cells(wanted: Cluster, count: int, *, busy: bool) -> dict[str, Any]:
    """Return the cost of taking a cell of a random level with one leaf used, and giving it back.

    `busy`: opportunistic jobs use GPUs on half of the nodes.
    """
    state, rng, clock = Cells(wanted), random.Random(SEED), Clock()
    chain = state.chains["v100"]
    shape = chain.topology
    for node in range(0, len(shape.nodes) if busy else 0, 2):
        leaf = node * shape.node_size
        request = Request(AttemptId(f"idle{node}"), "vc0", -1, ((1, 1),))
        state.allocate(request, Placement("v100", (Spot((leaf,)),)))
    live: list[CellHold] = []
    for number in range(count):
        level, vc = rng.randint(1, shape.top), rng.choice(list(wanted.vcs))
        if not chain.pools[vc, ""].left[level]:
            state.release(live.pop(rng.randrange(len(live))).job)
            continue

        def take(level: int = level, vc: str = vc, number: int = number) -> CellHold | None:
            forest = chain.forest
            for find in (forest.clean_cells, forest.used_cells):
                for cell, *_ in find(level):
                    if Draft(forest).take_if_safe(level, cell):
                        span = shape.span(level, cell)
                        leaf = next((leaf for leaf in span if chain.user[leaf] is None), None)
                        if leaf is None:
                            break
                        request = Request(AttemptId(f"c{number}"), vc, 0, ((1, 1),))
                        return state.allocate(request, Placement("v100", (Spot((leaf,), level),)))
            return None

        hold = clock("cell", take)
        if hold is not None:
            live.append(hold)
        if len(live) > RACKS * 16:
            gone = live.pop(rng.randrange(len(live))).job
            clock("released", state.release, gone)
    return clock.summary()


def gangs(wanted: Cluster, nodes: int) -> dict[str, Any]:
    """Return the cost of a gang of 16 nodes and of a whole rack: bound, and ended."""
    found: dict[str, Any] = {}
    bench = Bench(wanted)
    for workers in (16, nodes):
        clock = Clock()
        for _ in range(5):
            event = bench.admitted("vc0", GPUS, workers)
            fact = bench.bound(clock("bound", bench.decide, event))
            assert fact is not None, workers
            words = bench.exits(fact)

            def ended(words: list[MemberExited] = words) -> None:
                for word in words:
                    bench.decide(word)

            clock("ended", ended)
        found[f"{workers} x {GPUS}"] = clock.summary()
    return found


def node_events(wanted: Cluster, count: int) -> dict[str, Any]:
    """Return the cost of a node that turns bad, and of one that heals."""
    state, clock, rng = Cells(wanted), Clock(), random.Random(SEED)
    names = [cell.node for cell in wanted.chains["v100"].nodes]
    for name in rng.sample(names, min(count, len(names))):
        clock("bad", partial(state.set_bad, name, None, bad=True))
        clock("healed", partial(state.set_bad, name, None, bad=False))
    return clock.summary()


def joins(nodes: int) -> dict[str, Any]:
    """Return what it costs that nodes join a millisecond apart and make up the cells."""
    machine = AllocatorMachine()
    machine.apply(EpochBegan(epoch=1, owner="bench", rules=RULES))
    now = Instant(1_700_000_000_000_000_000)
    gpus = tuple(Gpu(index=index, type="v100") for index in range(GPUS))
    events: list[Any] = [Restarted(epoch=1), SetVcs(vcs={"vc0": VirtualCluster(gpus=nodes * GPUS)})]
    events += [
        NodeJoined(
            node=f"n{at:04}",
            identity=f"id-{at}",
            incarnation=1,
            address="10.0.0.1",
            ports=(20000, 20099),
            gpus=gpus,
            cpus=64,
            memory=512 * GIB,
        )
        for at in range(nodes)
    ]
    facts: list[Any] = []
    begin = time.thread_time()
    for event in (*events, None):
        now = Instant(now + (1_000_000 if event is not None else 1_000_000_000))
        wake_at = machine.wake_at()
        for each in ([Tick()] if wake_at is not None and wake_at <= now else []) + [event]:
            if each is not None:
                facts += [
                    effect.fact
                    for effect in machine.decide(each, now)
                    if isinstance(effect, Record)
                ]
    spent = time.thread_time() - begin
    told = [len(codec.encode(fact)) for fact in facts if isinstance(fact, CellsSet)]
    assert len(machine.state.cells.chains[f"v100x{GPUS}"].topology.nodes) == nodes
    return {
        "nodes": nodes,
        "cells_told": len(told),
        "mb": round(sum(told) / 1e6, 2),
        "cpu_s": round(spent, 2),
    }


def yields(wanted: Cluster, nodes: int) -> dict[str, Any]:
    """Return the cost of finding who yields to a gang where one tenant's jobs are everywhere."""
    state, clock, rng = Cells(wanted), Clock(), random.Random(SEED)
    chain, shape = state.chains["v100"], state.chains["v100"].topology
    losses: dict[str, float] = {}
    for leaf in range(0, shape.leaves, 2):
        request = Request(AttemptId(f"o{leaf}"), "vc0", OPPORTUNISTIC, ((1, 2),))
        state.allocate(request, Placement("v100", (Spot((leaf, leaf + 1)),)))
        losses[request.job] = rng.random()
    shares = {"vc0": (shape.leaves, 1.0), "vc1": (0, 1.0)}
    for workers in (2, 16, nodes):
        request = Request(AttemptId("gang"), "vc1", OPPORTUNISTIC, ((workers, GPUS),))
        found = clock(
            f"{workers} x {GPUS}",
            place_yielding,
            chain,
            state.holds,
            request,
            shares,
            losses.__getitem__,
            None,
            lambda _: True,
        )
        assert found is not None, workers
    return clock.summary()


def watch(wanted: Cluster, count: int) -> dict[str, Any]:
    """Return the cost of what the watch over the cells looks at each second, half of them used."""
    bench, rng, clock = Bench(wanted), random.Random(SEED), Clock()
    for _ in range(count):
        idle, gpus = rng.random() < LOAD, rng.choice((1, 2, 4, 8))
        bench.decide(bench.admitted(rng.choice(list(wanted.vcs)), gpus, idle=idle))
    patrol = Patrol(bench.machine.state.cells)
    gc.collect()
    gc.freeze()
    while not patrol.over:
        clock("each second", lambda: list(patrol.step(ROUND_GPUS)))
    gc.unfreeze()
    return clock.summary()


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--nodes", type=int, default=1024, help="of each of the eight racks")
    parser.add_argument("--requests", type=int, default=10_000, help="of each row")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return every row, in ms of CPU time."""
    nodes, count = given.nodes, given.requests
    tenants = {"racks": racks, "nodes": node_cells, "all levels": all_levels}
    report: dict[str, Any] = {"gpus": RACKS * nodes * GPUS, "unit": "ms"}

    def row(name: str, measure: Callable[[], Any]) -> None:
        say(f"{name} ...")
        report[name] = measure()

    row("cell", lambda: cells(cluster(nodes, all_levels(nodes)), count, busy=False))
    row(
        "cell, half the nodes in opportunistic use",
        lambda: cells(cluster(nodes, all_levels(nodes)), count, busy=True),
    )
    for name, owned in tenants.items():
        for share in (0.0, 0.5):
            row(
                f"request, VCs own {name}, {share:.0%} opportunistic",
                partial(requests, cluster(nodes, owned(nodes)), count, share),
            )
    row(
        "request, all opportunistic",
        lambda: requests(cluster(nodes, node_cells(nodes)), count, 1.0),
    )
    row("gang", lambda: gangs(cluster(nodes, node_cells(nodes)), nodes))
    row("node", lambda: node_events(cluster(nodes, node_cells(nodes)), 1000))
    row("joins", lambda: joins(1000))
    row("yields", lambda: yields(cluster(nodes, node_cells(nodes)), nodes))
    row("watch", lambda: watch(cluster(nodes, all_levels(nodes)), nodes * RACKS))
    row(
        "start_s",
        lambda: {
            name: round(Bench(cluster(nodes, owned(nodes))).start_s, 2)
            for name, owned in tenants.items()
        },
    )
    report["max_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return report
