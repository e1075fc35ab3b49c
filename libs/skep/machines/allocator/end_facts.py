"""The fact that a job is over, with what its last attempt came to."""

from __future__ import annotations

from skep.ledger import job_state
from skep.units import Instant
from skep.wire.facts import End, JobEnded
from skep.wire.reasons import Reason


def ended(job: job_state.JobState, end: End, why: Reason, now: Instant, detail: str) -> JobEnded:
    """Return the fact that a job is over, with what its last attempt came to.

    Args:
        job: The job; its attempt, if it has one, is gone from every node.
        end: How the job ends.
        why: Why it ends so.
        now: The time of the decision.
        detail: What is the matter, in words; may be empty.
    """
    gone = job.gone
    last = max(gone, key=lambda each: each.values_step, default=None)
    return JobEnded(
        job=job.job,
        end=end,
        why=why,
        attempts=job.attempt,
        at=now,
        ran_at=job.ran_at,
        steps=min((each.steps for each in gone), default=0),
        step_ns=max((each.step_ns for each in gone), default=0),
        detail=detail,
        trace=job.trace,
        values=last.values if last is not None else {},
        values_step=last.values_step if last is not None else 0,
    )
