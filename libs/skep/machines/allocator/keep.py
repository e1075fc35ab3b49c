"""The allocator's whole state as a few facts, and back: recovery need not read all of history.

What is kept stands for every fact recorded so far. It is a copy beside the log, never instead of
it: whoever cannot read it replays the log. So its form may change with any version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from skep.cells.nodes import Holding, NodeState
from skep.cells.snapshot import CellsSnapshot, restore_cells, take_snapshot
from skep.machines.allocator import cellwork, watch
from skep.machines.allocator.jobs import JobState, State
from skep.machines.allocator.lately import Lately
from skep.machines.allocator.suspects import Suspicion
from skep.machines.allocator.tries import Cooling, Tries, raise_rules
from skep.units import Instant
from skep.wire.cluster import Cluster
from skep.wire.facts import CellsAlarm
from skep.wire.node import NodeJoined

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine


PIECE = 200
"""Names in one piece of what is kept of trials."""
INSTANTS = 10_000
"""After so many instants a piece is full: 240 KB with the most of its last name."""


class AllocatorKept(msgspec.Struct, frozen=True, kw_only=True, tag="allocator-kept"):
    """Everything but nodes and jobs. Comes first. What grows with jobs and VCs is in pieces."""

    epoch: int
    order: int
    last_queued: int
    asked: Cluster
    queues: tuple[tuple[str, bool], ...]
    alarms: tuple[CellsAlarm, ...] = ()
    suspicion: Suspicion = msgspec.field(default_factory=Suspicion)
    last_asked: int = 0
    served: dict[str, list[int]] = {}
    tries: Tries = msgspec.field(default_factory=Tries)
    lately: Lately = msgspec.field(default_factory=Lately)
    rules: int = 1
    unstated: bool = False


class TriedKept(msgspec.Struct, frozen=True, kw_only=True, tag="tried-kept"):
    """A part of `Tries` and `Lately`, as there."""

    begun: dict[str, list[Instant]] = {}
    solo: dict[str, int] = {}
    cooling: dict[str, dict[str, Cooling]] = {}
    pauses: dict[str, list[int]] = {}


class NodeKept(msgspec.Struct, frozen=True, kw_only=True, tag="node-kept"):
    """A node with everything it holds; attempts are (job, attempt) with what belongs to them."""

    joined: NodeJoined
    drained: bool
    lost: bool
    clearing: int
    next_port: int
    quarantined: tuple[int, ...]
    holdings: tuple[tuple[str, int, Holding], ...]
    ghosts: tuple[tuple[str, int, int], ...]
    open_orders: tuple[tuple[str, int, int], ...]


class JobKept(msgspec.Struct, frozen=True, tag="job-kept"):
    """An unfinished job. They come in the order of their arrival."""

    job: JobState


class PlacedKept(msgspec.Struct, frozen=True, kw_only=True, tag="placed-kept"):
    """Jobs that hold or claim GPUs or are set aside, in the order of it. Comes last."""

    jobs: tuple[str, ...]
    parked: tuple[str, ...]
    reserved: tuple[str, ...]
    borrowed: tuple[str, ...]
    away: tuple[str, ...] = ()


Kept = AllocatorKept | TriedKept | CellsSnapshot | NodeKept | JobKept | PlacedKept


def keep(machine: AllocatorMachine) -> Iterator[Kept]:
    """Yield what `restore` makes the same machine from."""
    yield AllocatorKept(
        epoch=machine.epoch,
        order=machine.order,
        last_queued=machine.last_queued,
        asked=machine.asked,
        queues=tuple(machine.queues),
        alarms=tuple(machine.alarms.values()),
        suspicion=machine.suspicion,
        last_asked=machine.last_asked,
        served=machine.served,
        tries=msgspec.structs.replace(machine.tries, begun={}, solo={}, cooling={}),
        lately=msgspec.structs.replace(machine.lately, pauses={}),
        rules=machine.rules,
        unstated=machine.unstated,
    )
    yield from _tried(machine)
    yield take_snapshot(machine.cells)
    for node in machine.nodes.values():
        yield _node(node)
    for job in machine.jobs.values():
        yield JobKept(job)
    yield PlacedKept(
        jobs=tuple(machine.placed),
        parked=tuple(machine.parked),
        reserved=tuple(machine.reserved),
        borrowed=tuple(machine.borrowed),
        away=tuple(machine.away),
    )


def _tried(machine: AllocatorMachine) -> Iterator[TriedKept]:
    tries = machine.tries
    for begun in _begun(tries.begun):
        yield TriedKept(begun=begun)
    for each in _pieces(tries.solo, PIECE):
        yield TriedKept(solo=each)
    for each in _pieces(tries.cooling, 1):
        yield TriedKept(cooling=each)
    for each in _pieces(machine.lately.pauses, PIECE):
        yield TriedKept(pauses=each)


def _begun(whole: Mapping[str, list[Instant]]) -> Iterator[dict[str, list[Instant]]]:
    piece, instants = dict[str, list[Instant]](), 0
    for name, begun in whole.items():
        piece[name] = begun
        instants += len(begun)
        if instants >= INSTANTS or len(piece) >= PIECE:
            yield piece
            piece, instants = {}, 0
    if piece:
        yield piece


def _pieces(whole: Mapping[str, Any], most: int) -> Iterator[dict[str, Any]]:
    rest = iter(whole.items())
    while piece := dict(islice(rest, most)):
        yield piece


def _node(node: NodeState) -> NodeKept:
    return NodeKept(
        joined=node.joined,
        drained=node.drained,
        lost=node.lost,
        clearing=node.clearing,
        next_port=node.next_port,
        quarantined=tuple(node.quarantined),
        holdings=tuple((*attempt, holding) for attempt, holding in node.holdings.items()),
        ghosts=tuple((*attempt, order) for attempt, order in node.ghosts.items()),
        open_orders=tuple((*attempt, order) for attempt, order in node.open_orders.items()),
    )


def restore(machine: AllocatorMachine, kept: Kept) -> None:
    """Take over one piece of what was kept, in the order in which it was."""
    match kept:
        case AllocatorKept():
            machine.epoch, machine.order = kept.epoch, kept.order
            machine.rules, machine.unstated = kept.rules, kept.unstated
            machine.last_queued, machine.asked = kept.last_queued, kept.asked
            machine.last_asked, machine.served = kept.last_asked, kept.served
            machine.tries, machine.lately = kept.tries, kept.lately
            for vc, opportunistic in kept.queues:
                machine.queue_of(vc, opportunistic=opportunistic)
            machine.suspicion = kept.suspicion
            for alarm in kept.alarms:
                watch.apply(machine, alarm)
        case TriedKept():
            machine.tries.begun.update(kept.begun)
            machine.tries.solo.update(kept.solo)
            machine.tries.cooling.update(kept.cooling)
            if machine.rules > 1:
                raise_rules(machine.tries)  # A snapshot may name them as earlier rules did.
            machine.lately.pauses.update(kept.pauses)
        case CellsSnapshot():
            machine.cells = restore_cells(kept)
            cellwork.follow_rules(machine, machine.rules)
        case NodeKept():
            machine.nodes[kept.joined.node] = _restored(kept)
        case JobKept():
            job = kept.job
            if not job.since:  # Kept by a program that did not count service.
                job.since = job.ran_at or job.submitted_at
                job.waiting_since, job.began_at = job.submitted_at, job.ran_at
            machine.jobs[job.job] = job
            if job.state is State.QUEUED:
                machine.queue(job).add(job.entry)
        case PlacedKept():
            machine.placed = {name: machine.jobs[name] for name in kept.jobs}
            machine.parked = {name: machine.jobs[name] for name in kept.parked}
            for job in machine.parked.values():
                machine.queue(job).remove(job.entry)
            machine.reserved = {name: machine.jobs[name] for name in kept.reserved}
            machine.borrowed = {name: machine.jobs[name] for name in kept.borrowed}
            machine.away = {name: machine.jobs[name] for name in kept.away}


def _restored(kept: NodeKept) -> NodeState:
    node = NodeState(kept.joined)
    for job, attempt, holding in kept.holdings:
        node.holdings[job, attempt] = holding
    node.refresh(kept.joined)
    node.drained, node.lost, node.clearing = kept.drained, kept.lost, kept.clearing
    node.next_port = kept.next_port
    node.quarantined = dict.fromkeys(kept.quarantined)
    node.ghosts = {(job, attempt): order for job, attempt, order in kept.ghosts}
    node.open_orders = {(job, attempt): order for job, attempt, order in kept.open_orders}
    return node
