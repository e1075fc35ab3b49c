"""Measure what the view of the cells of 65,536 GPUs costs, and how long requests wait for it.

    python -m benchmarks gateway_cells
    python -m benchmarks gateway_cells --nodes 64     (a cluster of 4,096 GPUs)

The facts are those of an allocator that fills half of the cluster. `fact` takes over one fact,
`copy` and `keep` are taken of the cells before a thread makes an answer: `tree`, `usage`, `fates`.
`state` encodes the whole state, as is done now and then. Those are CPU time, in milliseconds.
`held up` tells by how much the event loop was late, by the clock, while threads made five trees.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
from typing import Any

from benchmarks._sample import say
from benchmarks.cells import RACKS, SEED, Bench, Clock, all_levels, cluster
from skep.cells.snapshot import take_snapshot
from skep.cells.state import Cells
from skep.ledger.snapshot import keep
from skep.machines.base import Effect, Record
from skep.wire import codec
from skep.wire.codec import Facts
from skep_services.gateway.cells import cells_view, fates, resolved, usage_view, vcs_view
from skep_services.gateway.fold import Fold
from skep_services.gateway.frozen import frozen

TREES = 5
CHANGES = 1000
TICK_S = 0.001
NS_PER_MS = 1e6


class Reading(Bench):
    """An allocator, and a gateway's fold of its facts."""

    def __init__(self, nodes: int) -> None:
        self.fold = Fold(lambda _: None)
        self.clock = Clock()
        self.measured = False
        super().__init__(cluster(nodes, all_levels(nodes)))

    def decide(self, event: Any) -> list[Effect]:
        """Decide an event; the fold takes its facts one by one."""
        effects = super().decide(event)
        for effect in effects:
            if isinstance(effect, Record):
                word = Facts(service="allocator", at=self.now, facts=(effect.fact,))
                if self.measured:
                    self.clock("fact", self.fold.apply, word, self.now)
                else:
                    self.fold.apply(word, self.now)
        return effects


def fill(reading: Reading, jobs: int) -> None:
    """Submit jobs of 1, 2, 4 and 8 GPUs, half of them opportunistic; every third ends."""
    rng = random.Random(SEED)
    vcs = list(reading.machine.state.cells.cluster.vcs)
    for number in range(jobs):
        idle, gpus = rng.random() < 0.5, rng.choice((1, 2, 4, 8))
        bound = reading.bound(reading.decide(reading.admitted(rng.choice(vcs), gpus, idle=idle)))
        if bound is not None and number % 3 == 0:
            for word in reading.exits(bound):
                reading.decide(word)


def _tree(cells: Cells) -> bytes:
    return codec.encode(cells_view(cells, ""))


async def held_up(reading: Reading) -> dict[str, float]:
    """Return how late the loop was at worst, and the whole time, while threads made trees."""
    late: list[int] = []
    done = asyncio.Event()

    async def tick() -> None:
        while not done.is_set():
            began = time.perf_counter_ns()
            await asyncio.sleep(TICK_S)
            late.append(time.perf_counter_ns() - began - int(TICK_S * 1e9))

    ticking = asyncio.create_task(tick())
    began = time.perf_counter_ns()
    for _ in range(TREES):
        await asyncio.to_thread(_tree, frozen(reading.fold.state.cells))
    took = time.perf_counter_ns() - began
    done.set()
    await ticking
    late.sort()
    return {
        "trees": TREES,
        "took": round(took / NS_PER_MS, 1),
        "p99": round(late[int(len(late) * 0.99)] / NS_PER_MS, 1),
        "max": round(late[-1] / NS_PER_MS, 1),
    }


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--nodes", type=int, default=1024, help="of each of the eight racks")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the cost of each part of the view, and by how much the event loop was late."""
    nodes = given.nodes
    say("filling ...")
    reading = Reading(nodes)
    fill(reading, nodes * RACKS)
    clock, fold = reading.clock, reading.fold
    gc.collect()
    gc.freeze()
    reading.measured = True
    fill(reading, CHANGES)
    say("asking ...")
    cells = fold.state.cells
    for _ in range(TREES):
        copy = clock("copy", frozen, cells)
        clock("tree", cells_view, copy, "")
        rows = clock("rows", vcs_view, fold, "")
        clock("usage", usage_view, copy, rows, "")
    kept = clock("keep", take_snapshot, cells)
    clock("state", lambda: [codec.encode(piece) for piece in keep(fold.state)])
    clock("fates", fates, kept, clock("resolve", resolved, fold, fold.state.asked))
    report: dict[str, Any] = {"gpus": RACKS * nodes * 8, "unit": "ms", **clock.summary()}
    report["held up"] = asyncio.run(held_up(reading))
    report["misfits"] = fold.misfits
    return report
