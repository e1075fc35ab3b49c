"""Clusters for simulations and tests: all nodes alike, or several types of nodes."""

from __future__ import annotations

from collections.abc import Mapping

from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster

ALL = "all"
"""The only VC of a cluster that is not divided."""


def uniform(
    nodes: int,
    gpus_per_node: int,
    gpu_type: str = "v100",
    racks: int = 0,
    vcs: Mapping[str, int] | None = None,
) -> Cluster:
    """Return a cluster of equal nodes in one chain with the levels gpu, node, and rack if any.

    Args:
        nodes: How many nodes.
        gpus_per_node: GPUs of each.
        gpu_type: Their type, which also names the chain.
        racks: The nodes are divided among so many racks; 0: there are none.
        vcs: By VC, how many nodes it owns; None: the VC `all` owns every node.

    Raises:
        ValueError: Racks are not equal, or VCs own too much.
    """
    chain = _chain(gpu_type, nodes, gpus_per_node, racks)
    owners = dict(vcs) if vcs is not None else {ALL: nodes}
    if sum(owners.values()) > nodes:
        reason = f"VCs own {sum(owners.values())} nodes of {nodes}"
        raise ValueError(reason)
    return Cluster(
        chains={gpu_type: chain},
        vcs={
            vc: VirtualCluster(cells=(Quota(chain=gpu_type, level="node", count=count),))
            for vc, count in owners.items()
            if count
        },
    )


def of_types(
    types: Mapping[str, int],
    gpus_per_node: int = 8,
    racks: int = 0,
    vcs: Mapping[str, Mapping[str, int]] | None = None,
) -> Cluster:
    """Return a cluster with a chain for each type of GPU.

    Args:
        types: By type, how many nodes.
        gpus_per_node: GPUs of each node.
        racks: The nodes of each type are divided among so many racks; 0: there are none.
        vcs: By VC, how many nodes of each type it owns; None: the VC `all` owns every node.

    Raises:
        ValueError: Racks are not equal, or VCs own too much.
    """
    chains = {kind: _chain(kind, count, gpus_per_node, racks) for kind, count in types.items()}
    owners = vcs if vcs is not None else {ALL: types}
    for kind, count in types.items():
        owned = sum(each.get(kind, 0) for each in owners.values())
        if owned > count:
            reason = f"VCs own {owned} nodes of {kind}, and there are {count}"
            raise ValueError(reason)
    return Cluster(
        chains=chains,
        vcs={
            vc: VirtualCluster(
                cells=tuple(
                    Quota(chain=kind, level="node", count=count)
                    for kind, count in owned.items()
                    if count
                )
            )
            for vc, owned in owners.items()
        },
    )


def _chain(kind: str, nodes: int, gpus: int, racks: int) -> Chain:
    """Return a chain of nodes, in racks if there are any.

    Args:
        kind: The type of the GPUs, which begins the nodes' names.
        nodes: How many nodes.
        gpus: GPUs of each.
        racks: The nodes are divided among so many racks; 0: there are none.

    Raises:
        ValueError: A number is below 1, or racks are not equal.
    """
    if nodes < 1 or gpus < 1 or (racks and nodes % racks):
        reason = f"{nodes} nodes of {gpus} GPUs in {racks} racks do not make up a chain"
        raise ValueError(reason)
    levels = [Level(name="node", fanout=gpus)]
    if racks:
        levels.append(Level(name="rack", fanout=nodes // racks))
    names = tuple(NodeCell(node=f"{kind}-{index}") for index in range(nodes))
    return Chain(gpu=kind, levels=tuple(levels), node_level="node", nodes=names)
