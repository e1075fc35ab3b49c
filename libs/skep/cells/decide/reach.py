"""Where a VC's guaranteed jobs could be, node by node: a view for plans, without a guarantee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain as chained
from itertools import islice

from skep.cells.chain import ChainState
from skep.cells.decide.search import new_cells
from skep.cells.forest import Draft
from skep.cells.pools import Pool

Reach = dict[int, dict[str, int]]
"""GPUs by index of a node and by pin; "" is for jobs without a pin."""


def reachable_gpus(chain: ChainState, vc: str, homes: Sequence[int] = ()) -> Reach | None:
    """Return how many more GPUs of each node the VC's cells could cover now.

    Counted are GPUs of bound cells, and of as many further cells as it may bind together; GPUs that
    opportunistic jobs use count as free. A pinned cell serves only jobs that name it. A VC that
    owns a whole chain can reach all of it.

    Args:
        chain: The chain.
        vc: The VC.
        homes: GPUs of suspended jobs that go on only there. Further cells are those around them
            first: else a job could wait for a free cell that the view never has.

    Returns:
        The GPUs, in the order of the VC's cells by number, which does not depend on other VCs;
        None: it has no cells in this chain.
    """
    pools = _pools(chain, vc)
    if not pools:
        return None
    shape, node = chain.topology, chain.topology.node_level
    owned = _owned(chain, pools)
    found: Reach = {}
    if owned == shape.leaves:
        size, firm = shape.node_size, chain.forest.firm[node]
        for index in dict.fromkeys((*_all_nodes(chain, pools), *range(len(firm)))):
            found[index] = {"": size - firm[index]}
    for pool in pools:
        if pool.pin or owned < shape.leaves:
            for cell in [*pool.bound] if pool.pin else _own(chain, pool, homes):
                _add(chain, found, pool.pin, cell)
    if owned == shape.leaves:
        for there in found.values():
            there[""] -= sum(there.values()) - there[""]
    return found


def reaches_all(chain: ChainState, vc: str) -> bool:
    """Return whether a VC owns a whole chain, and none of its cells is pinned.

    Then it reaches of each node what no job of its own has, in an order that is the same while
    `chain.bindings` is.
    """
    pools = _pools(chain, vc)
    return _owned(chain, pools) == chain.topology.leaves and not any(pool.pin for pool in pools)


def _pools(chain: ChainState, vc: str) -> list[Pool]:
    return [pool for (owner, _), pool in chain.pools.items() if owner == vc and any(pool.total)]


def _owned(chain: ChainState, pools: list[Pool]) -> int:
    """Return how many GPUs some pools have."""
    sizes = chain.topology.size
    return sum(count * sizes[level] for pool in pools for level, count in enumerate(pool.total))


def _own(chain: ChainState, pool: Pool, homes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield a VC's cells by their numbers, with hardware that unbound ones could have now."""
    draft = Draft(chain.forest)
    for level in range(chain.topology.top, 0, -1):
        if pool.total[level]:
            found = chained(_around(chain, level, homes, draft), new_cells(chain, level, draft))
            yield from _numbered(pool, level, islice(found, pool.left[level]))


def _around(chain: ChainState, level: int, homes: Sequence[int], draft: Draft) -> Iterator[int]:
    """Yield the free cells around some GPUs that are safe to take; the draft takes them."""
    for leaf in homes:
        cell = chain.topology.up(leaf, level)
        if draft.take_if_safe(level, cell):
            yield cell


def _numbered(pool: Pool, level: int, new: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Yield the cells of a level by their numbers; for unbound ones, `new` cells."""
    bound = {cell.number: index for (at, index), cell in pool.bound.items() if at == level}
    for number in range(pool.total[level]):
        index = bound[number] if number in bound else next(new, None)
        if index is not None:
            yield level, index


def _all_nodes(chain: ChainState, pools: list[Pool]) -> Iterator[int]:
    """Yield the nodes of a VC that owns the whole chain by the numbers of its cells."""
    shape, node = chain.topology, chain.topology.node_level
    for pool in pools:
        for level in range(shape.top, 0, -1) if not pool.pin else ():
            taken = {index for at, index in pool.bound if at == level}
            free = (
                index
                for index in range(shape.count[level])
                if index not in taken and not chain.forest.firm[level][index]
            )
            for _, index in _numbered(pool, level, free if level >= node else iter(())):
                if level == node:
                    yield index
                else:
                    yield from _nodes(chain, level, index)


def _nodes(chain: ChainState, level: int, index: int) -> range:
    """Return the nodes that a cell is on."""
    span, size = chain.topology.span(level, index), chain.topology.node_size
    return range(span.start // size, -(-span.stop // size))


def _add(chain: ChainState, found: Reach, pin: str, cell: tuple[int, int]) -> None:
    shape, firm = chain.topology, chain.forest.firm
    level, index = cell
    lower = min(level, shape.node_level)
    for unit in shape.within(level, index, lower):
        node = unit * shape.size[lower] // shape.node_size
        there = found.setdefault(node, {"": 0})
        there[pin] = there.get(pin, 0) + shape.size[lower] - firm[lower][unit]
