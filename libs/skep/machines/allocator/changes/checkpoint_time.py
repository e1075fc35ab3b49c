"""Checkpoints by time: a job is stored every so often, as its spec says, and goes on.

Where another change or a request is under way, the next one is looked at soon. A job that cannot
store its state (yet), or makes no mini-batches, is passed over until the next time.
"""

from __future__ import annotations

from skep.ledger.job_state import State
from skep.machines.allocator import timers
from skep.machines.allocator.changes import rounds
from skep.machines.allocator.transaction import Transaction
from skep.units import Duration, Instant, after, seconds
from skep.wire.changes import Goal
from skep.wire.commands import Checkpoint
from skep.wire.reasons import Reason

BUSY = seconds(10)
"""When a job is looked at again that something else is under way with."""


def due(tx: Transaction, name: str, attempt: int, now: Instant) -> None:
    """Have an attempt that runs store its state, and set the next time.

    Args:
        tx: A fact, commands and a timer are added.
        name: The job.
        attempt: The number of the attempt that the timer is of.
        now: The time of the decision.
    """
    job = tx.state.jobs.get(name)
    if job is None or job.attempt != attempt or job.state is not State.RUNNING:
        return  # One that is suspended has its timer set again when it goes on.
    every = job.spec.checkpoint_every
    if not isinstance(every, int) or not tx.settings.stores_by_time:
        return
    wait: Duration = seconds(every)
    if job.change is not None or job.successor is not None or job.asked is not None:
        wait = min(wait, BUSY)
    elif "checkpoint" in job.can:
        text = f"every {every} s"
        rounds.begin(
            tx,
            job,
            Goal.CHECKPOINT,
            Checkpoint(trains=True),
            now,
            why=Reason.CHECKPOINT_DUE,
            detail=text,
        )
    tx.soft.set_timer(timers.CheckpointTime(name, attempt), after(now, wait))
