"""Jobs that do nothing give their GPUs back, where their VC wants it and they can.

    every node: IdlePart --all parts idle for long enough, or asking--> JobChanging (suspend, idle)
        --released--> suspended, until its owner asks for its return
        --not released--> it goes on where it was, and the same is not tried again

A job that knows mini-batches can only stand between two, and makes none while it does nothing: it
stays, and that is said once. What the driver takes off the GPUs can be taken at any time. Nodes
repeat every second what they say, so all of this but the tries is soft.
"""

from __future__ import annotations

from skep.ledger import sharing
from skep.ledger.job_state import JobState, State
from skep.machines.allocator.changes import change_ends, making_room, rounds
from skep.machines.allocator.changes.rounds import Round
from skep.machines.allocator.transaction import Transaction
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire.changes import Goal, Result
from skep.wire.commands import Suspend
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat

FRESH = seconds(5)
"""How long what a node said of its part holds: it says so every second."""


def heard(tx: Transaction, event: Heartbeat, now: Instant) -> None:
    """Take it that parts on a node do nothing; suspend the jobs that do nothing on all their nodes.

    Args:
        tx: Facts and commands are added.
        event: What the node says.
        now: The time of the decision.
    """
    for part in event.idle:
        job = tx.state.jobs.get(part.job)
        if job is None or job.attempt != part.attempt or event.node not in job.live:
            continue
        limit_s = _limit_s(tx, job)
        if part.asks:
            if "release" not in job.can:
                continue  # It says that it can before it asks, and that may come later.
            text = f"for {part.idle_ns // NS_PER_SECOND} s, as it says itself"
        elif limit_s and part.idle_ns >= seconds(limit_s):
            text = f"for {limit_s} s"
        else:
            continue
        if not _calm(tx, job):
            continue
        said = tx.soft.idle.setdefault((job.job, job.attempt), {})
        said[event.node] = now
        if all(now - said.get(node, Instant(0)) < FRESH for node in job.live):
            del tx.soft.idle[job.job, job.attempt]
            _suspend(tx, job, text, now)


def _limit_s(tx: Transaction, job: JobState) -> int:
    """Return after how long of doing nothing a job of its VC is suspended; 0: never."""
    vc = tx.state.cells.cluster.vcs.get(job.spec.vc)
    return vc.idle.suspend_after if vc is not None and vc.idle is not None else 0


def _calm(tx: Transaction, job: JobState) -> bool:
    """Return whether nothing else is under way with a job, and this was not tried before."""
    alone = not sharing.shares(tx.state, job)
    calm = job.change is None and job.asked is None and job.successor is None
    return alone and calm and job.state is State.RUNNING and job.known and not job.idle_tried


def _suspend(tx: Transaction, job: JobState, text: str, now: Instant) -> None:
    """Suspend a job that does nothing, or say once why it stays; `text`: for how long it did so."""
    if "release" in job.can and "suspend" not in job.can:
        making_room.suspend(tx, job, now, Reason.IDLE, release=True, detail=text)
        return
    if "suspend" in job.can:
        why = "it can be suspended between two mini-batches only, and makes none"
    else:
        why = "its state cannot be taken off its GPUs (the driver's checkpoint is not offered)"
    said = Round(Goal.SUSPEND, Suspend(release=True), (), Reason.IDLE, detail=text)
    rounds.send(tx, job, said, now)
    change_ends.close(tx, job, Result.UNDONE, Reason.CANNOT, now, detail=f"idle {text}: {why}")
