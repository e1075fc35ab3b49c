"""How a change of the size of a gang ends."""

from __future__ import annotations

from skep.ledger.job_state import JobState
from skep.machines.allocator.changes import change_ends
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import Result
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed


def conclude(tx: Transaction, job: JobState, refused: str, now: Instant) -> None:
    """End a change of size that the nodes have answered.

    Args:
        tx: Facts are added.
        job: It has an open change of its size.
        refused: Why all is as before, in words; empty: the gang has its new size.
        now: The time of the decision.
    """
    change = job.change
    assert change is not None, job
    result, why = (Result.UNDONE, Reason.NOT_TAKEN) if refused else (Result.DONE, change.why)
    change_ends.close(tx, job, result, why, now, detail=refused)
    narrow(tx, job, now)


def leave(tx: Transaction, job: JobState, name: str, now: Instant) -> None:
    """Free what a gang had on a node on which it has no rank any more.

    Args:
        tx: A fact is added.
        job: The job.
        name: The node.
        now: The time of the decision.
    """
    tx.record(
        GangNarrowed(
            job=job.job, attempt=job.attempt, node=name, workers=0, at=now, trace=job.trace
        )
    )


def narrow(tx: Transaction, job: JobState, now: Instant) -> None:
    """Free the GPUs for which a gang has no ranks.

    Args:
        tx: Facts are added.
        job: Its change of size is over.
        now: The time of the decision.
    """
    for name, member in list(job.members.items()):
        workers = sum(rank < job.size for rank in member.numbers)
        if workers < len(member.devices):
            tx.record(
                GangNarrowed(
                    job=job.job,
                    attempt=job.attempt,
                    node=name,
                    at=now,
                    workers=workers,
                    trace=job.trace,
                )
            )
