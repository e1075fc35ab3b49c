"""Where an opportunistic gang goes: idle GPUs, as far from guaranteed jobs as possible.

HiveD section 3.3: cells farthest from those of guaranteed jobs, so that it is preempted least.
"""

from __future__ import annotations

from collections.abc import Iterator

from skep.cells.bin_packing import Bin, pack_workers
from skep.cells.chain import OWNED, SPLIT, ChainState
from skep.cells.decide.gpu_choice import available_leaves, closest_leaves
from skep.cells.decide.search import Found, Limit, as_placement
from skep.cells.holds import OPPORTUNISTIC, Placement, Request, Spot


def place_idle(chain: ChainState, request: Request, limit: Limit) -> Placement | None:
    """Return a placement on idle GPUs that binds no cell, or None. No job is preempted for it.

    Args:
        chain: The chain.
        request: The gang.
        limit: By node name, the workers of this gang that the node has CPUs and memory for; None:
            no limit.
    """
    shape = chain.topology
    sizes = sorted(request.sizes, reverse=True)
    if sizes[0] > shape.node_size:
        return None
    within = shape.level(request.within) if request.within else None
    tied = request.hard and within is not None
    found = None
    if sum(sizes) <= shape.node_size:
        lowest = min(within, shape.node_level) if tied and within else shape.node_level
        found = _on_one(chain, sizes, lowest, limit)
    if found is None and tied and within is not None and within > shape.node_level:
        found = _in_domain(chain, sizes, within, limit)
    elif found is None and not tied:
        found = _over(chain, _roomiest(chain), sizes, limit)
    return None if found is None else as_placement(chain, request, found)


def _on_one(chain: ChainState, sizes: list[int], within: int, limit: Limit) -> Found | None:
    shape, need = chain.topology, sum(sizes)
    for node in _tightest(chain, need):
        if limit is not None and limit(shape.nodes[node]) < len(sizes):
            continue
        for cell in shape.within(shape.node_level, node, within):
            leaves = available_leaves(chain, within, cell, OPPORTUNISTIC)
            if len(leaves) >= need:
                return Found(_lay(chain, leaves, sizes))
    return None


def _lay(chain: ChainState, leaves: list[int], sizes: list[int]) -> list[Spot]:
    spots = []
    for gpus in sizes:
        got = closest_leaves(chain.topology, leaves, gpus)
        leaves = [leaf for leaf in leaves if leaf not in got]
        spots.append(Spot(got))
    return spots


def _tightest(chain: ChainState, need: int) -> Iterator[int]:
    """Yield nodes with enough idle GPUs: by distance from guaranteed jobs, the tightest first."""
    shape, forest = chain.topology, chain.forest
    node_level, size = shape.node_level, shape.node_size
    busy = forest.busy[node_level]
    for high in range(shape.top, node_level, -1):
        for idle in range(need, size + 1):
            for cell in forest.free[high]:
                if chain.by_idle[high][cell][idle]:
                    inside = shape.within(high, cell, node_level)
                    yield from _having(busy, size - idle, inside)
    for idle in range(need, size + 1):
        yield from forest.by_busy[node_level].get(size - idle, ())
    for kind in (SPLIT, OWNED):
        yield from chain.nodes_of_kind(kind, range(need, size + 1))


def _having(counts: list[int], value: int, inside: range) -> Iterator[int]:
    at = inside.start
    try:
        while True:
            at = counts.index(value, at, inside.stop)
            yield at
            at += 1
    except ValueError:
        return


def _roomiest(chain: ChainState) -> Iterator[int]:
    """Yield nodes with idle GPUs: by distance from guaranteed jobs, then the emptiest first."""
    shape, forest = chain.topology, chain.forest
    node_level, size = shape.node_level, shape.node_size
    busy = forest.busy[node_level]
    for high in range(shape.top, node_level, -1):
        for cell in forest.free[high]:
            for idle in range(size, 0, -1):
                if chain.by_idle[high][cell][idle]:
                    yield from _having(busy, size - idle, shape.within(high, cell, node_level))
    for idle in range(size, 0, -1):
        yield from forest.by_busy[node_level].get(size - idle, ())
    for kind in (SPLIT, OWNED):
        yield from chain.nodes_of_kind(kind, range(size, 0, -1))


def _in_domain(chain: ChainState, sizes: list[int], level: int, limit: Limit) -> Found | None:
    shape, busy = chain.topology, chain.forest.busy
    need = sum(sizes)
    fitting = [
        cell for cell in range(shape.count[level]) if shape.size[level] - busy[level][cell] >= need
    ]
    for cell in sorted(fitting, key=busy[level].__getitem__, reverse=True):
        inside = shape.within(level, cell, shape.node_level)
        nodes = sorted(inside, key=busy[shape.node_level].__getitem__)
        found = _over(chain, iter(nodes), sizes, limit)
        if found is not None:
            return found
    return None


def _over(chain: ChainState, nodes: Iterator[int], sizes: list[int], limit: Limit) -> Found | None:
    """Place workers (descending sizes) on nodes in this order."""
    shape, rest, got = chain.topology, list(sizes), []
    bins: dict[int, Bin] = {}
    for node in nodes:
        leaves = available_leaves(chain, shape.node_level, node, OPPORTUNISTIC)
        most = len(rest) if limit is None else limit(shape.nodes[node])
        taken: list[int] = []
        room = len(leaves)
        for gpus in rest:
            if gpus <= room and len(taken) < most:
                taken.append(gpus)
                room -= gpus
        if taken:
            got += _lay(chain, leaves, taken)
            for gpus in taken:
                rest.remove(gpus)
        if not rest:
            return Found(got)
        bins[node] = Bin(len(leaves), shape.nodes[node], None if limit is None else most)
    if sizes[0] == sizes[-1]:
        return None
    packed = pack_workers(list(bins.values()), sizes)
    if packed is None:
        return None
    got = []
    for node, workers in zip(bins, packed, strict=True):
        leaves = available_leaves(chain, shape.node_level, node, OPPORTUNISTIC)
        got += _lay(chain, leaves, workers)
    return Found(got)
