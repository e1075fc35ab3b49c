"""What a VC owns, as parts of nodes: the boxes into which its promises are packed."""

from __future__ import annotations

from typing import NamedTuple

from skep.cells.levels import cell_gpus, gpus_per_node
from skep.wire.cluster import Cluster


class Kind(NamedTuple):
    """Which of a VC's GPUs: a gang is on GPUs of one kind."""

    gpu_type: str
    pin: str = ""
    """The pinned cell in which they are; empty: in none."""
    chain: str = ""
    """Their chain if it is not the first one, by name, with GPUs of this type."""


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
        kind = _kind(cluster, chain_name, pin_name)
        parts.setdefault(kind, []).extend([size] * (whole * count))
    return {kind: tuple(sorted(sizes, reverse=True)) for kind, sizes in parts.items()}


def lost_parts(cluster: Cluster, vc: str, chain: str, nodes: int) -> tuple[Kind, frozenset[int]]:
    """Return which of a VC's parts it has to do without, as many as may be: their numbers.

    Which VC's cells are on the nodes that are left is not known, so each VC counts on the loss: of
    the largest parts that those nodes could hold, the last ones of a size. Pinned cells are left
    out, for most nodes are none of theirs.

    Args:
        cluster: The cells in force.
        vc: The VC.
        chain: A chain.
        nodes: How many fewer it has than its VCs own.
    """
    kind, gone = _kind(cluster, chain), list[int]()
    left = nodes * gpus_per_node(cluster.chains[chain])
    sizes = own_parts(cluster, vc).get(kind, ())
    for size, number in sorted(zip(sizes, range(len(sizes)), strict=True), reverse=True):
        if size <= left:
            left -= size
            gone.append(number)
    return kind, frozenset(gone)


def _kind(cluster: Cluster, chain: str, pin: str = "") -> Kind:
    gpu_type = cluster.chains[chain].gpu
    first = min(name for name, each in cluster.chains.items() if each.gpu == gpu_type)
    return Kind(gpu_type, pin, "" if chain == first else chain)


def spare_nodes(cluster: Cluster, chain: str) -> int:
    """Return how many nodes of a chain no VC owns: they bear a loss first."""
    each = cluster.chains[chain]
    node, owned = gpus_per_node(each), 0
    for entry in cluster.vcs.values():
        owned += sum(q.count * cell_gpus(each, q.level) for q in entry.cells if q.chain == chain)
        pins = [cluster.pins[name] for name in entry.pinned]
        owned += sum(cell_gpus(each, pin.level) for pin in pins if pin.chain == chain)
    return (len(each.nodes) * node - owned) // node
