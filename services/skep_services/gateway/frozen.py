"""Copies of the cells, for answers that are made in threads.

The tree of a large cluster takes half a second to make, in which no other request may wait. So it
is made of a copy, which takes a few milliseconds.
"""

from __future__ import annotations

import copy

from skep.cells.chain import ChainState
from skep.cells.pools import Pool
from skep.cells.state import Cells


def frozen(cells: Cells) -> Cells:
    """Return a copy for showing, which no later change of the cells alters.

    Only what is shown is copied: use, claims, owners, and what is idle or bad.
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
