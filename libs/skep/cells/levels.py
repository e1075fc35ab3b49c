"""The arithmetic of a chain: its levels by number, 0 for one GPU, and how large their cells are.

All of it holds for chains without problems (`clustercheck`).
"""

from __future__ import annotations

from skep.wire.cluster import Chain, Cluster


def level_names(chain: Chain) -> tuple[str, ...]:
    """Return the levels' names from one GPU up."""
    return (chain.leaf, *(level.name for level in chain.levels))


def fanouts(chain: Chain) -> tuple[int, ...]:
    """Return how many cells of the level below make one of each level; 1 for one GPU."""
    return (1, *(level.fanout for level in chain.levels))


def gpus_by_level(chain: Chain) -> tuple[int, ...]:
    """Return the GPUs of one cell of each level."""
    sizes = [1]
    for level in chain.levels:
        sizes.append(sizes[-1] * level.fanout)
    return tuple(sizes)


def node_level(chain: Chain) -> int:
    """Return the number of the level that is one machine."""
    return level_names(chain).index(chain.node_level)


def gpus_per_node(chain: Chain) -> int:
    """Return the GPUs of one node."""
    return gpus_by_level(chain)[node_level(chain)]


def cells_by_level(chain: Chain) -> tuple[int, ...]:
    """Return how many cells of each level the chain has."""
    gpus = gpus_per_node(chain) * len(chain.nodes)
    return tuple(gpus // size for size in gpus_by_level(chain))


def devices_of(chain: Chain, node: int) -> tuple[int, ...]:
    """Return the device indices of a node's GPUs, in the order of the tree.

    Args:
        chain: The chain.
        node: The position of the node in the chain.
    """
    return chain.nodes[node].devices or tuple(range(gpus_per_node(chain)))


def gpus_in_cells(cluster: Cluster, vc: str) -> int:
    """Return the GPUs in all cells of a virtual cluster, pinned ones included.

    Args:
        cluster: The cluster.
        vc: The name of the virtual cluster.
    """
    entry, gpus = cluster.vcs[vc], 0
    for quota in entry.cells:
        gpus += quota.count * cell_gpus(cluster.chains[quota.chain], quota.level)
    for name in entry.pinned:
        pin = cluster.pins[name]
        gpus += cell_gpus(cluster.chains[pin.chain], pin.level)
    return gpus


def gpus_owned(cluster: Cluster, vc: str) -> int:
    """Return the GPUs of a virtual cluster: in cells, and those of the shorthand `gpus`.

    Args:
        cluster: The cluster.
        vc: The name of the virtual cluster.
    """
    return cluster.vcs[vc].gpus + gpus_in_cells(cluster, vc)


def cell_gpus(chain: Chain, level: str) -> int:
    """Return the GPUs of one cell of a level, by its name."""
    return gpus_by_level(chain)[level_names(chain).index(level)]


def cells_of(chain: Chain, level: str) -> int:
    """Return how many cells of a level a chain has, by the level's name."""
    return cells_by_level(chain)[level_names(chain).index(level)]
