"""What facts about a change of a running attempt change.

    JobChanging --MemberAnswered of every node--> JobChanging (the next round) | JobChanged

One change of an attempt is open at a time. The latest request waits for its end (`JobState.asked`)
and overtakes the one that waited before. Whatever ends the attempt ends its change.
"""

from __future__ import annotations

import msgspec

from skep import ids
from skep.ledger import move_costs, pairs, return_facts, sharing, size_facts
from skep.ledger.job_state import JobState, OpenChange, Part, Phase, State
from skep.ledger.state import ClusterState
from skep.units import Instant
from skep.wire.changes import (
    AskOver,
    AskTaken,
    ChangeFact,
    Goal,
    GpusRegained,
    JobChanged,
    JobChanging,
    JobPrioritised,
    MemberAnswered,
    MemberLearned,
    Result,
)
from skep.wire.commands import Move, Resize, Resume, Share, Suspend
from skep.wire.reasons import Reason

# --- facts ---------------------------------------------------------------------------------------


def apply(state: ClusterState, fact: ChangeFact) -> None:
    """Take over one fact."""
    if isinstance(fact, AskOver):
        _apply_over(state, fact)
        return
    job = state.jobs[fact.job]
    match fact:
        case AskTaken():
            state.last_asked = max(state.last_asked, fact.number)
            job.asked = fact
        case JobPrioritised():
            _apply_prioritised(state, job, fact)
        case MemberLearned() if job.successor and job.successor.attempt == fact.attempt:
            job.successor.learned = {**job.successor.learned, fact.node: fact}
        case MemberLearned():
            job.learned = {**job.learned, fact.node: fact}
            if job.known:
                job.sizes = _sizes(job)
                job.gives_back = "release" in job.can or "checkpoint" in job.can
        case JobChanging():
            _apply_changing(state, job, fact)
        case MemberAnswered():
            _apply_answered(state, job, fact)
        case JobChanged():
            _apply_changed(state, job, fact)
        case GpusRegained():
            return_facts.apply_regained(state, job, fact)


def _sizes(job: JobState) -> tuple[int, ...]:
    """Return the sizes that all parts of an attempt offer, of those parts that name some.

    If there is none, that is its present size: none at all would mean each that its spec allows.
    """
    named = [sizes for sizes in (job.learned[name].sizes for name in job.live) if sizes]
    if not named:
        return ()
    return tuple(sorted(set(named[0]).intersection(*named))) or (job.size,)


def forget(state: ClusterState, job: JobState) -> None:
    """Begin an attempt, or end one: nothing is known of it, and nothing under way."""
    job.learned, job.change, job.asked, job.successor = {}, None, None, None
    job.released, job.held, job.resized, job.served_by = False, None, 0, 0
    job.rebound, job.tied, job.stood_on = False, False, {}
    job.packed, job.told, job.mixed = None, (0.0, ()), False
    job.suspended_at, job.suspended_ns, job.stayed = Instant(0), 0, False
    job.warned = job.idle_tried = False
    state.note_away(job, away=False)


def _apply_over(state: ClusterState, fact: AskOver) -> None:
    state.last_asked = max(state.last_asked, fact.number)
    job = state.jobs.get(fact.job)
    if job is None:
        return
    if job.asked is not None and job.asked.number == fact.number:
        job.asked = None
    suspended = job.state is State.SUSPENDED and fact.result is Result.DONE
    if suspended and fact.ask.__struct_config__.tag == Goal.SUSPEND:
        job.held = Reason.REQUESTED  # Whatever it was suspended for: now its tenant wants it so.


def _apply_prioritised(state: ClusterState, job: JobState, fact: JobPrioritised) -> None:
    """Let a job wait at another place of its queue; one aside, or deferred, is in none."""
    assert job.state in (State.QUEUED, State.DEFERRED), job
    waits = job.state is State.QUEUED and job.job not in state.parked
    if waits:
        state.queue(job).remove(job.entry)
    job.spec = msgspec.structs.replace(job.spec, priority=fact.priority)
    if waits:
        state.queue(job).add(job.entry)
    state.delta.freed += 1  # What it could not have before its turn, it may have now.


def _apply_changing(state: ClusterState, job: JobState, fact: JobChanging) -> None:
    earlier = job.change
    job.step("JobChanging", Phase.UNDOING if fact.undoing else Phase.OPEN)
    asked = earlier.asked if earlier is not None else None
    if asked is None and job.asked is not None and job.asked.number == fact.ask:
        asked, job.asked = job.asked, None
    job.change = OpenChange(
        goal=fact.goal,
        change=fact.change,
        order=fact.order,
        why=fact.why,
        begun_at=earlier.begun_at if earlier is not None else fact.at,
        round=fact.round,
        undoing=fact.undoing,
        asked=asked,
        detail=fact.detail,
        answers=dict.fromkeys(fact.nodes),
        far=earlier.far if earlier is not None else 0,
        stops_at=_stops(earlier, fact),
    )
    if fact.why is Reason.UNPACKED:
        pairs.parted(state, job)
    if earlier is None and fact.why is Reason.PREEMPTED_BY_POLICY:
        going = max(0, fact.at - job.since) if job.state is State.RUNNING else 0
        job.owed, job.owed_at, job.owed_ran = fact.owed, fact.at, job.served + going
    state.order = fact.order
    if isinstance(fact.change, Resize) and not fact.change.servers:
        at = fact.change.at
        for name in (at,) if at else () if fact.change.prepare else fact.nodes:
            state.nodes[name].meet((job.job, job.attempt), fact.change.master_port)
    if isinstance(fact.change, Share):
        sharing.told(job, fact.change)
    job.warned = job.warned or fact.goal is Goal.WARN
    job.idle_tried = job.idle_tried or fact.why is Reason.IDLE
    for name in fact.nodes:
        if job.parts[name] is not Part.BOUND:  # Else it is to answer what begins it first.
            state.nodes[name].open_orders[job.job, job.attempt] = fact.order


def _stops(earlier: OpenChange | None, fact: JobChanging) -> Instant:
    """Return when ranks were first told to stop, by this or before; 0: they were not."""
    if earlier is not None and earlier.stops_at:
        return earlier.stops_at
    return fact.at if fact.nodes and isinstance(fact.change, Move | Suspend) else Instant(0)


def ran(state: ClusterState, job: JobState, name: str) -> None:
    """Note that a part runs: what began it is answered, and a change that awaited it is not."""
    orders, change = state.nodes[name].open_orders, job.change
    if job.state is State.BOUND:
        orders.pop((job.job, job.attempt), None)
    elif job.state is State.RUNNING and size_facts.came(state, job, name):
        if change is not None and change.answers.get(name, change) is None:
            orders[job.job, job.attempt] = change.order
        else:
            orders.pop((job.job, job.attempt), None)


def _apply_answered(state: ClusterState, job: JobState, fact: MemberAnswered) -> None:
    job.step("MemberAnswered", job.phase)
    change, attempt = job.change, (job.job, job.attempt)
    assert change is not None, fact
    change.answers[fact.node] = fact
    change.far = max(change.far, fact.step)
    orders = state.nodes[fact.node].open_orders
    if orders.get(attempt) == fact.order:
        del orders[attempt]


def _apply_changed(state: ClusterState, job: JobState, fact: JobChanged) -> None:
    job.step("JobChanged", Phase.NONE)
    change = job.change
    assert change is not None, fact
    for name, answer in change.answers.items():
        # What was told and never answered is superseded by whatever is told next.
        orders = state.nodes[name].open_orders
        if answer is None and orders.get((job.job, job.attempt)) == change.order:
            del orders[job.job, job.attempt]
    move_costs.changed(state, job, change, fact)
    job.change = None
    state.delta.freed += 1
    if fact.result is not Result.DONE:
        if fact.goal is Goal.RESUME and fact.released and not job.released:
            return_facts.apply_refused(state, job)
            _release(state, job)
        return
    if fact.released and job.job not in state.borrowed:
        job.waiting_since = fact.at
    if fact.goal is Goal.SUSPEND:
        if job.state is State.RUNNING:
            job.stands(fact.at, borrows=job.job in state.borrowed)
            job.move("JobChanged")
            job.suspended_at, job.stayed = fact.at, True
            job.held = fact.why
        if fact.released and not job.released:
            _release(state, job)
    elif job.state is State.SUSPENDED and isinstance(change.change, Resume):
        job.move("JobChanged")
        job.suspended_ns += max(0, fact.at - job.suspended_at)
        job.goes(fact.at, borrows=job.job in state.borrowed)
        job.held, job.stood_on = None, {}
        job.idle_tried = job.idle_tried and fact.why is Reason.IDLE
    elif fact.goal is Goal.MIGRATE and fact.released:
        _release(state, job)
    elif isinstance(change.change, Resize):
        job.resized, job.served_by = change.change.world, change.change.servers


def _release(state: ClusterState, job: JobState) -> None:
    """Free the GPUs of a suspended attempt for the next one."""
    name, attempt = ids.attempt_id(job.job, job.attempt), (job.job, job.attempt)
    state.delta.claims += tuple(map(ids.job_of, state.cells.claimers(name)))
    others = sharing.partners(state, job.live, attempt)
    state.cells.release(name)
    for node in job.live:
        state.nodes[node].suspend(attempt, suspended=True)
    job.released, job.packed, job.stayed = True, None, False
    state.note_away(job, away=True)
    state.note_borrowed(job)
    sharing.parted(state, others)
    state.delta.freed += 1
