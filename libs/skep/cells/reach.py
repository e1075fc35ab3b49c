"""Where a VC's guaranteed jobs could be, node by node: a view for whoever plans, not a promise."""

from __future__ import annotations

from itertools import islice

from skep.cells.chain import ChainState
from skep.cells.forest import Draft
from skep.cells.place import new_cells
from skep.cells.pools import Pool


def reach(chain: ChainState, vc: str) -> dict[int, int] | None:
    """Return by index of a node how many more GPUs there the VC's cells could cover now.

    Those of the cells that it has bound, and of as many more as it may bind together; what
    opportunistic jobs use counts as free. None: it has no cells in this chain. To whom the whole
    chain belongs, all of it is within reach. They come in the order in which the VC bound them,
    then those it has not bound: so it sees them in the same order whatever others do.
    """
    pools = [pool for (owner, _), pool in chain.pools.items() if owner == vc and any(pool.total)]
    if not pools:
        return None
    shape, node = chain.topology, chain.topology.node_level
    owned = sum(count * shape.size[level]
                for pool in pools for level, count in enumerate(pool.total))  # fmt: skip
    found: dict[int, int] = {}
    if owned == shape.leaves:
        size, firm = shape.node_size, chain.forest.firm[node]
        for pool in pools:
            for level, index in pool.bound:
                first = shape.span(level, index).start // size
                for each in range(first, first + max(1, shape.size[level] // size)):
                    found[each] = size - firm[each]
        for index, taken in enumerate(firm):
            found.setdefault(index, size - taken)
        return found
    for pool in pools:
        for level, index in pool.bound:
            _add(chain, found, level, index)
        if not pool.pin:
            _unbound(chain, pool, found)
    return found


def _unbound(chain: ChainState, pool: Pool, found: dict[int, int]) -> None:
    draft = Draft(chain.forest)
    for level in range(chain.topology.top, 0, -1):
        if pool.left[level]:
            for cell in islice(new_cells(chain, level, draft), pool.left[level]):
                _add(chain, found, level, cell)


def _add(chain: ChainState, found: dict[int, int], level: int, index: int) -> None:
    shape, firm = chain.topology, chain.forest.firm
    lower = min(level, shape.node_level)
    for unit in shape.within(level, index, lower):
        node = unit * shape.size[lower] // shape.node_size
        found[node] = found.get(node, 0) + shape.size[lower] - firm[lower][unit]
