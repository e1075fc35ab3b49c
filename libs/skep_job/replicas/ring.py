"""Which rank keeps the copy of which: a ring of nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def keeper(rank: int, nodes: Sequence[int]) -> int:
    """Return the rank that keeps the copy of a rank's part, on the next node of the ring.

    Args:
        rank: The rank whose part it is.
        nodes: The node of each rank; at least two are different.
    """
    ring = list(dict.fromkeys(nodes))
    after = ring[(ring.index(nodes[rank]) + 1) % len(ring)]
    ours = [each for each, node in enumerate(nodes) if node == nodes[rank]]
    theirs = [each for each, node in enumerate(nodes) if node == after]
    return theirs[ours.index(rank) % len(theirs)]


def why_none(nodes: Sequence[int]) -> str:
    """Return why a gang has no copies in memory; empty if it can have them.

    Args:
        nodes: The node of each rank, 0 where a rank has no folder in memory.
    """
    if 0 in nodes:
        return f"rank {nodes.index(0)} has no folder in its node's memory"
    return "" if len(set(nodes)) > 1 else "all ranks are on one node"


def fetches(
    wanted: Sequence[Sequence[int]], held: Sequence[frozenset[int]], nodes: Sequence[int], rank: int
) -> list[tuple[int, int]]:
    """Return what a rank fetches for its node: files, by the ranks that wrote them, and from where.

    The ranks of one node share the work, and those that give are taken in turn.

    Args:
        wanted: For each rank, the files that it needs.
        held: For each rank, the files that its node has.
        nodes: The node of each rank.
        rank: The rank that asks.

    Returns:
        Pairs of a file and a rank whose node has it. Files that no node has are left out.
    """
    mates = [each for each, node in enumerate(nodes) if node == nodes[rank]]
    need = sorted({file for mate in mates for file in wanted[mate]} - held[rank])
    mine = need[mates.index(rank) :: len(mates)]
    found = []
    for file in mine:
        givers = [each for each, files in enumerate(held) if file in files]
        if givers:
            found.append((file, givers[file % len(givers)]))
    return found
