"""The free cells of a VC as its policy sees them, by chain and level."""

from __future__ import annotations

from skep.cells.chain import ChainState
from skep.ledger.state import ClusterState


def free_cells(state: ClusterState, vc: str) -> dict[str, tuple[int, ...]]:
    """Return by chain how many cells of each level are free, from one GPU up (HiveD, section 3).

    Cells that are bound to nothing, and of those that are bound the largest parts that no
    guaranteed job uses; pinned ones are not among them, as they serve only jobs that name the pin.

    Returns:
        By chain, one count for each level; chains in which the VC owns nothing are not among them.
    """
    found: dict[str, tuple[int, ...]] = {}
    for name, chain in state.cells.chains.items():
        counts = [0] * (chain.topology.top + 1)
        owns = False
        for (owner, pin), pool in chain.pools.items():
            if owner != vc or pin:
                continue
            owns = True
            for level, count in enumerate(pool.left):
                counts[level] += count
            for level, index in pool.bound:
                _split(chain, counts, level, index)
        if owns:
            found[name] = tuple(counts[1:])
    return found


def _split(chain: ChainState, counts: list[int], level: int, index: int) -> None:
    """Count the largest free cells within one."""
    shape, firm = chain.topology, chain.forest.firm
    if not firm[level][index]:
        counts[level] += 1
    elif level > 1 and firm[level][index] < shape.size[level]:
        for each in shape.within(level, index, level - 1):
            _split(chain, counts, level - 1, each)
