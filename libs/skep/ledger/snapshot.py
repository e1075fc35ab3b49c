"""The allocator's whole state as a few facts, and back: recovery need not read all of history.

What is kept stands for every fact recorded so far. It is a copy beside the log, never instead of
it: a program that cannot read it replays the log. So its form may change with any version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from skep.cells.nodes import Holding, NodeState
from skep.cells.snapshot import CellsSnapshot, restore_cells, take_snapshot
from skep.ledger import cell_facts, deferral_facts, people, pipelines, window_facts
from skep.ledger.accounts import Account
from skep.ledger.job_state import ArrayState, JobState, State
from skep.ledger.records import Cooling, JobOutcome, MoveCosts, Probe, Suspicion, Tries
from skep.ledger.state import ClusterState, apply_alarm
from skep.ledger.trial_facts import raise_rules
from skep.units import Instant
from skep.wire.cluster import Cluster
from skep.wire.facts import CellsAlarm
from skep.wire.following import AdviceFollowed
from skep.wire.held_up import GangHeldUp, HeldUp, PlaceBlamed, Sign
from skep.wire.node import NodeJoined
from skep.wire.windows import Window

PIECE = 200
"""Names in one piece of what is kept of trials."""
ENDS = 2000
"""Ends of jobs in one piece: 200 KB where names are longest."""
HELD_UP = 20
"""Nodes, or jobs, in one piece of what holds gangs up: 16 KB of each at most."""
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
    lately: MoveCosts = msgspec.field(default_factory=MoveCosts)
    rules: int = 1
    unstated: bool = False


class TriedKept(msgspec.Struct, frozen=True, kw_only=True, tag="tried-kept"):
    """A part of `Tries` and `MoveCosts`, as there."""

    begun: dict[str, list[Instant]] = {}
    solo: dict[str, int] = {}
    cooling: dict[str, dict[str, Cooling]] = {}
    pauses: dict[str, list[int]] = {}


class ProbesKept(msgspec.Struct, frozen=True, kw_only=True, tag="probes-kept"):
    """The probes of one VC."""

    vc: str
    probes: list[Probe]


class FollowedKept(msgspec.Struct, frozen=True, kw_only=True, tag="followed-kept"):
    """Whether one VC with a model follows it."""

    said: AdviceFollowed


class HeldUpKept(msgspec.Struct, frozen=True, kw_only=True, tag="held-up-kept"):
    """A part of `HeldUp`, as there."""

    now: dict[str, dict[int, GangHeldUp]] = {}
    signs: dict[str, dict[str, Sign]] = {}
    blamed: dict[str, PlaceBlamed] = {}


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


class PeopleKept(msgspec.Struct, frozen=True, kw_only=True, tag="people-kept"):
    """Accounts of people of one VC. `now` is the latest time that a fact said."""

    vc: str
    now: Instant
    accounts: dict[str, Account]


class WindowsKept(msgspec.Struct, frozen=True, kw_only=True, tag="windows-kept"):
    """A window, and whether it is open."""

    window: Window
    opened: bool


class EndsKept(msgspec.Struct, frozen=True, kw_only=True, tag="ends-kept"):
    """How jobs ended, oldest first."""

    ends: dict[str, JobOutcome]


class ArrayStateKept(msgspec.Struct, frozen=True, tag="array-state-kept"):
    """An array that has not ended."""

    array: ArrayState


class PlacedKept(msgspec.Struct, frozen=True, kw_only=True, tag="placed-kept"):
    """Jobs that hold or claim GPUs or are set aside, in the order of it. Comes last."""

    jobs: tuple[str, ...]
    parked: tuple[str, ...]
    reserved: tuple[str, ...]
    borrowed: tuple[str, ...]
    away: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()


Kept = (
    AllocatorKept
    | TriedKept
    | ProbesKept
    | FollowedKept
    | HeldUpKept
    | CellsSnapshot
    | NodeKept
    | JobKept
    | PeopleKept
    | WindowsKept
    | EndsKept
    | ArrayStateKept
    | PlacedKept
)


def keep(state: ClusterState) -> Iterator[Kept]:
    """Yield the pieces from which `restore` makes the same state, in that order.

    The pieces share structures with the state: encode each before the next fact.
    """
    yield AllocatorKept(
        epoch=state.epoch,
        order=state.order,
        last_queued=state.last_queued,
        asked=state.asked,
        queues=tuple(state.queues),
        alarms=tuple(state.alarms.values()),
        suspicion=state.suspicion,
        last_asked=state.last_asked,
        served=state.served,
        tries=msgspec.structs.replace(state.tries, begun={}, solo={}, cooling={}),
        lately=msgspec.structs.replace(state.move_costs, pauses={}),
        rules=state.rules,
        unstated=state.unstated,
    )
    yield from _tried(state)
    yield from _held_up(state.held_up)
    for vc, probes in state.probes.of_vc.items():
        yield ProbesKept(vc=vc, probes=probes)
    for said in state.followed.values():
        yield FollowedKept(said=said)
    yield take_snapshot(state.cells)
    for node in state.nodes.values():
        yield _node(node)
    for job in state.jobs.values():
        yield JobKept(job)
    for vc, of_vc in state.people.of_vc.items():
        yield PeopleKept(vc=vc, now=state.people.now, accounts={})
        for accounts in _pieces(of_vc.accounts, PIECE):
            yield PeopleKept(vc=vc, now=state.people.now, accounts=accounts)
    for name, window in state.windows.items():
        yield WindowsKept(window=window, opened=name in state.opened)
    for ends in _pieces(state.ends, ENDS):
        yield EndsKept(ends=ends)
    for array in state.arrays.values():
        yield ArrayStateKept(array)
    yield PlacedKept(
        jobs=tuple(state.placed),
        parked=tuple(state.parked),
        reserved=tuple(state.reserved),
        borrowed=tuple(state.borrowed),
        away=tuple(state.away),
        deferred=tuple(state.deferred),
    )


def _held_up(known: HeldUp) -> Iterator[Kept]:
    for now in _pieces(known.now, HELD_UP):
        yield HeldUpKept(now=now)
    for signs in _pieces(known.signs, HELD_UP):
        yield HeldUpKept(signs=signs)
    for blamed in _pieces(known.blamed, PIECE):
        yield HeldUpKept(blamed=blamed)


def _tried(state: ClusterState) -> Iterator[TriedKept]:
    tries = state.tries
    for begun in _begun(tries.begun):
        yield TriedKept(begun=begun)
    for each in _pieces(tries.solo, PIECE):
        yield TriedKept(solo=each)
    for each in _pieces(tries.cooling, 1):
        yield TriedKept(cooling=each)
    for each in _pieces(state.move_costs.pauses, PIECE):
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


def restore(state: ClusterState, kept: Kept) -> None:
    """Take over one piece of what was kept, in the order in which it was."""
    match kept:
        case AllocatorKept():
            state.epoch, state.order = kept.epoch, kept.order
            state.rules, state.unstated = kept.rules, kept.unstated
            state.last_queued, state.asked = kept.last_queued, kept.asked
            state.last_asked, state.served = kept.last_asked, kept.served
            state.tries, state.move_costs = kept.tries, kept.lately
            for vc, opportunistic in kept.queues:
                state.queue_of(vc, opportunistic=opportunistic)
            state.suspicion = kept.suspicion
            for alarm in kept.alarms:
                apply_alarm(state, alarm)
        case TriedKept():
            _restore_tried(state, kept)
        case ProbesKept():
            state.probes.of_vc[kept.vc] = kept.probes
            state.probes.open.update({each.trial: each for each in kept.probes if not each.ended})
        case FollowedKept(said=said):
            state.followed[said.vc] = said
        case HeldUpKept():
            state.held_up.now.update(kept.now)
            state.held_up.signs.update(kept.signs)
            state.held_up.blamed.update(kept.blamed)
        case CellsSnapshot():
            state.cells = restore_cells(kept)
            cell_facts.follow_rules(state, state.rules)
            people.install(state)
        case NodeKept():
            state.nodes[kept.joined.node] = _restored(kept)
        case JobKept():
            _take_job(state, kept.job)
        case PeopleKept():
            people.kept(state, kept.vc, kept.now, kept.accounts)
        case WindowsKept():
            window_facts.kept(state, kept.window, opened=kept.opened)
        case EndsKept() | ArrayStateKept():
            _take_awaited(state, kept)
        case PlacedKept():
            _place(state, kept)


def _restore_tried(state: ClusterState, kept: TriedKept) -> None:
    state.tries.begun.update(kept.begun)
    state.tries.solo.update(kept.solo)
    state.tries.cooling.update(kept.cooling)
    if state.rules > 1:
        raise_rules(state.tries)  # A snapshot may name them as earlier rules did.
    state.move_costs.pauses.update(kept.pauses)


def _take_awaited(state: ClusterState, kept: EndsKept | ArrayStateKept) -> None:
    """Take over ends, or an unfinished array: what others wait for beside jobs."""
    if isinstance(kept, EndsKept):
        state.ends.update(kept.ends)
    else:
        state.arrays[kept.array.array] = kept.array


def _take_job(state: ClusterState, job: JobState) -> None:
    """Take over an unfinished job."""
    if not job.since:  # Kept by a program that did not count service.
        job.since = job.ran_at or job.submitted_at
        job.waiting_since, job.began_at = job.submitted_at, job.ran_at
    state.jobs[job.job] = job
    state.note_sharer(job, placed=False)
    pipelines.take(state, job)
    if job.state is State.QUEUED:
        state.queue(job).add(job.entry)


def _place(state: ClusterState, kept: PlacedKept) -> None:
    """Take over which jobs hold or claim GPUs, or are set aside."""
    state.placed = {name: state.jobs[name] for name in kept.jobs}
    for job in state.placed.values():
        state.note_sharer(job, placed=True)
    state.parked = {name: state.jobs[name] for name in kept.parked}
    for job in state.parked.values():
        state.queue(job).remove(job.entry)
    state.reserved = {name: state.jobs[name] for name in kept.reserved}
    for name in kept.borrowed:
        state.borrow(state.jobs[name])
    for name in kept.away:
        state.note_away(state.jobs[name], away=True)
    state.deferred = {name: state.jobs[name] for name in kept.deferred}
    for job in state.deferred.values():
        deferral_facts.index(state, job.job, job)
    for array in state.arrays.values():
        if array.deferral is not None:
            deferral_facts.index(state, array.array, array)
    people.restored(state)


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
