"""The signal before the time limit: once in each attempt, also if it is moved meanwhile.

A change of its own, as nodes have to take it once and answer. Where another change is under way it
waits for the end of that one; a job that is suspended by then is warned once it goes on.
"""

from __future__ import annotations

from skep.ledger.job_state import JobState, State
from skep.machines.allocator import timers
from skep.machines.allocator.changes import rounds
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import Goal
from skep.wire.commands import Warn
from skep.wire.reasons import Reason


def due(tx: Transaction, name: str, attempt: int, now: Instant) -> None:
    """Give the ranks of an attempt their signal, or remember that it is due.

    Args:
        tx: A fact and commands are added.
        name: The job.
        attempt: The number of the attempt that the time limit is of.
        now: The time of the decision.
    """
    job = tx.state.jobs.get(name)
    if job is None or job.attempt != attempt or job.warned:
        return
    tx.soft.warnings[name] = attempt
    follow(tx, job, now)


def follow(tx: Transaction, job: JobState, now: Instant) -> None:
    """Give the ranks of a job the signal that is due, if nothing else is under way.

    Args:
        tx: A fact and commands are added.
        job: Its signal may be due.
        now: The time of the decision.
    """
    if job.job not in tx.soft.warnings or job.change is not None:
        return
    attempt = tx.soft.warnings.pop(job.job)
    warn = job.spec.limits.warn
    if warn is None or job.warned or job.attempt != attempt or job.state is not State.RUNNING:
        return  # One that is suspended has its timer set again when it goes on.
    what = Warn(signal=warn.signal)
    text = f"{warn.signal} {warn.before} s before the limit of {job.spec.limits.time} s"
    rounds.begin(tx, job, Goal.WARN, what, now, why=Reason.TIME_LIMIT_NEAR, detail=text)


def moved(tx: Transaction, job: JobState, source: int) -> None:
    """Have what is due of an attempt be due of the one that took over from it.

    Args:
        tx: Its timers are changed.
        job: It has moved.
        source: The number of the attempt before.
    """
    tx.soft.cancel_timer(timers.LimitWarning(job.job, source))
    if tx.soft.warnings.get(job.job) == source:
        tx.soft.warnings[job.job] = job.attempt
