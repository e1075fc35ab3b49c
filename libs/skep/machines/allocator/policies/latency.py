"""Packs with replicas of services: undone if requests to the replica take too long.

    gateways --Served--> searches --ReplicaLate--> part: TrialOver (undone), the other job leaves

The latency that gateways measure is to a replica what mini-batches per second are to a job that
trains: what a pack is kept or undone by (Gandiva, section 4.2.2). The replica stays, and the other
job leaves as after any trial; jobs of the two kinds are not put together again until that has
cooled down.
"""

from __future__ import annotations

from skep.ledger import sharing
from skep.ledger.job_state import JobState, State
from skep.machines.allocator.policies import trials
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant, after, seconds
from skep.wire.changes import Goal
from skep.wire.served import ReplicaLate

WINDOW = seconds(32.0)
"""Until what is told was measured with the jobs as they are now: the window of gateways, and what
its end may be late by."""


def heard(tx: Transaction, event: ReplicaLate, now: Instant) -> None:
    """Have a job leave a replica that answers late beside it: the one that came last.

    Args:
        tx: Facts are added, if the jobs were together for a whole window.
        event: What was measured of the replica.
        now: The time of the decision.
    """
    replica = tx.state.jobs.get(event.job)
    if replica is None or replica.attempt != event.attempt or not event.late:
        return
    if replica.state is not State.RUNNING:
        return
    names = sharing.partners(tx.state, replica.live, (replica.job, replica.attempt))
    others = [tx.state.jobs[name] for name, _ in names]
    may_leave = [job for job in others if job.spec.kind != "inference"]
    if not may_leave:
        return
    if not all(_steady(tx, job) for job in (replica, *others)):
        tx.soft.unsettled_packs[replica.job] = now
        return
    unsettled = tx.soft.unsettled_packs.get(replica.job, Instant(0))
    together = max(unsettled, replica.since, *(job.since for job in others))
    if now < after(together, WINDOW):
        return
    leaves = max(may_leave, key=lambda job: (job.since, job.sequence))
    part = 100 * event.late / max(event.late, event.answered)
    detail = (
        f"{part:.0f} % of {event.answered} requests to {replica.job} took longer than "
        f"{event.bound_ms} ms beside {leaves.job}, and 5 % may"
    )
    if trials.part(tx, leaves, replica, now, detail):
        tx.soft.unsettled_packs[replica.job] = now


def _steady(tx: Transaction, job: JobState) -> bool:
    """Return whether a job runs, and nothing but a word on its share is under way with it."""
    changes = job.change is not None and job.change.goal is not Goal.SHARE
    return job.state is State.RUNNING and not changes and job.job not in tx.state.tries.undoing
