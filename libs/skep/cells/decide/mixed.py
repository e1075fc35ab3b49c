"""Where a gang goes that no chain holds alone: some of its workers in each of several chains.

A mixed gang is as slow as its slowest GPU, so this is the last resort before it waits. Chains of
one type come before those of several types.

Each portion is found by the search for a gang of that size in that chain, in the cells that the VC
owns there. Chains have no cell in common, and sharing safety is a property of each chain (HiveD
section 3.3): so what is safe in each of them is safe together. For the same reason it suffices to
ask each chain how many workers it holds. Only a host that is a node of two chains ties them: a gang
has GPUs of one of these there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from skep.cells.decide.gpu_choice import Loss, available_leaves
from skep.cells.decide.search import Found, Limit, Search
from skep.cells.holdings import Offer
from skep.cells.holds import Placement, Request, Spot


class Part(NamedTuple):
    """So many workers of a gang in one chain."""

    offer: Offer
    found: Found

    @property
    def nodes(self) -> list[str]:
        """Return the nodes of its workers, each once."""
        shape = self.offer.chain.topology
        return list(dict.fromkeys(shape.node(spot.leaves[0]) for spot in self.found.spots))


def place(
    offers: Sequence[Offer], request: Request, thresholds: Sequence[int], loss: Loss, limit: Limit
) -> Placement | None:
    """Return a gang's place in several chains, or None.

    The chains that hold most of its workers come first, so that it lies in few; of chains that hold
    as many, the first of the cluster file.

    Args:
        offers: The VC's cells in each chain that the gang may be in.
        request: A guaranteed gang whose workers have the same number of GPUs, tied to no level.
        thresholds: The priorities under which jobs yield, to be tried one after the other.
        loss: What stopping a job would cost.
        limit: By node name, the workers of this gang that the node has CPUs and memory for; None:
            no limit.
    """
    for alike in _groups(offers):
        for below in thresholds:
            parts = _parts(alike, request, below, loss, limit)
            if parts is not None:
                return _as_placement(parts)
    return None


def most_workers(offer: Offer, request: Request, below: int) -> int:
    """Return for how many workers of a gang one chain has GPUs now: it holds no more, maybe fewer.

    They are counted without a search, whatever CPUs and memory the workers need.

    Args:
        offer: The VC's cells in the chain.
        request: A guaranteed gang whose workers have the same number of GPUs.
        below: The priority under which jobs yield.
    """
    (chain, pool), (workers, gpus) = offer, request.members[0]
    shape = chain.topology
    if gpus > shape.node_size:
        return 0
    if not below:
        return min(workers, pool.places(gpus, shape.size))
    places = pool.unbound_places(gpus, shape.size)
    for level, index in pool.bound:
        if places >= workers:
            break
        lower = min(level, shape.node_level)
        for unit in shape.within(level, index, lower):
            places += len(available_leaves(chain, lower, unit, below)) // gpus
    return min(workers, places)


def _groups(offers: Sequence[Offer]) -> Iterator[list[Offer]]:
    """Yield the chains of each type that has several, then all chains if they are of more types."""
    types: dict[str, list[Offer]] = {}
    for offer in offers:
        types.setdefault(offer.chain.topology.gpu, []).append(offer)
    yield from (alike for alike in types.values() if len(alike) > 1)
    if len(types) > 1:
        yield list(offers)


def _parts(
    offers: Sequence[Offer], request: Request, below: int, loss: Loss, limit: Limit
) -> list[Part] | None:
    workers = request.members[0][0]
    bounds = [most_workers(offer, request, below) for offer in offers]
    if sum(bounds) < workers:
        return None  # The usual answer while it waits.
    alone = [
        (_most(offer, request, bound, below, loss, limit), offer)
        for offer, bound in zip(offers, bounds, strict=True)
        if bound
    ]
    held = [(found, offer) for found, offer in alone if found is not None]
    if sum(len(found.spots) for found, _ in held) < workers:
        return None
    held.sort(key=lambda each: -len(each[0].spots))
    parts: list[Part] = []
    left = workers
    for found, offer in held:
        used = dict.fromkeys(name for part in parts for name in part.nodes)
        part: Found | None = found
        if len(found.spots) > left or not used.keys().isdisjoint(Part(offer, found).nodes):
            # One host with two types of GPU is a node of two chains, and a gang has one part there.
            most = min(left, len(found.spots))
            part = _most(offer, request, most, below, loss, _elsewhere(used, limit, workers))
        if part is not None:
            parts.append(Part(offer, part))
            left -= len(part.spots)
        if not left:
            return parts
    return None


def _most(
    offer: Offer, request: Request, workers: int, below: int, loss: Loss, limit: Limit
) -> Found | None:
    """Return the place of as many of a gang's workers as a chain holds, at most `workers`."""
    chain, pool = offer
    gpus, best = request.members[0][1], None
    low, high, count = 0, workers, workers  # It mostly holds all for which it has GPUs.
    while low < high:
        asked = request._replace(members=((count, gpus),))
        found = None
        if below or pool.may_hold(asked.members, chain.topology.size):
            found = Search(chain, pool, asked, below, loss, limit).run()
        if found is None:
            high = count - 1
        else:
            low, best = count, found
        count = (low + high + 1) // 2
    return best


def _elsewhere(used: dict[str, None], limit: Limit, workers: int) -> Limit:
    """Return a limit that leaves out nodes where the gang has a part already."""

    def elsewhere(name: str) -> int:
        if name in used:
            return 0
        return workers if limit is None else limit(name)

    return elsewhere


def _as_placement(parts: Sequence[Part]) -> Placement:
    """Return the parts as a placement; workers of one node follow one another."""
    portions = [(part.offer.chain.topology.name, tuple(_by_node(part))) for part in parts]
    (chain, spots), *further = portions
    victims = dict.fromkeys(job for part in parts for job in part.found.victims)
    cancels = dict.fromkeys(job for part in parts for job in part.found.cancels)
    return Placement(chain, spots, tuple(victims), tuple(cancels), further=tuple(further))


def _by_node(part: Part) -> Iterator[Spot]:
    shape = part.offer.chain.topology
    for node in part.nodes:
        yield from (spot for spot in part.found.spots if shape.node(spot.leaves[0]) == node)
