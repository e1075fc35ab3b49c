"""Where a gang goes: best fit on one node, else the fewest nodes."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import NamedTuple

from skep.cells.nodes import NONE_COMING, Coming, NodeState
from skep.wire.facts import Member
from skep.wire.reasons import Reason
from skep.wire.spec import GANG_NODES_MAX, JobSpec


class Slot(NamedTuple):
    """A node and how many of the gang's workers it takes."""

    node: str
    workers: int


class Fit(NamedTuple):
    """A placement that exists, on GPUs of one type, and why it was chosen."""

    kind: str
    slots: tuple[Slot, ...]
    why: Reason


NOTHING: Mapping[str, Coming] = {}


def gpu_types(nodes: Mapping[str, NodeState], spec: JobSpec) -> list[str]:
    """Return the GPU types the job may run on, of those the cluster has."""
    if spec.resources.gpu_type is not None:
        return [spec.resources.gpu_type]
    return sorted({gpu.type for node in nodes.values() for gpu in node.joined.gpus})


def fit(
    nodes: Mapping[str, NodeState],
    spec: JobSpec,
    kinds: list[str],
    coming: Mapping[str, Coming] = NOTHING,
) -> Fit | None:
    """Return where the gang fits, or None.

    `coming` adds, by node, what is about to come free. A gang that fits one node goes to the one
    it fills most; ties go to the first in name order. Otherwise it takes the fewest nodes, its
    last part again where it fits most tightly. A gang is never mixed over GPU types: its slowest
    rank would set the pace of all.
    """
    for kind in kinds:
        room = _room(nodes, spec, kind, coming)
        single = [slot for slot in room if slot.workers >= spec.resources.workers]
        if single:
            best = min(single, key=lambda slot: (_free(nodes, slot.node, kind, coming), slot.node))
            whole = Slot(best.node, spec.resources.workers)
            return Fit(kind, (whole,), Reason.BEST_FIT_ONE_NODE)
    if spec.resources.topology is not None and spec.resources.topology.hard:
        return None
    for kind in kinds:
        slots = _fewest(nodes, _room(nodes, spec, kind, coming), spec, kind, coming)
        if slots:
            return Fit(kind, slots, Reason.FEWEST_NODES)
    return None


def holds(
    nodes: Mapping[str, NodeState], spec: JobSpec, found: Fit, coming: Mapping[str, Coming]
) -> bool:
    """Return whether a placement fits with no more than this coming free."""
    return all(
        nodes[slot.node].workers(found.kind, spec.resources, coming.get(slot.node, NONE_COMING))
        >= slot.workers
        for slot in found.slots
    )


def possible(nodes: Mapping[str, NodeState], spec: JobSpec, kinds: list[str]) -> bool:
    """Return whether the gang would fit the usable nodes if nothing else ran there."""
    wanted = spec.resources
    tied = wanted.topology is not None and wanted.topology.hard
    for kind in kinds:
        room = [node.workers_at_most(kind, wanted) for node in nodes.values() if node.usable]
        if sum(nlargest(1 if tied else GANG_NODES_MAX, room)) >= wanted.workers:
            return True
    return False


def contended(nodes: Mapping[str, NodeState], spec: JobSpec, kinds: list[str]) -> list[str]:
    """Return the GPU types whose jobs could take what a waiting gang waits for.

    Those it may use; and if its workers need CPUs or memory, those on the same nodes as well.
    """
    if not (spec.resources.cpus or spec.resources.memory):
        return kinds
    shared = dict.fromkeys(kinds)
    for node in nodes.values():
        if any(kind in node.total for kind in kinds):
            shared.update(dict.fromkeys(node.total))
    return sorted(shared)


def members(nodes: Mapping[str, NodeState], spec: JobSpec, found: Fit) -> tuple[Member, ...]:
    """Return the gang's members: the lowest free GPUs of each chosen node, ranks in node order."""
    made: list[Member] = []
    rank = 0
    gpus = spec.resources.gpus
    for slot in found.slots:
        free = nodes[slot.node].free[found.kind]
        devices = tuple(tuple(free[i * gpus : (i + 1) * gpus]) for i in range(slot.workers))
        assert all(len(rank_devices) == gpus for rank_devices in devices), slot
        identity = nodes[slot.node].joined.identity
        made.append(Member(node=slot.node, identity=identity, first_rank=rank, devices=devices))
        rank += slot.workers
    return tuple(made)


def _room(
    nodes: Mapping[str, NodeState],
    spec: JobSpec,
    kind: str,
    coming: Mapping[str, Coming],
) -> list[Slot]:
    room = []
    for name, node in nodes.items():
        if node.usable:
            workers = node.workers(kind, spec.resources, coming.get(name, NONE_COMING))
            if workers:
                room.append(Slot(name, workers))
    return room


def _free(
    nodes: Mapping[str, NodeState], name: str, kind: str, coming: Mapping[str, Coming]
) -> int:
    return len(nodes[name].free[kind]) + coming.get(name, NONE_COMING).gpus.get(kind, 0)


def _fewest(
    nodes: Mapping[str, NodeState],
    room: list[Slot],
    spec: JobSpec,
    kind: str,
    coming: Mapping[str, Coming],
) -> tuple[Slot, ...]:
    """Return the fewest nodes that hold the gang, or an empty tuple if more than it may span."""
    left = spec.resources.workers
    if sum(slot.workers for slot in room) < left:
        return ()
    chosen: list[Slot] = []
    rest = sorted(room, key=lambda slot: (-slot.workers, slot.node))
    while len(chosen) < GANG_NODES_MAX and not (
        closing := [slot for slot in rest if slot.workers >= left]
    ):
        taken = rest.pop(0)
        chosen.append(taken)
        left -= taken.workers
    if len(chosen) == GANG_NODES_MAX:
        return ()
    last = min(closing, key=lambda s: (_free(nodes, s.node, kind, coming), s.node))
    return (*chosen, Slot(last.node, left))
