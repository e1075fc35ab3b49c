"""Successors of running attempts, as the facts tell it."""

from __future__ import annotations

from skep import ids
from skep.cells.holds import OPPORTUNISTIC, CellHold, Placement
from skep.ledger import attempts, sharing
from skep.ledger.job_state import JobState, Part, Successor
from skep.ledger.state import ClusterState
from skep.wire.facts import Member
from skep.wire.moves import (
    JobMoved,
    MoveFact,
    SuccessorBound,
    SuccessorDropped,
    SuccessorLoaded,
    SuccessorReady,
)


def apply(state: ClusterState, fact: MoveFact) -> None:
    """Take over one fact."""
    job = state.jobs[fact.job]
    match fact:
        case SuccessorBound():
            _apply_bound(state, job, fact)
        case SuccessorReady():
            assert job.successor is not None, fact
            job.successor.doors = {**job.successor.doors, fact.node: fact.doors}
            state.nodes[fact.node].open_orders.pop((fact.job, fact.attempt), None)
        case SuccessorLoaded():
            assert job.successor is not None, fact
            job.successor.loaded = {**job.successor.loaded, fact.node: fact.step}
        case JobMoved():
            _apply_moved(state, job, fact)
        case SuccessorDropped():
            assert job.successor is not None, fact
            _haunt(state, job.job, fact.attempt, job.successor.members, fact.order)
            job.successor = None


def _apply_bound(state: ClusterState, job: JobState, fact: SuccessorBound) -> None:
    spots = attempts.spots(state, fact.chain, fact.members)
    asked = attempts.request(job, fact.attempt, guaranteed=not job.spec.opportunistic)
    # As a victim it is given up: it is of no use while the job runs elsewhere.
    hold = CellHold(asked._replace(lazy=False), Placement(fact.chain, spots))
    if not spots[0].level:
        hold.priority = OPPORTUNISTIC
    state.cells.enter(hold)
    attempts.take(state, job, fact)
    state.order = fact.order
    job.spent = fact.attempt
    job.successor = Successor(
        attempt=fact.attempt,
        order=fact.order,
        members={member.node: member for member in fact.members},
        port=fact.master_port,
        bound_at=fact.at,
        chain=fact.chain,
        secret=fact.secret,
    )


def _apply_moved(state: ClusterState, job: JobState, fact: JobMoved) -> None:
    successor = job.successor
    assert successor is not None, fact
    left = {name: job.members[name] for name in job.live}
    _haunt(state, job.job, job.attempt, left, fact.order)
    job.attempt, job.order, job.port = successor.attempt, successor.order, successor.port
    job.members, job.chain = successor.members, successor.chain
    job.parts = dict.fromkeys(job.members, Part.RAN)
    job.gone, job.learned, job.successor = [], successor.learned, None
    job.waits, job.released = None, False  # It holds what its successor got.
    state.note_away(job, away=False)
    job.rebound, job.tied, job.stood_on = False, False, {}
    job.packed, job.told, job.mixed = None, (0.0, ()), False
    state.note_borrowed(job, fact.at)


def _haunt(
    state: ClusterState, name: str, attempt: int, members: dict[str, Member], order: int
) -> None:
    """Have what is left of an attempt be stopped: it holds its GPUs until that is confirmed."""
    state.order = order
    for node in members:
        state.nodes[node].ghosts[name, attempt] = order
        state.nodes[node].open_orders[name, attempt] = order
    sharing.give_back(state, ids.attempt_id(name, attempt))
