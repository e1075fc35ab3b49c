"""In which order a chain's indexes list what is alike: it decides which of equal places is taken.

The order is that in which things came to be as they are, and follows from nothing else that a
snapshot says. So it is kept beside it, and a restart changes no decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from skep.cells.chain import ChainState

Order = tuple[int | tuple[int, int], ...]
"""Keys of one index: cells or nodes, or bound cells by level and index."""


def orders(chain: ChainState) -> tuple[Order, ...]:
    """Return the order of each index with more than one entry."""
    return tuple(tuple(index) for index in _indexes(chain) if len(index) > 1)


def reorder(chain: ChainState, kept: tuple[Order, ...]) -> None:
    """Put the indexes of a chain in the same state into these orders.

    One that holds something else than was kept stays as it is: its order is as good as another.
    """
    longer = [index for index in _indexes(chain) if len(index) > 1]
    for index, order in zip(longer, kept, strict=False):
        if set(order) == set(index):
            again = {key: index[key] for key in order}
            index.clear()
            index.update(again)


def _indexes(chain: ChainState) -> Iterator[dict[Any, Any]]:
    """Yield what placements look through, by what does not depend on any order."""
    forest, levels = chain.forest, range(chain.topology.top + 1)
    for level in levels:
        yield forest.free[level]
        yield from _buckets(forest.by_busy[level])
        yield from (forest.part[level][lower] for lower in levels)
        yield forest.ill[level]
    for crowd in chain.crowd:
        yield from _buckets(crowd)
    for _, pool in sorted(chain.pools.items()):
        yield pool.bound
        for each in pool.loose:
            yield from _buckets(each)


def _buckets(index: dict[Any, Any]) -> Iterator[dict[Any, Any]]:
    return (index[key] for key in sorted(index))
