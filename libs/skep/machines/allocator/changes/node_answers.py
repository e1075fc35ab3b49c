"""What nodes say about changes, and how a change goes on once all of them have answered.

    JobChanging --MemberAnswered of every node--> the next round | JobChanged

`CONCLUDE` has what concludes a round, by what was to be done in it.
"""

from __future__ import annotations

from collections.abc import Callable

from skep import ids
from skep.ledger.job_state import JobState, Part, State
from skep.machines.allocator import timers
from skep.machines.allocator.changes import (
    change_ends,
    making_room,
    migration,
    requests,
    resize_ends,
    resizing_across_nodes,
    resume_places,
    suspension,
)
from skep.machines.allocator.changes.suspension import Answers
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import MemberAnswered, MemberLearned, Result
from skep.wire.commands import Change, Checkpoint, Resize, Resume, Share, Suspend, Warn
from skep.wire.node import MemberChanged, MemberKnown, MemberLoaded, MemberReady


def heard(
    tx: Transaction, event: MemberKnown | MemberReady | MemberLoaded | MemberChanged, now: Instant
) -> None:
    """Take what a node says about its part of an attempt.

    Args:
        tx: Facts and commands are added.
        event: What a node says. What is of an earlier attempt, or was said before, changes nothing.
        now: The time of the decision.
    """
    job = tx.state.jobs.get(event.job)
    if job is None:
        return
    if job.attempt != event.attempt:
        if not isinstance(event, MemberChanged):
            migration.heard(tx, job, event, now)
            if job.change is None:
                requests.follow(tx, job, now)
        return
    member = job.members.get(event.node)
    if member is None or member.identity != event.identity:
        return
    if job.parts[event.node] is Part.GONE:
        return
    match event:
        case MemberKnown():
            learned = MemberLearned(
                job=job.job,
                attempt=job.attempt,
                node=event.node,
                tier=event.tier,
                can=event.can,
                resumed=event.resumed,
                sizes=event.sizes,
            )
            if job.learned.get(event.node) != learned:
                tx.record(learned)
                _yield(tx, job, now)
                requests.follow(tx, job, now)
        case MemberChanged():
            _answer(tx, job, event, now)
        case MemberReady():
            resizing_across_nodes.ready(tx, job, event, now)
            after_change(tx, job, now)
        case MemberLoaded():
            pass  # Said again, of a successor that has taken over.


def _answer(tx: Transaction, job: JobState, event: MemberChanged, now: Instant) -> None:
    """Take the answer of a node to the round that is open."""
    change = job.change
    if change is None or event.order != change.order:
        return
    if change.answers.get(event.node, event) is not None:
        return  # It was not asked, or has answered.
    tx.record(
        MemberAnswered(
            job=job.job,
            attempt=job.attempt,
            node=event.node,
            order=event.order,
            manner=event.manner,
            step=event.step,
            moved=event.moved,
            residue=event.residue,
            pause_ns=event.pause_ns,
            detail=event.detail,
            released=event.released,
        )
    )
    conclude(tx, job, now)


def conclude(tx: Transaction, job: JobState, now: Instant) -> None:
    """Go on with a change once every node it was told to, and that is still there, has answered."""
    change = job.change
    if change is None or job.state is State.STOPPING:
        return
    if migration.concludes(change):
        migration.conclude(tx, job, now)
        if job.change is None:
            requests.follow(tx, job, now)
        return
    if resizing_across_nodes.spans(change):
        resizing_across_nodes.conclude(tx, job, now)
        after_change(tx, job, now)
        return
    answers = {name: answer for name, answer in change.answers.items() if name in job.live}
    if not answers or None in answers.values():
        return
    told = {name: answer for name, answer in answers.items() if answer is not None}
    CONCLUDE[type(change.change)](tx, job, told, now)
    after_change(tx, job, now)


def after_change(tx: Transaction, job: JobState, now: Instant) -> None:
    """Do what waits for the end of a change: first make room, then what was asked for.

    Args:
        tx: Facts and commands are added.
        job: Its change may be over.
        now: The time of the decision.
    """
    if job.parts and job.over:
        return  # The nodes that it has left were its last ones.
    _yield(tx, job, now)
    if job.change is None:
        requests.follow(tx, job, now)


def _yield(tx: Transaction, job: JobState, now: Instant) -> None:
    """Have a job make room that was waited for, as it changed its size or was about to go on."""
    deadline = timers.YieldDeadline(job.job, job.attempt)
    if deadline not in tx.soft.timers.due or job.change is not None:
        return
    if job.released:
        return  # It has made room.
    claimers = tx.state.cells.claimers(ids.attempt_id(job.job, job.attempt))
    other = ids.job_of(claimers[0]) if claimers else resume_places.waits_for(tx, job)
    if other:
        making_room.give_way(tx, job, now, f"for {other}", memory=False)


def _shared(tx: Transaction, job: JobState, told: Answers, now: Instant) -> None:
    """End a change of what part of the memory is a job's."""
    assert job.change is not None, job
    detail = "; ".join(suspension.refusals(told).values())
    result = Result.UNDONE if detail else Result.DONE
    change_ends.close(tx, job, result, job.change.why, now, detail=detail)


def _warned(tx: Transaction, job: JobState, told: Answers, now: Instant) -> None:
    """End the signal before the time limit, once every node has given it or said why not."""
    assert job.change is not None, job
    refused = "; ".join(suspension.refusals(told).values())
    result = Result.UNDONE if refused else Result.DONE
    change_ends.close(tx, job, result, job.change.why, now, detail=refused or job.change.detail)


def _resized(tx: Transaction, job: JobState, told: Answers, now: Instant) -> None:
    """End a change of the size of a gang on one node."""
    resize_ends.conclude(tx, job, "; ".join(suspension.refusals(told).values()), now)


CONCLUDE: dict[type[Change], Callable[[Transaction, JobState, Answers, Instant], None]] = {
    Suspend: suspension.suspended,
    Resume: suspension.resumed,
    Checkpoint: suspension.stored,
    Share: _shared,
    Resize: _resized,
    Warn: _warned,
}
"""What concludes a round, by what was to be done in it. Moves and gangs that change their size on
several nodes have rounds of their own (`migration`, `resizing_across_nodes`)."""
