"""What a person may still have in its VC: every attempt that begins is held against it."""

from __future__ import annotations

from skep.access.person import person_of
from skep.ledger.job_state import JobState
from skep.machines.allocator.transaction import Transaction
from skep.policy.fair import above_limits


def above(tx: Transaction, job: JobState, workers: int = 0) -> str:
    """Return which limit a job's person would be above if it began; empty: none.

    A job that counts already, as it has GPUs or stands without, goes on whatever the limits are.

    Args:
        tx: Its accounts of people are read.
        job: It waits.
        workers: With how many workers it would begin; 0: with those of its spec.
    """
    of_vc = tx.state.people.of_vc.get(job.spec.vc)
    if of_vc is None or of_vc.limits is None or job.job in of_vc.shares:
        return ""
    account = of_vc.accounts.get(person_of(job.owner, job.spec.labels))
    jobs, gpus = (account.jobs, account.held) if account is not None else (0, 0)
    more = (workers or job.size) * job.spec.resources.gpus
    return above_limits(of_vc.limits, jobs, gpus, more)


def above_with(tx: Transaction, job: JobState, more: int) -> str:
    """Return which limit a job's person would be above with further GPUs; empty: none.

    Args:
        tx: Its accounts of people are read.
        job: It runs.
        more: How many GPUs it would have beside its own.
    """
    of_vc = tx.state.people.of_vc.get(job.spec.vc)
    if of_vc is None or of_vc.limits is None or of_vc.limits.gpus is None:
        return ""
    account = of_vc.accounts.get(person_of(job.owner, job.spec.labels))
    held = account.held if account is not None else 0
    return above_limits(of_vc.limits, -1, held, more) if more > 0 else ""
