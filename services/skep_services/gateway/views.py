"""Nodes and GPUs as the API answers them: pure functions of what is in memory.

`vc` is the tenant that asks, empty for an operator. A tenant sees which GPUs are taken, but of
other tenants' jobs not which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skep.cells.nodes import NodeState
from skep.ledger import held_up
from skep.ledger.state import ClusterState
from skep.units import Instant
from skep_services.gateway.callers import Only, covers
from skep_services.gateway.fold import Fold
from skep_services.gateway.holders import free_gpus, users
from skep_services.gateway.live import Live
from skep_services.gateway.texts import blamed_text, held_text

Removed = Callable[[str], bool]
"""Returns whether a node was taken out of the cluster."""


def nodes_view(
    fold: Fold, live: Live, now: Instant, vc: Only, removed: Removed
) -> list[dict[str, Any]]:
    """Return every node the allocator uses, by name."""
    return [_node(node, fold, live, now, vc) for node in in_use(fold, removed)]


def node_state(node: NodeState, live: Live, now: Instant) -> str:
    """Return `lost`, `drained`, `clearing`, `silent` or `up`."""
    if node.lost:
        return "lost"
    if node.clearing:
        return "clearing"
    if node.drained:
        return "drained"
    return "silent" if live.silent(node.joined.node, now) else "up"


def gpus_view(
    fold: Fold, live: Live, now: Instant, vc: Only, removed: Removed
) -> list[dict[str, Any]]:
    """Return every GPU by node. `utilisation` is thousandths, None if it is not measured."""
    rows = []
    for node in in_use(fold, removed):
        there = users(fold.state, node)
        for gpu in node.joined.gpus:
            first, *others = there.get(gpu.index, (None,))
            owner = _vc_of(fold, first.job) if first is not None else ""
            mine = first if covers(vc, owner) else None
            rows.append(
                {
                    "node": node.joined.node,
                    "index": gpu.index,
                    "type": gpu.type,
                    "memory": gpu.memory,
                    "uuid": gpu.uuid,
                    "taken": first is not None,
                    "job": mine.job if mine is not None else None,
                    "vc": owner if mine is not None else None,
                    "rank": mine.rank if mine is not None else None,
                    "borrowed": first is not None and not first.owns,
                    "beside": [one.job for one in others if one is not None] if mine else [],
                    "quarantined": gpu.index in node.quarantined,
                    "blamed": _blame_of(fold, now, vc, node.joined.node, gpu.index),
                    "utilisation": live.utilisation.get(mine.job) if mine is not None else None,
                }
            )
    return rows


def held_rows(state: ClusterState, job: str) -> list[dict[str, Any]]:
    """Return the ranks that hold a job's gang up."""
    return [
        {
            "rank": one.rank,
            "node": one.node,
            "devices": one.devices,
            "why": one.why,
            "since": one.at,
            "own_ns": one.own_ns,
            "usual_ns": one.usual_ns,
            "step_ns": one.step_ns,
            "slower_milli": one.slower_milli,
            "text": held_text(one),
        }
        for one in held_up.holding(state, job)
    ]


def _blame_of(fold: Fold, now: Instant, vc: Only, node: str, device: int = -1) -> str:
    """Return what a GPU, or without one a node and its GPUs, are blamed for; only to operators."""
    if vc != "":  # An empty tuple is a person without any VC.
        return ""
    found = held_up.blamed(fold.state, now).values()
    return "; ".join(
        blamed_text(each) for each in found if each.node == node and device in (-1, each.device)
    )


def _vc_of(fold: Fold, name: str) -> str:
    job = fold.find(name)
    return job.row.vc if job is not None else ""


def in_use(fold: Fold, removed: Removed) -> list[NodeState]:
    """Return the nodes by name, without those that were removed and count as lost: for good."""
    return [
        node for name, node in sorted(fold.state.nodes.items()) if not (node.lost and removed(name))
    ]


def _node(node: NodeState, fold: Fold, live: Live, now: Instant, vc: Only) -> dict[str, Any]:
    joined, heard = node.joined, fold.heard.get(node.joined.node)
    same_agent = heard is not None and heard.heard_identity == joined.identity
    there = users(fold.state, node)
    jobs = dict.fromkeys(user.job for device in sorted(there) for user in there[device])
    return {
        "node": joined.node,
        "address": joined.address,
        "state": node_state(node, live, now),
        "gpus": len(joined.gpus),
        "free": free_gpus(node, None),
        "gpu_type": "+".join(dict.fromkeys(gpu.type for gpu in joined.gpus)),
        "cpus": joined.cpus,
        "memory": joined.memory,
        "images": joined.images,
        "last_heard_at": live.heard.get(joined.node),
        "incarnation": max(
            joined.incarnation, heard.heard_incarnation if heard is not None and same_agent else 0
        ),
        "jobs": [job for job in jobs if covers(vc, _vc_of(fold, job))],
        "blamed": _blame_of(fold, now, vc, joined.node),
    }
