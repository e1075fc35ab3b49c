"""Whose opportunistic jobs yield to whose: weighted max-min fairness of what is idle.

HiveD section 3.3 decides the numbers of low-priority cells by weighted max-min fairness. A tenant
below its share may have jobs of tenants above theirs stopped for it, as long as those still have
at least as much per weight afterwards as it then has: so no two tenants take from one another in
turn, and whoever has most per weight gives first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from skep.cells.chain import ChainState
from skep.cells.holds import OPPORTUNISTIC, Hold, Placement, Request, Spot
from skep.cells.pick import Loss, available, seize
from skep.cells.place import Found, Limit, placement

Shares = Mapping[str, tuple[int, float]]
"""By VC: GPUs its jobs use opportunistically, and its weight."""


def may_take(shares: Shares, request: Request, victims: Iterable[Hold]) -> bool:
    """Return whether a VC below its share may have these jobs stopped for a gang of its own."""
    lost: dict[str, int] = {}
    for hold in victims:
        lost[hold.vc] = lost.get(hold.vc, 0) + hold.gpus
    used, weight = shares[request.vc]
    after = (used + sum(request.sizes)) / weight
    return request.vc not in lost and all(
        (shares[vc][0] - gpus) / shares[vc][1] >= after for vc, gpus in lost.items()
    )


def place_yielding(
    chain: ChainState, holds: Mapping[str, Hold], request: Request, shares: Shares, loss: Loss,
    limit: Limit, stoppable: Callable[[str], bool],
) -> Placement | None:  # fmt: skip
    """Return a placement for which jobs of tenants above their share are stopped, if there is one.

    Victims are those that lose least. What fits a node goes to one; only larger gangs are spread.
    """
    shape, sizes = chain.topology, request.sizes
    tied = bool(request.within) and request.hard
    within = shape.level(request.within) if tied else shape.node_level
    if max(sizes) > shape.node_size or within is None:
        return None
    yielding = {
        hold.job
        for hold in holds.values()
        if hold.chain == shape.name and hold.priority == OPPORTUNISTIC and not hold.claims
        and stoppable(hold.job) and may_take(shares, request, [hold])
    }  # fmt: skip
    if sum(sizes) > shape.node_size:
        gang = _Gang(chain, holds, request, shares, loss, limit, yielding)
        return gang.place(within if tied else 0) if yielding else None
    nodes = dict.fromkeys(leaf // shape.node_size for job in sorted(yielding)
                          for spot in holds[job].spots for leaf in spot.leaves)  # fmt: skip
    best: tuple[float, Placement] | None = None
    for node in nodes:
        if limit is not None and limit(shape.nodes[node]) < len(sizes):
            continue
        lower = min(within, shape.node_level)
        for cell in shape.within(shape.node_level, node, lower):
            leaves = [leaf for leaf in available(chain, lower, cell, 0)
                      if leaf not in chain.claim and _gives(chain, leaf, yielding)]  # fmt: skip
            spoils = seize(chain, leaves, sizes, loss, {})
            if spoils is None or not spoils.victims:
                continue
            if may_take(shares, request, [holds[job] for job in spoils.victims]) and (
                best is None or spoils.loss < best[0]
            ):
                spots = tuple(Spot(got) for got in spoils.leaves)
                best = spoils.loss, Placement(shape.name, spots, tuple(spoils.victims))
    return None if best is None else best[1]


def _gives(chain: ChainState, leaf: int, yielding: set[str]) -> bool:
    user = chain.user[leaf]
    return user is None or user.job in yielding


class _Gang(NamedTuple):
    """A gang of several nodes, and what may be stopped for it."""

    chain: ChainState
    holds: Mapping[str, Hold]
    request: Request
    shares: Shares
    loss: Loss
    limit: Limit
    yielding: set[str]

    def place(self, within: int) -> Placement | None:
        """Return a placement in one cell of a level (0: anywhere) at the least loss."""
        shape, sizes = self.chain.topology, sorted(self.request.sizes, reverse=True)
        if 0 < within <= shape.node_level:
            return None
        domains: dict[int, list[tuple[int, list[int]]]] = {}
        for node, leaves in self._rooms(sizes[-1]):
            domain = shape.up(node * shape.node_size, within) if within else 0
            domains.setdefault(domain, []).append((node, leaves))
        best: Found | None = None
        for rooms in domains.values():
            found = self._fill(rooms, sizes)
            if found is not None and (best is None or found.loss < best.loss):
                best = found
        return None if best is None else placement(self.chain, self.request, best)

    def _rooms(self, least: int) -> Iterable[tuple[int, list[int]]]:
        """Yield nodes with the GPUs that are idle or may be taken: enough of them for a worker."""
        shape, chain = self.chain.topology, self.chain
        for node, firm in enumerate(chain.forest.firm[shape.node_level]):
            if shape.node_size - firm >= least:
                leaves = [leaf for leaf in available(chain, shape.node_level, node, 0)
                          if leaf not in chain.claim
                          and _gives(chain, leaf, self.yielding)]  # fmt: skip
                if len(leaves) >= least:
                    yield node, leaves

    def _fill(self, rooms: Sequence[tuple[int, list[int]]], sizes: Sequence[int]) -> Found | None:
        """Put the largest workers first on the nodes where one costs least."""
        if sum(len(leaves) for _, leaves in rooms) < sum(sizes):
            return None
        rest, lost = list(sizes), 0.0
        spots: list[Spot] = []
        victims: dict[str, None] = {}
        for _, node, leaves in sorted(self._priced(rooms, sizes)):
            spoils = seize(self.chain, leaves, rest[: self._count(node, leaves, rest)], self.loss,
                           victims)  # fmt: skip
            if spoils is None or not spoils.leaves:
                continue
            union = victims | spoils.victims
            if not may_take(self.shares, self.request, [self.holds[job] for job in union]):
                continue
            victims, lost = union, lost + spoils.loss
            spots += [Spot(got) for got in spoils.leaves]
            del rest[: len(spoils.leaves)]
            if not rest:
                return Found(spots, lost, victims) if victims else None
        return None

    def _priced(
        self, rooms: Sequence[tuple[int, list[int]]], sizes: Sequence[int]
    ) -> Iterable[tuple[float, int, list[int]]]:
        """Yield what each node's workers would lose others, by worker."""
        for node, leaves in rooms:
            count = self._count(node, leaves, sizes)
            spoils = seize(self.chain, leaves, sizes[:count], self.loss, {}) if count else None
            if spoils is not None:
                yield spoils.loss / count, node, leaves

    def _count(self, node: int, leaves: Sequence[int], sizes: Sequence[int]) -> int:
        most = len(sizes)
        if self.limit is not None:
            most = min(most, self.limit(self.chain.topology.nodes[node]))
        return min(most, len(leaves) // sizes[0])
