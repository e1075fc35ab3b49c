"""What a node still owes of a change, and how changes and requests end."""

from __future__ import annotations

import msgspec

from skep import ids
from skep.cells.nodes import NodeState
from skep.ledger.job_state import JobState, Part
from skep.ledger.state import ClusterState
from skep.machines.allocator.changes import ranks, resume_places
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import AskOver, AskTaken, JobChanged, Result
from skep.wire.commands import ChangeJob, Checkpoint, Move, Resize, Resume, Share, Suspend, Warn
from skep.wire.reasons import Reason

DEADLINES_MS = {
    Suspend: 30_000,
    Resume: 60_000,
    Checkpoint: 120_000,
    Move: 60_000,
    Resize: 300_000,
    Share: 30_000,
    Warn: 30_000,
}
"""What an agent gives the job's own side, from when it takes the command. A suspension waits for
the mini-batch under way; state of some 100 GB is written or sent within the others. Ranks that join
a gang import and warm up, while the others train."""
PREEMPT_DEADLINE_MS = 15_000
"""A victim that does not reach a boundary in this time is stopped instead: another job waits."""
HURRIES = (Reason.PREEMPTED, Reason.PREEMPTED_BY_POLICY, Reason.TO_OWN_CELLS)


def owed(state: ClusterState, job: JobState, node: NodeState, epoch: int) -> ChangeJob | None:
    """Return the change that a node has not answered, or None.

    Args:
        state: Its orders are read.
        job: The job that is changed.
        node: The node that is to be told.
        epoch: The epoch of this allocator, which fences an earlier one.
    """
    change, name = job.change, node.joined.node
    if change is None or change.answers.get(name, change) is not None:
        return None
    if job.parts.get(name) is not Part.RAN:
        return None
    told = change.change
    if isinstance(told, Resize) and not told.ranks:
        told = ranks.told_to(job.members[name], told)
    elif isinstance(told, Resume) and job.rebound:
        told = msgspec.structs.replace(told, ranks=resume_places.plans(job.members[name]))
    patience_ms = DEADLINES_MS[type(told)]
    if change.why in HURRIES:
        patience_ms = min(patience_ms, PREEMPT_DEADLINE_MS)
    return ChangeJob(
        order=change.order,
        epoch=epoch,
        settled=node.settled(state.order),
        node=name,
        identity=node.joined.identity,
        job=job.job,
        attempt=job.attempt,
        change=told,
        deadline_ms=patience_ms,
        trace=job.trace,
    )


def close(
    tx: Transaction,
    job: JobState,
    result: Result,
    why: Reason,
    now: Instant,
    *,
    released: bool = False,
    detail: str = "",
) -> None:
    """End the open change, and the request it follows from.

    Args:
        tx: Facts are added. Jobs that claim the GPUs are looked at again.
        job: It has an open change.
        result: What came of it.
        why: Why that came of it.
        now: The time of the decision.
        released: Whether the job has no memory on its GPUs any more.
        detail: What is the matter, in words; may be empty.
    """
    change = job.change
    assert change is not None, job
    told = [answer for answer in change.answers.values() if answer is not None]
    tx.record(
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
    for claimer in tx.state.cells.claimers(ids.attempt_id(job.job, job.attempt)):
        tx.soft.ripe[ids.job_of(claimer)] = None  # It may have waited for this.
    if change.asked is not None:
        if change.why is Reason.UNPACKED and result is Result.UNDONE:
            result = Result.DONE  # It leaves in another way.
        over(tx, change.asked, result, now, None if result is Result.DONE else why, detail)


def number(job: JobState, why: Reason) -> int:
    """Return the number of the request that a change follows from; 0: of none."""
    return job.asked.number if job.asked is not None and why is Reason.REQUESTED else 0


def over(
    tx: Transaction,
    asked: AskTaken,
    result: Result,
    now: Instant,
    why: Reason | None = None,
    detail: str = "",
) -> None:
    """Say what came of a request.

    Args:
        tx: A fact is added.
        asked: The request.
        result: What came of it.
        now: The time of the decision.
        why: Why, if it was not simply done.
        detail: What is the matter, in words; may be empty.
    """
    tx.record(
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


def overtake(tx: Transaction, job: JobState, now: Instant) -> None:
    """End what was to be changed of an attempt, as the attempt itself ends.

    Args:
        tx: Facts are added.
        job: Its attempt ends.
        now: The time of the decision.
    """
    if job.change is not None:
        close(tx, job, Result.OVERTAKEN, Reason.OVERTAKEN, now)
    if job.asked is not None:
        over(tx, job.asked, Result.OVERTAKEN, now, Reason.OVERTAKEN)
