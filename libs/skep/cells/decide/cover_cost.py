"""The cost of covering a job by cells of its VC, to compare two ways of doing it."""

from __future__ import annotations

from collections.abc import Sequence

from skep.cells.chain import ChainState
from skep.cells.holds import Spot
from skep.cells.pools import Pool


def cover_cost(chain: ChainState, pool: Pool, spots: Sequence[Spot]) -> tuple[int, int]:
    """Return what covering a gang on these spots takes from its VC; less is better.

    `find_placement` searches in the same order, so for one state it finds nothing much better.

    Args:
        chain: The chain.
        pool: The VC's cells of it.
        spots: The workers, each with the level of the cell that would cover it.

    Returns:
        The GPUs of cells that would be newly bound; then the GPUs that are left beside the gang
        on its nodes, or in its cells below node level. Tight ones keep others whole.
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
