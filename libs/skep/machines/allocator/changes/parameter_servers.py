"""The parameter servers of jobs: how many there may be, and what they let workers in by.

They are processes of the first rank and hold no GPUs. How many an attempt has changes with its
size, in one change: see `resizing`.
"""

from __future__ import annotations

import hashlib
import hmac

from skep.ids import attempt_id
from skep.ledger.job_state import JobState
from skep.machines.allocator.outcome import Refused
from skep.machines.allocator.transaction import Transaction
from skep.wire.reasons import Reason


def secret(tx: Transaction, job: JobState) -> str:
    """Return what the servers of a job's next attempt are to ask for; empty if it has none."""
    if job.spec.ps is None:
        return ""
    text = f"{attempt_id(job.job, job.following)}.{tx.state.order + 1} parameter servers"
    return hmac.new(tx.settings.key, text.encode(), hashlib.sha256).hexdigest()


def same(job: JobState, workers: int | None, servers: int | None) -> bool:
    """Return whether a job has so many workers and parameter servers.

    Args:
        job: The job.
        workers: Workers; None: as many as it has.
        servers: Parameter servers; None: as many as it has.
    """
    return workers in (None, job.size) and servers in (None, job.servers)


def refusal(job: JobState, servers: int | None) -> Refused | None:
    """Return why a job cannot have so many parameter servers, or None.

    Args:
        job: The job.
        servers: Parameter servers; None: as many as it has.
    """
    allowed = job.spec.ps
    if allowed is None:
        return Refused(Reason.CANNOT, "resize: its spec has no `ps`") if servers else None
    if servers and not allowed.min <= servers <= allowed.max:
        text = f"it may have {allowed.min} to {allowed.max} parameter servers"
        return Refused(Reason.BAD_VALUE, text)
    if len(job.members) > 1:
        return Refused(Reason.ONE_NODE_ONLY, f"it is on {len(job.members)}")
    return None
