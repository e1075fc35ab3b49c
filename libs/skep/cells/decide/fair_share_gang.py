"""Which jobs yield to a gang on several nodes: those that lose least, of the possible ones.

Few candidates are compared in all combinations. With more, one worker after the other is given the
node on which it costs least beyond what is lost already; then jobs that turn out not to be needed
are spared. Either way no tenant loses more GPUs than it may (`fair_share.gpus_to_give`).

Source: HiveD, section 3.3, by the rule of `fair_share`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from skep.cells.chain import ChainState
from skep.cells.decide.gpu_choice import Loss, closest_leaves
from skep.cells.decide.search import Limit
from skep.cells.holds import CellHold, Placement, Request, Spot
from skep.ids import AttemptId

EXACT_MAX = 10
"""The most candidates of which all combinations are compared: a thousand, at some microseconds
each."""
NODES_MAX = 2048
"""The nodes that are looked at beyond those with idle GPUs, those where least is lost first: twice
as many as the largest gang has."""

Spare = Mapping[str, int]
"""By VC: the most GPUs that its jobs may have to give."""


def place_gang(
    chain: ChainState,
    holds: Mapping[AttemptId, CellHold],
    request: Request,
    loss: Loss,
    limit: Limit,
    *,
    yielding: Iterable[AttemptId],
    spare: Spare,
) -> Placement | None:
    """Return a placement over several nodes for which `yielding` jobs are stopped, or None.

    All workers have the same number of GPUs; a hard topology constraint is kept. The result is also
    None if no job has to be stopped: then the gang waits for something else.

    Args:
        chain: The chain.
        holds: All holds, by name.
        request: The gang.
        loss: What stopping a job would cost.
        limit: By node name, the workers of this gang that the node has CPUs and memory for; None:
            no limit.
        yielding: The jobs that may be stopped.
        spare: By VC, the most GPUs that its jobs give.
    """
    shape, sizes = chain.topology, request.sizes
    within = shape.level(request.within) if request.within and request.hard else shape.top
    tied = bool(request.within) and request.hard
    if within is None or (within <= shape.node_level and tied) or len(set(sizes)) > 1:
        return None
    if sizes[0] > shape.node_size:
        return None
    level = within if tied else 0
    domains: dict[int, dict[AttemptId, dict[int, list[int]]]] = {}
    for job in sorted(yielding):
        for spot in holds[job].spots:
            for leaf in spot.leaves:
                if leaf not in chain.claim and leaf not in chain.bad:
                    domain = shape.up(leaf, level) if level else 0
                    nodes = domains.setdefault(domain, {}).setdefault(job, {})
                    nodes.setdefault(leaf // shape.node_size, []).append(leaf)
    best: tuple[float, Placement] | None = None
    for domain, gains in domains.items():
        inside = shape.within(level, domain, shape.node_level) if level else range(len(shape.nodes))
        room = _Room(chain, inside, sizes, limit, gains)
        victims = room.victims({job: holds[job] for job in gains}, loss, spare)
        if victims:
            lost = sum(loss(job) for job in victims)
            if best is None or lost < best[0]:
                best = lost, Placement(shape.name, room.spots(victims), tuple(victims))
    return None if best is None else best[1]


def _given(
    holds: Mapping[AttemptId, CellHold], jobs: Iterable[AttemptId], left: dict[str, int]
) -> dict[str, int] | None:
    """Return what is left to give after these jobs gave their GPUs; None if that is too much."""
    left = dict(left)
    for job in jobs:
        hold = holds[job]
        left[hold.vc] = left.get(hold.vc, 0) - hold.gpus
        if left[hold.vc] < 0:
            return None
    return left


class _Room:
    """Where workers of one size fit in part of a chain, depending on which jobs are stopped."""

    def __init__(
        self,
        chain: ChainState,
        nodes: range,
        sizes: list[int],
        limit: Limit,
        gains: Mapping[AttemptId, Mapping[int, list[int]]],
    ) -> None:
        self.chain, self.gains = chain, gains
        self.gpus, self.wanted = sizes[0], len(sizes)
        shape, busy = chain.topology, chain.forest.busy[chain.topology.node_level]
        touched = dict.fromkeys(node for each in gains.values() for node in each)
        self.idle = {
            node: shape.node_size - busy[node]
            for node in nodes
            if node in touched or shape.node_size - busy[node] >= self.gpus
        }
        self.most = {
            node: self.wanted if limit is None else limit(shape.nodes[node]) for node in self.idle
        }
        self.unused = sum(self.slots(node, idle) for node, idle in self.idle.items())
        self.on: dict[int, list[AttemptId]] = {}
        """By node: the jobs that could be stopped there."""
        for job, each in gains.items():
            for node in each:
                self.on.setdefault(node, []).append(job)

    def slots(self, node: int, idle: int) -> int:
        """Return how many workers a node with so many idle GPUs serves."""
        return min(idle // self.gpus, self.most[node])

    def total(self, victims: Iterable[AttemptId]) -> int:
        """Return how many workers fit if these are stopped."""
        more: dict[int, int] = {}
        for job in victims:
            for node, leaves in self.gains[job].items():
                more[node] = more.get(node, 0) + len(leaves)
        return self.unused + sum(
            self.slots(node, self.idle[node] + count) - self.slots(node, self.idle[node])
            for node, count in more.items()
        )

    def left(self, victims: Iterable[AttemptId]) -> dict[int, int]:
        """Return the idle GPUs of each node if these are stopped."""
        idle = dict(self.idle)
        for job in victims:
            for node, leaves in self.gains[job].items():
                idle[node] += len(leaves)
        return idle

    def victims(
        self, holds: Mapping[AttemptId, CellHold], loss: Loss, spare: Spare
    ) -> list[AttemptId]:
        """Return the jobs to be stopped, sorted; none if that does not help, or is not needed."""
        if self.total(()) >= self.wanted:
            return []
        if len(holds) <= EXACT_MAX:
            return self._exact(holds, loss, spare)
        return self._greedy(holds, loss, spare)

    def _exact(
        self, holds: Mapping[AttemptId, CellHold], loss: Loss, spare: Spare
    ) -> list[AttemptId]:
        best: tuple[float, list[AttemptId]] | None = None
        for count in range(1, len(holds) + 1):
            for jobs in combinations(sorted(holds), count):
                lost = sum(map(loss, jobs))
                less = best is None or lost < best[0]
                enough = less and self.total(jobs) >= self.wanted
                if enough and _given(holds, jobs, dict(spare)) is not None:
                    best = lost, list(jobs)
        return best[1] if best is not None else []

    def _greedy(
        self, holds: Mapping[AttemptId, CellHold], loss: Loss, spare: Spare
    ) -> list[AttemptId]:
        chosen: dict[AttemptId, None] = {}
        left = dict(spare)
        idle, missing = dict(self.idle), self.wanted - self.total(())
        queue = [
            (cost, node)
            for node in self.on
            if (cost := self._cost(node, idle, chosen, loss)[0]) is not None
        ]
        queue = heapq.nsmallest(max(NODES_MAX, missing), queue)
        heapq.heapify(queue)
        while missing > 0 and queue:
            cost, node = heapq.heappop(queue)
            now, jobs = self._cost(node, idle, chosen, loss)
            after = _given(holds, jobs, left) if now is not None else None
            if now is None or after is None:
                continue  # This does not change: what is left to give only becomes less.
            if now > cost and queue and now > queue[0][0]:
                heapq.heappush(queue, (now, node))
                continue
            left = after
            for job in jobs:
                chosen[job] = None
                for other, leaves in self.gains[job].items():
                    before = self.slots(other, idle[other])
                    idle[other] += len(leaves)
                    missing -= self.slots(other, idle[other]) - before
            again = self._cost(node, idle, chosen, loss)[0]
            if again is not None:
                heapq.heappush(queue, (again, node))
        return self._spared(chosen, loss) if missing <= 0 else []

    def _cost(
        self, node: int, idle: Mapping[int, int], chosen: Mapping[AttemptId, None], loss: Loss
    ) -> tuple[float | None, list[AttemptId]]:
        """Return what one more worker on a node costs, and which jobs; None if it cannot be had."""
        here, jobs, lost = idle[node], [], 0.0
        slots = self.slots(node, here)
        for job in sorted(self.on[node], key=lambda each: (loss(each), each)):
            if job not in chosen:
                jobs.append(job)
                lost += loss(job)
                here += len(self.gains[job][node])
                if self.slots(node, here) > slots:
                    return lost, jobs
        return None, []

    def _spared(self, chosen: Mapping[AttemptId, None], loss: Loss) -> list[AttemptId]:
        """Return those of the chosen jobs that are needed, sparing the job that would lose most."""
        idle = self.left(chosen)
        spare = sum(self.slots(node, each) for node, each in idle.items()) - self.wanted
        kept = dict(chosen)
        for job in sorted(chosen, key=lambda each: (-loss(each), each)):
            given = sum(
                self.slots(node, idle[node]) - self.slots(node, idle[node] - len(leaves))
                for node, leaves in self.gains[job].items()
            )
            if given <= spare:
                spare -= given
                del kept[job]
                for node, leaves in self.gains[job].items():
                    idle[node] -= len(leaves)
        return sorted(kept)

    def spots(self, victims: list[AttemptId]) -> tuple[Spot, ...]:
        """Return the gang's workers if only these jobs are stopped: on the fewest nodes."""
        return tuple(self._spots(victims))

    def _spots(self, victims: list[AttemptId]) -> Iterator[Spot]:
        chain, shape = self.chain, self.chain.topology
        left, missing = self.left(victims), self.wanted
        going = dict.fromkeys(victims)
        # Nodes where a job is stopped come first: else it would be stopped for nothing.
        used = {node for job in victims for node in self.gains[job]}
        for node in sorted(left, key=lambda node: (node not in used, -left[node], node)):
            leaves = [
                leaf
                for leaf in shape.span(shape.node_level, node)
                if chain.is_idle(leaf) or self._freed(leaf, going)
            ]
            for _ in range(min(missing, self.slots(node, len(leaves)))):
                got = closest_leaves(shape, leaves, self.gpus)
                leaves = [leaf for leaf in leaves if leaf not in got]
                missing -= 1
                yield Spot(got)
        assert not missing, "there was room"

    def _freed(self, leaf: int, going: Mapping[AttemptId, None]) -> bool:
        user = self.chain.user[leaf]
        free = leaf not in self.chain.claim and leaf not in self.chain.bad
        return free and user is not None and user.job in going
