"""What a change of a running attempt is, as the facts tell it, and how it ends.

    JobChanging --MemberAnswered of every node--> JobChanging (the next round) | JobChanged

One change of an attempt is open at a time. The latest request waits for its end (`JobState.asked`)
and overtakes the one that waited before. Whatever ends the attempt ends its change. `changing`
decides; here is only what follows from decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from skep.cells.nodes import NodeState
from skep.machines.allocator import cellwork, lately, packs, pairs, resizes, returns
from skep.machines.allocator.jobs import JobState, OpenChange, Part, State
from skep.units import Instant
from skep.wire.changes import (
    AskOver,
    AskTaken,
    ChangeFact,
    Goal,
    GpusRegained,
    JobChanged,
    JobChanging,
    MemberAnswered,
    MemberLearned,
    Result,
)
from skep.wire.commands import ChangeJob, Checkpoint, Move, Resize, Resume, Share, Suspend
from skep.wire.reasons import Reason

if TYPE_CHECKING:
    from skep.machines.allocator.machine import AllocatorMachine

DEADLINES_MS = {
    Suspend: 30_000,
    Resume: 60_000,
    Checkpoint: 120_000,
    Move: 60_000,
    Resize: 300_000,
    Share: 30_000,
}
"""What an agent gives the job's own side, from when it takes the command. A suspension waits for
the mini-batch under way; state of some 100 GB is written or sent within the others. Ranks that join
a gang import and warm up, while the others train."""
PREEMPT_DEADLINE_MS = 15_000
"""A victim that does not reach a boundary in this time is stopped instead: somebody waits."""


def owed(machine: AllocatorMachine, job: JobState, node: NodeState, epoch: int) -> ChangeJob | None:
    """Return the change that a node has not answered, or None."""
    change, name = job.change, node.joined.node
    if change is None or change.answers.get(name, change) is not None:
        return None
    if job.parts.get(name) is not Part.RAN:
        return None
    told = change.change
    if isinstance(told, Resize) and not told.ranks:
        told = resizes.told_to(job.members[name], told)
    elif isinstance(told, Resume) and job.rebound:
        told = msgspec.structs.replace(told, ranks=returns.plans(job.members[name]))
    patience_ms = DEADLINES_MS[type(told)]
    if change.why in (Reason.PREEMPTED, Reason.PREEMPTED_BY_POLICY, Reason.TO_OWN_CELLS):
        patience_ms = min(patience_ms, PREEMPT_DEADLINE_MS)
    return ChangeJob(
        order=change.order,
        epoch=epoch,
        settled=node.settled(machine.order),
        node=name,
        identity=node.joined.identity,
        job=job.job,
        attempt=job.attempt,
        change=told,
        deadline_ms=patience_ms,
        trace=job.trace,
    )


def close(
    machine: AllocatorMachine,
    job: JobState,
    result: Result,
    why: Reason,
    now: Instant,
    *,
    released: bool = False,
    detail: str = "",
) -> None:
    """End the open change, and the request it follows from."""
    change = job.change
    assert change is not None, job
    told = [answer for answer in change.answers.values() if answer is not None]
    machine.record(
        JobChanged(
            job=job.job,
            attempt=job.attempt,
            goal=change.goal,
            result=result,
            why=why,
            at=now,
            released=released,
            detail=detail,
            trace=job.trace,
            step=min((one.step for one in told), default=0),
            pause_ns=max((one.pause_ns for one in told), default=0),
        )
    )
    for claimer in machine.cells.claimers(cellwork.holder(job.job, job.attempt)):
        machine.soft.ripe[cellwork.job_of(claimer)] = None  # It may have waited for this.
    if change.asked is not None:
        if change.why is Reason.UNPACKED and result is Result.UNDONE:
            result = Result.DONE  # It leaves in another way.
        over(machine, change.asked, result, now, None if result is Result.DONE else why, detail)


def number(job: JobState, why: Reason) -> int:
    """Return the number of the request that a change follows from; 0: of none."""
    return job.asked.number if job.asked is not None and why is Reason.REQUESTED else 0


def over(
    machine: AllocatorMachine,
    asked: AskTaken,
    result: Result,
    now: Instant,
    why: Reason | None = None,
    detail: str = "",
) -> None:
    """Say what came of a request."""
    machine.record(
        AskOver(
            job=asked.job,
            number=asked.number,
            ask=asked.ask,
            result=result,
            why=why,
            detail=detail,
            at=now,
        )
    )


def overtake(machine: AllocatorMachine, job: JobState, now: Instant) -> None:
    """End what was to be changed of an attempt, as the attempt itself ends."""
    if job.change is not None:
        close(machine, job, Result.OVERTAKEN, Reason.OVERTAKEN, now)
    if job.asked is not None:
        over(machine, job.asked, Result.OVERTAKEN, now, Reason.OVERTAKEN)


# --- facts ---------------------------------------------------------------------------------------


def apply(machine: AllocatorMachine, fact: ChangeFact) -> None:
    """Take over one fact."""
    if isinstance(fact, AskOver):
        _apply_over(machine, fact)
        return
    job = machine.jobs[fact.job]
    match fact:
        case AskTaken():
            machine.last_asked = max(machine.last_asked, fact.number)
            job.asked = fact
        case MemberLearned() if job.successor and job.successor.attempt == fact.attempt:
            job.successor.learned = {**job.successor.learned, fact.node: fact}
        case MemberLearned():
            job.learned = {**job.learned, fact.node: fact}
            if job.known:
                job.gives_back = "release" in job.can or "checkpoint" in job.can
        case JobChanging():
            _apply_changing(machine, job, fact)
        case MemberAnswered():
            _apply_answered(machine, job, fact)
        case JobChanged():
            _apply_changed(machine, job, fact)
        case GpusRegained():
            returns.apply_regained(machine, job, fact)


def forget(machine: AllocatorMachine, job: JobState) -> None:
    """Begin an attempt, or end one: nothing is known of it, and nothing under way."""
    job.learned, job.change, job.asked, job.successor = {}, None, None, None
    job.released, job.held, job.resized, job.served_by = False, None, 0, 0
    job.rebound, job.tied, job.stood_on = False, False, {}
    job.packed, job.told, job.mixed = None, (0.0, ()), False
    job.suspended_at, job.suspended_ns, job.stayed = Instant(0), 0, False
    machine.away.pop(job.job, None)


def _apply_over(machine: AllocatorMachine, fact: AskOver) -> None:
    machine.last_asked = max(machine.last_asked, fact.number)
    job = machine.jobs.get(fact.job)
    if job is None:
        return
    if job.asked is not None and job.asked.number == fact.number:
        job.asked = None
    suspended = job.state is State.SUSPENDED and fact.result is Result.DONE
    if suspended and fact.ask.__struct_config__.tag == Goal.SUSPEND:
        job.held = Reason.REQUESTED  # Whatever it was suspended for: now somebody wants it so.


def _apply_changing(machine: AllocatorMachine, job: JobState, fact: JobChanging) -> None:
    earlier = job.change
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
        pairs.parted(machine, job)
    if earlier is None and fact.why is Reason.PREEMPTED_BY_POLICY:
        going = max(0, fact.at - job.since) if job.state is State.RUNNING else 0
        job.owed, job.owed_at, job.owed_ran = fact.owed, fact.at, job.served + going
    machine.order = fact.order
    if isinstance(fact.change, Resize) and not fact.change.servers:
        at = fact.change.at
        for name in (at,) if at else () if fact.change.prepare else fact.nodes:
            machine.nodes[name].meet((job.job, job.attempt), fact.change.master_port)
    if isinstance(fact.change, Share):
        packs.told(job, fact.change)
    for name in fact.nodes:
        if job.parts[name] is not Part.BOUND:  # Else it is to answer what begins it first.
            machine.nodes[name].open_orders[job.job, job.attempt] = fact.order


def _stops(earlier: OpenChange | None, fact: JobChanging) -> Instant:
    """Return when ranks were first told to stop, by this or before; 0: they were not."""
    if earlier is not None and earlier.stops_at:
        return earlier.stops_at
    return fact.at if fact.nodes and isinstance(fact.change, Move | Suspend) else Instant(0)


def ran(machine: AllocatorMachine, job: JobState, name: str) -> None:
    """Note that a part runs: what began it is answered, and a change that awaited it is not."""
    orders, change = machine.nodes[name].open_orders, job.change
    if job.state is State.BOUND:
        orders.pop((job.job, job.attempt), None)
    elif job.state is State.RUNNING and resizes.came(machine, job, name):
        if change is not None and change.answers.get(name, change) is None:
            orders[job.job, job.attempt] = change.order
        else:
            orders.pop((job.job, job.attempt), None)


def _apply_answered(machine: AllocatorMachine, job: JobState, fact: MemberAnswered) -> None:
    change, attempt = job.change, (job.job, job.attempt)
    assert change is not None, fact
    change.answers[fact.node] = fact
    change.far = max(change.far, fact.step)
    orders = machine.nodes[fact.node].open_orders
    if orders.get(attempt) == fact.order:
        del orders[attempt]


def _apply_changed(machine: AllocatorMachine, job: JobState, fact: JobChanged) -> None:
    change = job.change
    assert change is not None, fact
    for name, answer in change.answers.items():
        # What was told and never answered is superseded by whatever is told next.
        orders = machine.nodes[name].open_orders
        if answer is None and orders.get((job.job, job.attempt)) == change.order:
            del orders[job.job, job.attempt]
    lately.changed(machine, job, change, fact)
    job.change = None
    machine.soft.changes += 1
    if fact.result is not Result.DONE:
        if fact.goal is Goal.RESUME and fact.released and not job.released:
            returns.apply_refused(machine, job)
            _release(machine, job)
        return
    if fact.released and job.job not in machine.borrowed:
        job.waiting_since = fact.at
    if fact.goal is Goal.SUSPEND:
        if job.state is State.RUNNING:
            job.stands(fact.at, borrows=job.job in machine.borrowed)
            job.move("JobChanged")
            job.suspended_at, job.stayed = fact.at, True
            job.held = fact.why
        if fact.released and not job.released:
            _release(machine, job)
    elif job.state is State.SUSPENDED and isinstance(change.change, Resume):
        job.move("JobChanged")
        job.suspended_ns += max(0, fact.at - job.suspended_at)
        job.goes(fact.at, borrows=job.job in machine.borrowed)
        job.held, job.stood_on = None, {}
    elif fact.goal is Goal.MIGRATE and fact.released:
        _release(machine, job)
    elif isinstance(change.change, Resize):
        job.resized, job.served_by = change.change.world, change.change.servers


def _release(machine: AllocatorMachine, job: JobState) -> None:
    """Give the GPUs of a suspended attempt to whoever comes next."""
    name, attempt = cellwork.holder(job.job, job.attempt), (job.job, job.attempt)
    for claimer in machine.cells.claimers(name):
        machine.soft.ripe[cellwork.job_of(claimer)] = None
    others = packs.partners(machine, job.live, attempt)
    machine.cells.release(name)
    for node in job.live:
        machine.nodes[node].suspend(attempt, suspended=True)
    job.released, job.packed, job.stayed = True, None, False
    machine.away[job.job] = job
    machine.note_borrowed(job)
    packs.parted(machine, others)
    machine.soft.changes += 1
