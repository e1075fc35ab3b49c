"""What a VC owns, as parts of nodes: the boxes into which its promises are packed."""

from __future__ import annotations

from skep.cells.levels import cell_gpus, gpus_per_node
from skep.wire.cluster import Cluster

Kind = tuple[str, str]
"""A type of GPU, and the pinned cell in which the GPUs are (empty: in none)."""


def own_parts(cluster: Cluster, vc: str) -> dict[Kind, tuple[int, ...]]:
    """Return the GPUs of each part of a node that a VC owns, the largest first.

    A cell above a node is its nodes; a cell within one is a part of its own, for a worker is not
    placed across two cells. What a VC is to have in GPUs (`gpus`) has no cells yet.

    Args:
        cluster: The cells in force.
        vc: The VC.
    """
    parts: dict[Kind, list[int]] = {}
    entry = cluster.vcs.get(vc)
    if entry is None:
        return {}
    owned = [("", quota.chain, quota.level, quota.count) for quota in entry.cells]
    for name in entry.pinned:
        pin = cluster.pins[name]
        owned.append((name, pin.chain, pin.level, 1))
    for pin_name, chain_name, level, count in owned:
        chain = cluster.chains[chain_name]
        gpus, node = cell_gpus(chain, level), gpus_per_node(chain)
        whole, size = max(gpus // node, 1), min(gpus, node)
        parts.setdefault((chain.gpu, pin_name), []).extend([size] * (whole * count))
    return {kind: tuple(sorted(sizes, reverse=True)) for kind, sizes in parts.items()}


def spare_nodes(cluster: Cluster, chain: str) -> int:
    """Return how many nodes of a chain no VC owns: they bear a loss first."""
    each = cluster.chains[chain]
    node, owned = gpus_per_node(each), 0
    for entry in cluster.vcs.values():
        owned += sum(q.count * cell_gpus(each, q.level) for q in entry.cells if q.chain == chain)
        pins = [cluster.pins[name] for name in entry.pinned]
        owned += sum(cell_gpus(each, pin.level) for pin in pins if pin.chain == chain)
    return (len(each.nodes) * node - owned) // node
