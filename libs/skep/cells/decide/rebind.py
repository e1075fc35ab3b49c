"""Which idle GPUs of its own nodes a suspended gang resumes on, if other jobs have those it had.

Its processes are on those nodes, so no part may change its node; within a node all GPUs of the
chain are equal for a rank that can `rebind`. What the gang asked of the cells still holds: its type
is that of the chain, and workers that must share a cell get one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from skep.cells.chain import ChainState
from skep.cells.decide.gpu_choice import available_leaves, closest_leaves
from skep.cells.holds import OPPORTUNISTIC, Request

Part = Sequence[Sequence[int]]
"""The leaves of each rank on one node."""


def rebind(
    chain: ChainState, request: Request, parts: Mapping[int, Part]
) -> dict[int, list[tuple[int, ...]]] | None:
    """Return idle leaves for the ranks of each node, or None if there are too few.

    Ranks whose own leaves are idle keep them if the rest can be placed beside them; the others get
    leaves that are close to one another. A guaranteed gang is put where cells of its VC may cover
    it, an opportunistic one where no VC's cells are, as far as possible. No job is preempted.

    Args:
        chain: The chain.
        request: What the gang asked for.
        parts: By index of the node, the leaves that each rank had.
    """
    shape = chain.topology
    within = shape.level(request.within) if request.within and request.hard else None
    level = shape.node_level
    if within is not None and within < level and len(parts) == 1:
        level = within  # Above node level nothing changes: the gang stays on its nodes.
    made = {}
    for node, part in parts.items():
        found = next(
            (
                placed
                for cell in shape.within(shape.node_level, node, level)
                for leaves in _fitting(
                    chain, request, available_leaves(chain, level, cell, OPPORTUNISTIC)
                )
                if (placed := _lay(chain, leaves, part)) is not None
            ),
            None,
        )
        if found is None:
            return None
        made[node] = found
    return made


def _fitting(chain: ChainState, request: Request, idle: list[int]) -> Iterator[list[int]]:
    """Yield idle leaves, first those that suit the gang best, then more and more of them."""
    pool = chain.pools.get((request.vc, request.pin)) if request.guaranteed else None
    cells = {leaf: chain.cell_of(leaf) for leaf in idle}
    if pool is not None:
        yield [leaf for leaf, cell in cells.items() if cell is not None and cell.pool is pool]
    yield [leaf for leaf, cell in cells.items() if cell is None or cell.pool is pool]
    yield idle


def _lay(chain: ChainState, idle: list[int], part: Part) -> list[tuple[int, ...]] | None:
    """Return leaves for each rank of a node, or None if there are too few."""
    if sum(len(leaves) for leaves in part) > len(idle):
        return None
    free = dict.fromkeys(idle)
    made: dict[int, tuple[int, ...]] = {}
    for rank, leaves in enumerate(part):
        if all(leaf in free for leaf in leaves):
            made[rank] = tuple(leaves)
            for leaf in leaves:
                del free[leaf]
    for rank, leaves in enumerate(part):
        if rank not in made:
            made[rank] = closest_leaves(chain.topology, list(free), len(leaves))
            for leaf in made[rank]:
                del free[leaf]
    return [made[rank] for rank in range(len(part))]
