"""What a VC has left of its cells, for comparing two ways of covering one of its jobs."""

from __future__ import annotations

from collections.abc import Sequence

from skep.cells.chain import ChainState
from skep.cells.holds import Spot
from skep.cells.pools import Pool


def used_up(chain: ChainState, pool: Pool, spots: Sequence[Spot]) -> tuple[int, int]:
    """Return what covering a gang on these spots takes from its VC, to be compared: less is better.

    First the GPUs of cells that would be newly bound; then the room that the nodes, or smaller
    cells, it goes to still have beside it: tight ones keep others whole. That is also the order in
    which `place` looks for a gang, so of one and the same state it finds nothing better by far.
    """
    shape, firm = chain.topology, chain.forest.firm
    new: dict[tuple[int, int], None] = {}
    units: dict[tuple[int, int], int] = {}
    for spot in spots:
        first, unit = spot.leaves[0], min(spot.level, shape.node_level)
        cell = spot.level, shape.up(first, spot.level)
        if cell not in pool.bound:
            new[cell] = None
        key = unit, shape.up(first, unit)
        units[key] = units.get(key, 0) + len(spot.leaves)
    bound = sum(shape.size[level] for level, _ in new)
    left = sum(shape.size[level] - firm[level][at] - gpus for (level, at), gpus in units.items())
    return bound, left
