"""Nodes and GPUs as the API answers them: pure functions of what is in memory.

`vc` is the tenant who asks, empty for an operator. A tenant sees which GPUs are taken, but of
other tenants' jobs not which.
"""

from __future__ import annotations

from typing import Any

from skep.units import Instant
from skep_services.gateway.fold import Fold
from skep_services.gateway.live import Live
from skep_services.gateway.rows import Node


def nodes_view(fold: Fold, live: Live, now: Instant, vc: str) -> list[dict[str, Any]]:
    """Return every node the allocator uses, by name."""
    return [_node(node, live, now, vc) for node in _in_use(fold)]


def node_state(node: Node, live: Live, now: Instant) -> str:
    """Return `lost`, `drained`, `clearing`, `silent` or `up`."""
    if node.lost:
        return "lost"
    if node.clearing:
        return "clearing"
    if node.drained:
        return "drained"
    return "silent" if live.silent(node.node, now) else "up"


def gpus_view(fold: Fold, live: Live, vc: str) -> list[dict[str, Any]]:
    """Return every GPU by node. `utilisation` is thousandths, None if nobody measures it."""
    rows = []
    for node in _in_use(fold):
        assert node.joined is not None
        for gpu in node.joined.gpus:
            taken = node.taken.get(gpu.index)
            mine = taken is not None and vc in {"", taken.vc}
            rows.append(
                {
                    "node": node.node,
                    "index": gpu.index,
                    "type": gpu.type,
                    "memory": gpu.memory,
                    "taken": taken is not None,
                    "job": taken.job if taken is not None and mine else None,
                    "vc": taken.vc if taken is not None and mine else None,
                    "rank": taken.rank if taken is not None and mine else None,
                    "borrowed": taken is not None and not taken.level,
                    "beside": [one.job for one in node.guests.get(gpu.index, ())] if mine else [],
                    "quarantined": gpu.index in node.quarantined,
                    "utilisation": live.utilisation.get(taken.job)
                    if taken is not None and mine
                    else None,
                }
            )
    return rows


def free_gpus(node: Node, gpu_type: str | None) -> int:
    """Return how many GPUs of a type (None: any) nobody holds on a node."""
    if node.joined is None:
        return 0
    return sum(
        gpu.index not in node.taken
        for gpu in node.joined.gpus
        if gpu_type is None or gpu.type == gpu_type
    )


def _in_use(fold: Fold) -> list[Node]:
    return [node for _, node in sorted(fold.nodes.items()) if node.joined is not None]


def _node(node: Node, live: Live, now: Instant, vc: str) -> dict[str, Any]:
    joined = node.joined
    assert joined is not None
    same_agent = node.heard_identity == joined.identity
    holders = {taken.job: taken.vc for device in node.taken for taken in node.on(device)}
    return {
        "node": node.node,
        "address": joined.address,
        "state": node_state(node, live, now),
        "gpus": len(joined.gpus),
        "free": free_gpus(node, None),
        "gpu_type": "+".join(dict.fromkeys(gpu.type for gpu in joined.gpus)),
        "cpus": joined.cpus,
        "memory": joined.memory,
        "last_heard_at": live.heard.get(node.node),
        "incarnation": max(joined.incarnation, node.heard_incarnation if same_agent else 0),
        "jobs": [job for job, holder in holders.items() if vc in {"", holder}],
    }
