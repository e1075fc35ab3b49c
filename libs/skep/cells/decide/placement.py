"""Where a gang goes, over all chains: the entry to the search. Reads the cells, changes nothing.

HiveD section 3.3: a guaranteed gang goes to cells of its virtual cluster, an opportunistic one to
whatever is idle. `search` looks in one chain for the first kind, `opportunistic` for the second.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep.cells.chain import ChainState
from skep.cells.decide import mixed
from skep.cells.decide.gpu_choice import Loss
from skep.cells.decide.opportunistic import place_idle
from skep.cells.decide.search import Found, Limit, Search, as_placement
from skep.cells.forest import Draft
from skep.cells.holdings import Offer
from skep.cells.holds import CellHold, Placement, Request, Spot
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.wire.spec import suits


def nothing_lost(_job: AttemptId) -> float:
    """Return the same loss for every victim."""
    return 1.0


def find_placement(
    cells: Cells, request: Request, loss: Loss = nothing_lost, limit: Limit = None
) -> Placement | None:
    """Return where a gang goes, and which jobs have to leave for it; None: it has to wait.

    A guaranteed gang goes to its VC's cells only. It preempts opportunistic jobs of any VC, and
    jobs of its own VC with a lower priority; an opportunistic gang preempts no job (HiveD section
    3.3). A gang that may be mixed lies in several chains if no single one holds it (`mixed`).

    Args:
        cells: What is free, bound, used and bad; it is not changed.
        request: The gang: its job, VC, priority, and the GPUs of each worker.
        loss: What stopping a job would cost, in any unit that can be compared; of equal places the
            one with the cheapest victims is taken.
        limit: By node name, the workers of this gang that the node has CPUs and memory for; None:
            no limit.
    """
    if not request.guaranteed:
        return _on_idle_gpus(cells, request, limit)
    offers = [
        offer
        for offer in cells.offers(request.vc, request.gpu, request.pin)
        if _has_level(offer.chain, request)
    ]
    thresholds = _thresholds(cells, request)
    for below in thresholds:
        found = _in_cells_of_vc(offers, request, below, loss, limit)
        if found is not None:
            return found
    if not request.mixed or request.hard or request.pin or len(request.members) > 1:
        return None
    return mixed.place(offers, request, thresholds, loss, limit)


def _on_idle_gpus(cells: Cells, request: Request, limit: Limit) -> Placement | None:
    found = [
        placed
        for chain in cells.chains.values()
        if suits(request.gpu, chain.topology.gpu)
        and _has_level(chain, request)
        and (placed := place_idle(chain, request, limit)) is not None
    ]
    return min(found, key=lambda each: _extent(cells.chains[each.chain], each.spots), default=None)


def _in_cells_of_vc(
    offers: Sequence[Offer], request: Request, below: int, loss: Loss, limit: Limit
) -> Placement | None:
    """Return the best placement in the VC's cells if priorities under `below` yield."""
    best: tuple[tuple[float, int, int], Offer, Found] | None = None
    for offer in offers:
        chain, pool = offer
        if below == 0 and not pool.may_hold(request.members, chain.topology.size):
            continue  # The usual answer for most queues.
        search = Search(chain, pool, request, below, loss, limit)
        if below > 0 and (lazy := _by_demotion(offer, request, search)) is not None:
            return lazy
        result = search.run()
        if result is not None and len(offers) == 1:
            return as_placement(chain, request, result)
        if result is not None:
            # Opportunistic jobs do not influence in which chain a VC is served either.
            lost = result.loss if below else 0.0
            cost = lost, *_extent(chain, result.spots)
            if best is None or cost < best[0]:
                best = cost, offer, result
    return None if best is None else as_placement(best[1].chain, request, best[2])


def _has_level(chain: ChainState, request: Request) -> bool:
    """Return whether a chain has the level that a request is tied to, if it is tied to one."""
    return not (request.hard and request.within) or request.within in chain.topology.levels[1:]


def _extent(chain: ChainState, spots: Sequence[Spot]) -> tuple[int, int]:
    """Return over how many nodes a gang spreads, and the GPUs of one; less is better.

    Larger nodes are kept for workers that no other node holds.
    """
    size = chain.topology.node_size
    nodes = dict.fromkeys(spot.leaves[0] // size for spot in spots)
    return len(nodes), size


def _thresholds(cells: Cells, request: Request) -> list[int]:
    """Return the priorities under which jobs yield, to be tried one after the other.

    The first is 0: opportunistic jobs only. If the VC has jobs of a lower priority, the request's
    own priority follows.
    """
    lower = any(priority < request.priority for priority in cells.priorities.get(request.vc, ()))
    return [0, request.priority] if lower and request.priority > 0 else [0]


def _by_demotion(offer: Offer, request: Request, search: Search) -> Placement | None:
    """Return a placement in a cell that lazy preemption frees, or None.

    The VC's cell is bound to other hardware, and its jobs continue where they are,
    opportunistically.
    """
    chain, pool = offer
    for (level, index), cell in sorted(pool.bound.items()):
        if level < search.least or pool.pin:
            continue
        users = {
            leaf: hold
            for leaf in chain.topology.span(level, index)
            if (hold := chain.claim.get(leaf) or chain.user[leaf]) is not None and hold.guaranteed
        }
        holds = dict.fromkeys(users.values())
        movable = all(
            hold.lazy
            and hold.priority < request.priority
            and not hold.claims
            and not hold.further
            and len(hold.spots) == _spots_in(hold, level, index, chain)
            for hold in holds
        )
        if not movable or not cell.used:
            continue
        draft = Draft(chain.forest)
        span = chain.topology.span(level, index)
        draft.assume_returned(level, bad=any(leaf in span for leaf in chain.bad))
        for new, _, _ in chain.forest.clean_cells(level):
            if draft.take_if_safe(level, new):
                found = _lay(chain, search, level, new)
                if found is not None:
                    made = as_placement(chain, request, found)
                    return made._replace(demoted=tuple(hold.job for hold in holds))
            break
    return None


def _spots_in(hold: CellHold, level: int, index: int, chain: ChainState) -> int:
    """Return how many of a hold's spots are in a cell."""
    return sum(chain.topology.up(spot.leaves[0], level) == index for spot in hold.spots)


def _lay(chain: ChainState, search: Search, level: int, cell: int) -> Found | None:
    """Return the gang's workers one after the other on a clean cell, or None if they do not fit."""
    if search.sizes[0] > chain.topology.node_size or (search.tied and level > search.hard):
        return None
    at = chain.topology.span(level, cell).start
    spots, size = [], chain.topology.node_size
    for gpus in search.sizes:
        if at % size + gpus > size:
            at += size - at % size
        if at + gpus > chain.topology.span(level, cell).stop:
            return None
        spots.append(Spot(tuple(range(at, at + gpus)), level))
        at += gpus
    if search.limit is not None:
        counts: dict[str, int] = {}
        for spot in spots:
            node = chain.topology.node(spot.leaves[0])
            counts[node] = counts.get(node, 0) + 1
        if any(search.limit(node) < count for node, count in counts.items()):
            return None
    return Found(spots)
