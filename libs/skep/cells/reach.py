"""Where a VC's guaranteed jobs could be, node by node: a view for whoever plans, not a promise."""

from __future__ import annotations

from itertools import islice

from skep.cells.chain import ChainState
from skep.cells.forest import Draft
from skep.cells.place import new_cells
from skep.cells.pools import Pool

Reach = dict[int, dict[str, int]]
"""GPUs by index of a node, and there by pin: under "" those for jobs without one."""


def reach(chain: ChainState, vc: str) -> Reach | None:
    """Return how many more GPUs of each node the VC's cells could cover now.

    Those of the cells that it has bound, and of as many more as it may bind together; what
    opportunistic jobs use counts as free. A pinned cell serves jobs that name it, and no others.
    None: it has no cells in this chain. To whom the whole chain belongs, all of it is within reach.
    """
    pools = [pool for (owner, _), pool in chain.pools.items() if owner == vc and any(pool.total)]
    if not pools:
        return None
    shape, node = chain.topology, chain.topology.node_level
    owned = sum(count * shape.size[level]
                for pool in pools for level, count in enumerate(pool.total))  # fmt: skip
    found: Reach = {}
    if owned == shape.leaves:
        size = shape.node_size
        found = {index: {"": size - taken} for index, taken in enumerate(chain.forest.firm[node])}
    for pool in pools:
        if pool.pin or owned < shape.leaves:
            for level, index in pool.bound:
                _add(chain, found, pool.pin, (level, index))
        if not pool.pin and owned < shape.leaves:
            _unbound(chain, pool, found)
    if owned == shape.leaves:
        for there in found.values():
            there[""] -= sum(there.values()) - there[""]
    return found


def _unbound(chain: ChainState, pool: Pool, found: Reach) -> None:
    draft = Draft(chain.forest)
    for level in range(chain.topology.top, 0, -1):
        if pool.left[level]:
            for cell in islice(new_cells(chain, level, draft), pool.left[level]):
                _add(chain, found, "", (level, cell))


def _add(chain: ChainState, found: Reach, pin: str, cell: tuple[int, int]) -> None:
    shape, firm = chain.topology, chain.forest.firm
    level, index = cell
    lower = min(level, shape.node_level)
    for unit in shape.within(level, index, lower):
        node = unit * shape.size[lower] // shape.node_size
        there = found.setdefault(node, {"": 0})
        there[pin] = there.get(pin, 0) + shape.size[lower] - firm[lower][unit]
