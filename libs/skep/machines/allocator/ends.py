"""How an attempt ends, and what becomes of its job."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from skep.ledger import job_state
from skep.ledger.job_state import JobState, State
from skep.machines.allocator import outbox, timers
from skep.machines.allocator.changes import node_answers
from skep.machines.allocator.end_facts import ended
from skep.machines.allocator.placement import near_copies
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.facts import End, JobRequeued, MemberGone
from skep.wire.node import MemberExited, Outcome
from skep.wire.reasons import Reason

LOSSES_MAX = 20
"""Attempts a job may lose to Skep's own reasons: a job that takes every node down must end."""


class Verdict(NamedTuple):
    """What becomes of a job whose attempt is over: its end, or (None) another attempt."""

    end: End | None
    why: Reason
    detail: str = ""
    counted: bool = False


RETRY_KEYS = {
    Outcome.EXITED: "exit",
    Outcome.SIGNALLED: "signal",
    Outcome.NOT_STARTED: "not-started",
}
"""Which word of `limits.retry_on` covers which outcome."""


def part_gone(job: job_state.JobState, told: MemberExited) -> MemberGone:
    """Return the fact that a part is over; its last values are of use to searches only.

    What its ranks copied to its node's memory is there still: only a node that is lost has none.
    """
    learned = job.learned.get(told.node)
    gone = MemberGone(
        job=job.job,
        attempt=job.attempt,
        node=told.node,
        outcome=told.outcome,
        detail=told.detail,
        steps=told.steps,
        step_ns=told.step_ns,
        copies=learned is not None and near_copies.ABILITY in learned.can,
    )
    if not job.spec.search:
        return gone
    return msgspec.structs.replace(gone, values=told.values, values_step=told.values_step)


def judge(job: job_state.JobState) -> Verdict:
    """Return what follows from an attempt whose every part is gone.

    An attempt that succeeded everywhere has succeeded, even if a stop was under way. Otherwise the
    reason for stopping decides; then the earliest failure does. What Skep or its hardware lost is
    repeated without counting, LOSSES_MAX times at most.
    """
    counts = [gone for gone in job.gone if not job.outside(gone.node)]
    if all(gone.outcome is Outcome.SUCCEEDED for gone in counts):
        return Verdict(End.SUCCEEDED, Reason.SUCCEEDED)
    if job.cancelled:
        return Verdict(End.CANCELLED, Reason.CANCELLED)
    if job.stopped_why is Reason.TIME_LIMIT:
        return Verdict(End.FAILED, Reason.TIME_LIMIT, job.stopped_detail)
    if job.stopped_why in job_state.GIVES_WAY:
        return Verdict(None, job.stopped_why, job.stopped_detail)
    if job.stopped_why in (Reason.NOT_TAKEN, Reason.NODE_LOST, Reason.HUNG):
        return _lost(job, job.stopped_why, job.stopped_detail)
    failed = next((gone for gone in job.gone if gone.outcome in job_state.FAILURES), None)
    if failed is None:
        stopped = next(gone for gone in job.gone if gone.outcome is Outcome.STOPPED)
        return _lost(job, Reason.NODE_STOPPED, _told_by(stopped))
    why, detail = job_state.FAILURES[failed.outcome], _told_by(failed)
    if failed.outcome not in RETRY_KEYS:
        return _lost(job, why, detail)
    limits = job.spec.limits
    if RETRY_KEYS[failed.outcome] in limits.retry_on and job.retries_used < limits.retries:
        return Verdict(None, why, detail, counted=True)
    return Verdict(End.FAILED, why, detail)


def _told_by(gone: MemberGone) -> str:
    """Return what a node said about the end of its part."""
    return f"{gone.node}: {gone.detail}" if gone.detail else gone.node


def _lost(job: job_state.JobState, why: Reason, detail: str) -> Verdict:
    """Return the verdict on a lost attempt: the job is repeated, up to LOSSES_MAX times."""
    if job.losses >= LOSSES_MAX:
        text = f"{LOSSES_MAX} attempts were lost; the last: {why} ({detail})"
        return Verdict(End.FAILED, Reason.RETRIES_USED_UP, text)
    return Verdict(None, why, detail)


def settle(tx: Transaction, job: JobState, now: Instant) -> None:
    """Go on after a part of an attempt is gone: stop the others, or judge the whole.

    Args:
        tx: The end of the job or its return to the queue is added, or a stop.
        job: A part of its attempt is gone.
        now: The time of the decision.
    """
    if not job.over:
        failed = job.gone[-1].outcome is not Outcome.SUCCEEDED
        if (failed or job.deserted) and job.state is not State.STOPPING:
            outbox.stop(tx, job, Reason.PEER_FAILED, now, f"{job.gone[-1].node} ended")
        node_answers.conclude(tx, job, now)
    if not job.over:
        return
    outbox.abandon(tx, job, now)
    tx.soft.cancel_timer(timers.TimeLimit(job.job, job.attempt))
    tx.soft.cancel_timer(timers.LimitWarning(job.job, job.attempt))
    tx.soft.cancel_timer(timers.CheckpointTime(job.job, job.attempt))
    tx.soft.warnings.pop(job.job, None)
    tx.soft.idle.pop((job.job, job.attempt), None)
    tx.soft.hung.pop((job.job, job.attempt), None)
    verdict = judge(job)
    if verdict.end is not None:
        tx.record(ended(job, verdict.end, verdict.why, now, verdict.detail))
        return
    tx.record(
        JobRequeued(
            job=job.job,
            attempt=job.attempt,
            why=verdict.why,
            at=now,
            counted=verdict.counted,
            detail=verdict.detail,
            trace=job.trace,
        )
    )
