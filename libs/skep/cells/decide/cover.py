"""How the cells of a virtual cluster can cover a job where it is. Nothing is changed."""

from __future__ import annotations

from skep.cells.chain import ChainState
from skep.cells.forest import Draft
from skep.cells.holds import CellHold, Spot
from skep.cells.pools import Pool
from skep.cells.state import Cells


def find_cover(cells: Cells, hold: CellHold) -> tuple[Spot, ...] | None:
    """Return a job's own GPUs as cells that its VC can own now, or None if it cannot.

    A worker fits a cell that the VC has bound there, or a new one that may be taken safely: every
    cell that other VCs own and have not bound is still available (HiveD section 3.3). A job whose
    GPUs another job claims has no cover.

    Args:
        cells: The cells; they are not changed.
        hold: A hold with its chain and spots. It need not be in force.

    Returns:
        The spots with the levels of the cells that would cover them.
    """
    chain = cells.chains[hold.chain]
    pool = chain.pools.get((hold.vc, hold.pin))
    claimed = any(leaf in chain.claim for spot in hold.spots for leaf in spot.leaves)
    if pool is None or claimed:
        return None
    draft, left, shape = Draft(chain.forest), list(pool.left), chain.topology
    new: dict[tuple[int, int], None] = {}
    spots = []
    for spot in hold.spots:
        level = _level_of_cover(chain, pool, spot, new)
        if not level:
            first, last = min(spot.leaves), max(spot.leaves)
            for at in _levels_to_try(spot.level, shape.top):
                cell = first // shape.size[at]
                if cell == last // shape.size[at] and left[at] and draft.take_if_safe(at, cell):
                    left[at] -= 1
                    new[at, cell] = None
                    level = at
                    break
        if not level:
            return None
        spots.append(Spot(spot.leaves, level))
    return tuple(spots)


def _levels_to_try(preferred: int, top: int) -> list[int]:
    """Return the levels up to `top`: the preferred one first, then from the lowest up."""
    levels = list(range(1, top + 1))
    return sorted(levels, key=lambda level: (level != preferred, level))


def _level_of_cover(
    chain: ChainState, pool: Pool, spot: Spot, new: dict[tuple[int, int], None]
) -> int:
    """Return the level of the bound or `new` cell that contains a spot; 0: there is none."""
    shape = chain.topology
    for level in range(1, shape.top + 1):
        first = spot.leaves[0] // shape.size[level]
        if all(leaf // shape.size[level] == first for leaf in spot.leaves):
            key = level, first
            if key in new or key in pool.bound:
                return level
    return 0
