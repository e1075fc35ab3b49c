"""The gateway's cells, kept in step with the facts, and copies of them for threads.

Making the cells of a large cluster takes half a second, and telling its whole tree as long: neither
may hold up who else asks. So they are made once and then changed as the allocator changes its own,
by the same calls in the same order; and long answers are made in threads, of a copy that takes a
few milliseconds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from skep.cells.chain import ChainState
from skep.cells.pools import Pool
from skep.cells.state import Cells

WRONG = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)
"""What a change raises that does not fit the cells: then they are made anew."""


class Mirror:
    """Cells that are made when somebody asks first, and follow from then on."""

    def __init__(self, make: Callable[[], Cells]) -> None:
        """Start without cells; `make` makes them of what is known."""
        self._make = make
        self._cells: Cells | None = None
        self.misfits = 0
        """How often a change did not fit: that is a bug, and costs making them anew."""

    def cells(self) -> Cells:
        """Return the cells as they are; not to be changed, and not to be kept for later."""
        if self._cells is None:
            self._cells = self._make()
        return self._cells

    def drop(self) -> None:
        """Have them made anew."""
        self._cells = None

    def follow(self, change: Callable[[Cells], object]) -> None:
        """Change them, if they are made; what does not fit costs making them anew."""
        if self._cells is None:
            return
        try:
            self._cells.begin_change()
            change(self._cells)
        except WRONG:
            self._cells, self.misfits = None, self.misfits + 1


def frozen(cells: Cells) -> Cells:
    """Return a copy for showing, which no later change of the cells alters.

    Only what is shown is copied: who uses, claims and owns what, what is idle and what is bad.
    """
    made = copy.copy(cells)
    made.chains = {name: _chain(chain) for name, chain in cells.chains.items()}
    made.holds, made.sets = dict(cells.holds), dict(cells.sets)
    made.off_chain = {job: dict(gpus) for job, gpus in cells.off_chain.items()}
    return made


def _chain(chain: ChainState) -> ChainState:
    made = copy.copy(chain)
    pools = {key: _pool(pool) for key, pool in chain.pools.items()}
    of = {id(pool): pools[key] for key, pool in chain.pools.items()}
    made.pools = pools
    made.user, made.claim = list(chain.user), dict(chain.claim)
    made.bad, made.bad_cells = dict(chain.bad), {}
    made.bound = [{} for _ in chain.bound]
    for level, cells in enumerate(chain.bound):
        for index, cell in cells.items():
            own = copy.copy(cell)
            own.pool = of[id(cell.pool)]
            made.bound[level][index] = own.pool.bound[level, index] = own
            if cell in chain.bad_cells:
                made.bad_cells[own] = None
    made.forest = copy.copy(chain.forest)
    made.forest.busy = [list(counts) for counts in chain.forest.busy]
    made.forest.free = [dict(free) for free in chain.forest.free]
    return made


def _pool(pool: Pool) -> Pool:
    made = copy.copy(pool)
    made.left, made.bound = list(pool.left), {}
    return made
