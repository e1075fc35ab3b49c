"""Which opportunistic jobs yield to which: weighted max-min fairness of idle GPUs.

HiveD section 3.3 decides the numbers of low-priority cells by weighted max-min fairness. A tenant
below its share may have jobs of tenants above theirs stopped for it, as long as these afterwards
still have at least as much per weight as it then has. So no two tenants take from one another in
turn, and the VC that has most per weight gives first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from skep.cells.chain import ChainState
from skep.cells.decide.fair_share_gang import place_gang
from skep.cells.decide.gpu_choice import Loss, available_leaves, seize_leaves
from skep.cells.decide.search import Limit
from skep.cells.holds import OPPORTUNISTIC, CellHold, Placement, Request, Spot
from skep.ids import AttemptId

Shares = Mapping[str, tuple[int, float]]
"""By VC: the GPUs that its jobs use opportunistically, and its weight."""


def may_take(shares: Shares, request: Request, victims: Iterable[CellHold]) -> bool:
    """Return whether a VC below its share may have these jobs stopped for a gang of its own.

    Args:
        shares: What each VC uses.
        request: The gang.
        victims: The holds of the jobs to stop.
    """
    lost: dict[str, int] = {}
    for hold in victims:
        lost[hold.vc] = lost.get(hold.vc, 0) + hold.gpus
    used, weight = shares[request.vc]
    after = (used + sum(request.sizes)) / weight
    return request.vc not in lost and all(
        (shares[vc][0] - gpus) / shares[vc][1] >= after for vc, gpus in lost.items()
    )


def gpus_to_give(shares: Shares, request: Request) -> dict[str, int]:
    """Return how many GPUs each other VC may have to give for a gang.

    Args:
        shares: What each VC uses.
        request: The gang.

    Returns:
        By VC, as many GPUs as `may_take` allows.
    """
    used, weight = shares[request.vc]
    after = (used + sum(request.sizes)) / weight
    left: dict[str, int] = {}
    for vc, (gpus, other_weight) in shares.items():
        if vc != request.vc:
            most = max(0, math.floor(gpus - after * other_weight) + 1)
            left[vc] = most if (gpus - most) / other_weight >= after else max(0, most - 1)
    return left


def place_yielding(
    chain: ChainState,
    holds: Mapping[AttemptId, CellHold],
    request: Request,
    shares: Shares,
    loss: Loss,
    *,
    limit: Limit,
    stoppable: Callable[[AttemptId], bool],
) -> Placement | None:
    """Return a placement for which jobs of tenants above their share are stopped, or None.

    It is on one node if the gang fits there, else over several. The victims are those that lose
    least.

    Args:
        chain: The chain.
        holds: All holds, by name.
        request: An opportunistic gang.
        shares: What each VC uses.
        loss: What stopping a job would cost.
        limit: By node name, the workers of this gang that the node has CPUs and memory for; None:
            no limit.
        stoppable: Whether a job may be stopped.
    """
    shape, left = chain.topology, gpus_to_give(shares, request)
    if not any(left.values()):
        return None  # The usual answer, once each VC has its share.
    yielding = {
        hold.job
        for hold in holds.values()
        if hold.chain == shape.name
        and not hold.further
        and hold.priority == OPPORTUNISTIC
        and not hold.claims
        and hold.gpus <= left.get(hold.vc, 0)
        and stoppable(hold.job)
    }
    found = _on_one(chain, holds, request, shares, loss, limit=limit, yielding=yielding)
    if found is None and len(request.sizes) > 1:
        found = place_gang(chain, holds, request, loss, limit, yielding=yielding, spare=left)
    return found


def _on_one(
    chain: ChainState,
    holds: Mapping[AttemptId, CellHold],
    request: Request,
    shares: Shares,
    loss: Loss,
    *,
    limit: Limit,
    yielding: set[AttemptId],
) -> Placement | None:
    shape, sizes = chain.topology, request.sizes
    within = shape.level(request.within) if request.within and request.hard else shape.node_level
    if sum(sizes) > shape.node_size or within is None:
        return None
    nodes = dict.fromkeys(
        leaf // shape.node_size
        for job in sorted(yielding)
        for spot in holds[job].spots
        for leaf in spot.leaves
    )
    best: tuple[float, Placement] | None = None
    for node in nodes:
        if limit is not None and limit(shape.nodes[node]) < len(sizes):
            continue
        lower = min(within, shape.node_level)
        for cell in shape.within(shape.node_level, node, lower):
            leaves = [
                leaf
                for leaf in available_leaves(chain, lower, cell, 0)
                if leaf not in chain.claim and _gives(chain, leaf, yielding)
            ]
            seized = seize_leaves(chain, leaves, sizes, loss, {})
            if seized is None or not seized.victims:
                continue
            if may_take(shares, request, [holds[job] for job in seized.victims]) and (
                best is None or seized.loss < best[0]
            ):
                spots = tuple(Spot(got) for got in seized.leaves)
                best = seized.loss, Placement(shape.name, spots, tuple(seized.victims))
    return None if best is None else best[1]


def _gives(chain: ChainState, leaf: int, yielding: set[AttemptId]) -> bool:
    user = chain.user[leaf]
    return user is None or user.job in yielding
