"""How the cells of a virtual cluster can cover a job where it is. Nothing is changed."""

from __future__ import annotations

from skep.cells.chain import ChainState
from skep.cells.forest import Draft
from skep.cells.holds import CellHold, Spot
from skep.cells.pools import Pool
from skep.cells.state import Cells
from skep.cells.topology import Topology


def find_cover(cells: Cells, hold: CellHold) -> tuple[Spot, ...] | None:
    """Return a job's own GPUs as cells that its VC can own now, or None if it cannot.

    A worker fits a cell that the VC has bound there, or a new one that may be taken safely: every
    cell that other VCs own and have not bound is still available (HiveD section 3.3). A job whose
    GPUs another job claims has no cover.

    Args:
        cells: The cells; they are not changed.
        hold: A hold with its chain and spots. It need not be in force.

    Returns:
        The spots with the levels of the cells that would cover them, in the order of the workers.
    """
    made: list[Spot] = []
    for name, spots in hold.portions:
        covered = _cover(cells.chains[name], hold, spots)
        if covered is None:
            return None
        made += covered
    return tuple(made)


def _cover(chain: ChainState, hold: CellHold, mine: tuple[Spot, ...]) -> list[Spot] | None:
    """Return what a hold has in one chain as cells that its VC can own now, or None.

    What other chains give or take changes nothing here: no cell is in two of them.
    """
    pool = chain.pools.get((hold.vc, hold.pin))
    if pool is None:
        return None
    left, shape = list(pool.left), chain.topology
    draft: Draft | None = None
    new: dict[tuple[int, int], None] = {}
    spots = []
    for spot in mine:
        first, last = min(spot.leaves), max(spot.leaves)
        level = _level_of_cover(shape, pool, first, last, new)
        if not level and any(left):
            draft = draft or Draft(chain.forest)  # It takes time, and most VCs have nothing left.
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
    claimed = any(leaf in chain.claim for spot in spots for leaf in spot.leaves)
    return None if claimed else spots


def out_of_reach(pool: Pool, shape: Topology, spots: tuple[Spot, ...]) -> bool:
    """Return whether a VC has no cell left, and those that it has bound do not contain all spots.

    So it is until `pool.bindings` changes. `find_cover` returns None then.

    Args:
        pool: The cells of the VC.
        shape: The shape of their chain.
        spots: Where the workers of a job are.
    """
    if any(pool.left):
        return False
    none: dict[tuple[int, int], None] = {}
    return not all(
        _level_of_cover(shape, pool, min(spot.leaves), max(spot.leaves), none) for spot in spots
    )


def _levels_to_try(preferred: int, top: int) -> list[int]:
    """Return the levels up to `top`: the preferred one first, then from the lowest up."""
    levels = list(range(1, top + 1))
    return sorted(levels, key=lambda level: (level != preferred, level))


def _level_of_cover(
    shape: Topology, pool: Pool, first: int, last: int, new: dict[tuple[int, int], None]
) -> int:
    """Return the level of the bound or `new` cell that contains these leaves; 0: there is none."""
    for level in range(1, shape.top + 1):
        size = shape.size[level]
        cell = first // size
        key = level, cell
        if cell == last // size and (key in pool.bound or key in new):
            return level
    return 0
