"""How an attempt leaves its GPUs for others: alive if it can, else stopped."""

from __future__ import annotations

from skep import ids
from skep.ledger import sharing
from skep.ledger.job_state import JobState, State
from skep.machines.allocator import outbox, settings, timers
from skep.machines.allocator.changes import (
    change_ends,
    resizing_across_nodes,
    resume_places,
    rounds,
)
from skep.machines.allocator.policies import policy_views
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant, after
from skep.wire.changes import AskTaken, Goal, Result
from skep.wire.commands import Checkpoint, Resume, Share, Suspend, Warn
from skep.wire.reasons import Reason

LEAVES_NODE = (Reason.MAINTENANCE, Reason.RESERVED_FOR_VC)
"""Why an attempt has to leave the nodes of a window."""
MAKES_ROOM = (Reason.PREEMPTED, Reason.PREEMPTED_BY_POLICY, Reason.TO_OWN_CELLS, *LEAVES_NODE)
"""Why an attempt has to be without its GPUs in the end, if not suspended then stopped."""


def suspend(
    tx: Transaction,
    job: JobState,
    now: Instant,
    why: Reason,
    *,
    release: bool,
    detail: str = "",
    owed: int = 0,
) -> None:
    """Begin a suspension: of a gang on several nodes after the mini-batch that all can reach.

    Args:
        tx: Facts and commands are added.
        job: It runs, or is suspended with its memory on the GPUs.
        now: The time of the decision.
        why: Why it is suspended.
        release: Whether its ranks are to give their memory on the GPUs back.
        detail: For which job, or what is the matter, in words; may be empty.
        owed: The slices of GPU time that the job is owed for it.
    """
    several = len(job.live) > 1 and job.state is State.RUNNING
    suspend = Suspend(release=release, step=rounds.FIRST_STEP if several else 0)
    rounds.begin(tx, job, Goal.SUSPEND, suspend, now, why=why, detail=detail, owed=owed)


def give_way(
    tx: Transaction,
    job: JobState,
    now: Instant,
    detail: str,
    *,
    memory: bool,
    why: Reason = Reason.PREEMPTED,
) -> bool:
    """Have a victim leave its GPUs, alive if it can.

    It is suspended with its state in the host's memory if it can be, else it stores its state and
    is stopped, else it is stopped.

    Args:
        tx: Facts and commands are added, perhaps a timer.
        job: The victim.
        now: The time of the decision.
        detail: For which job, in words.
        memory: Whether the host's memory is needed too; then the victim is stopped.
        why: Why it has to leave.

    Returns:
        Whether it leaves, now or soon, because of this call; false: it is leaving already.
    """
    if job.state not in (State.BOUND, State.RUNNING, State.SUSPENDED):
        return False
    if job.change is not None and isinstance(job.change.change, Share | Warn):
        change_ends.close(tx, job, Result.OVERTAKEN, Reason.OVERTAKEN, now)
    change, can = job.change, job.can
    if change is not None and change.why in MAKES_ROOM and not memory:
        return False  # It is under way.
    if not memory and (awaits_size(job) or _goes_on(job) or _is_stored_by_time(job)):
        return _yield_later(tx, job, now, detail)
    free = change is None and not memory and job.state is not State.BOUND
    if free and "release" in can and not policy_views.comes_anew(tx, job):
        suspend(tx, job, now, why, release=True, detail=detail)
    elif free and "checkpoint" in can and job.state is State.RUNNING:
        rounds.begin(tx, job, Goal.CHECKPOINT, Checkpoint(), now, why=why, detail=detail)
    else:
        outbox.stop(tx, job, why, now, detail)
    return True


def awaits_size(job: JobState) -> bool:
    """Return whether a gang changes its size, or has, and can make room alive once that is over."""
    if job.state is not State.RUNNING:
        return False
    if job.change is None:
        return job.resized > 0 and not job.known
    can = "release" in job.can or "checkpoint" in job.can
    return job.change.goal is Goal.RESIZE and can


def _goes_on(job: JobState) -> bool:
    """Return whether an attempt is about to go on, and can make room alive once it does."""
    return job.change is not None and job.change.goal is Goal.RESUME and "release" in job.can


def _is_stored_by_time(job: JobState) -> bool:
    """Return whether an attempt is stored as its spec says, and can make room once it is."""
    return job.change is not None and job.change.why is Reason.CHECKPOINT_DUE


def _yield_later(tx: Transaction, job: JobState, now: Instant, detail: str) -> bool:
    """Have a victim make room once what it changes is over or undone, within YIELDS_WITHIN."""
    soft, deadline = tx.soft, timers.YieldDeadline(job.job, job.attempt)
    begins = deadline not in soft.timers.due
    if begins:
        soft.set_timer(deadline, after(now, settings.YIELDS_WITHIN))
    change = job.change
    if change is not None and resizing_across_nodes.spans(change) and not change.undoing:
        resizing_across_nodes.give_up(tx, job, now, detail)
        if job.change is None:
            give_way(tx, job, now, detail, memory=False)
    return begins


def leave(
    tx: Transaction, job: JobState, asked: AskTaken | None, now: Instant, detail: str = ""
) -> None:
    """Have a job leave GPUs that it shares, with as little lost as it can.

    Args:
        tx: Facts and commands are added.
        job: It runs or is suspended.
        asked: The request that it leaves by, which is answered here if the job is stopped; None:
            none.
        now: The time of the decision.
        detail: What is the matter, in words; may be empty.
    """
    if "release" in job.can:
        suspend(tx, job, now, Reason.UNPACKED, release=True, detail=detail)
    elif "checkpoint" in job.can and job.state is State.RUNNING:
        rounds.begin(
            tx, job, Goal.CHECKPOINT, Checkpoint(), now, why=Reason.UNPACKED, detail=detail
        )
    else:
        if asked is not None:
            change_ends.over(tx, asked, Result.DONE, now)
        outbox.stop(tx, job, Reason.UNPACKED, now, detail)


def stay_or_stop(tx: Transaction, job: JobState, now: Instant, detail: str) -> None:
    """Stop a job that could not leave its GPUs alive, unless all others have left them.

    Args:
        tx: Facts and commands are added.
        job: It could not be suspended or stored.
        now: The time of the decision.
        detail: What is the matter, in words.
    """
    if sharing.shares(tx.state, job):
        outbox.stop(tx, job, Reason.UNPACKED, now, detail)
    elif job.state is State.SUSPENDED and job.held is Reason.UNPACKED:
        rounds.begin(tx, job, Goal.RESUME, Resume(), now, why=Reason.ALONE)


def owes_room(tx: Transaction, job: JobState, why: Reason) -> bool:
    """Return whether a job waits for the GPUs for which this one was to make room alive.

    Args:
        tx: Its cells and jobs are read.
        job: It did not leave its GPUs.
        why: The reason of the change by which it was to leave them.
    """
    claimed = tx.state.cells.claimers(ids.attempt_id(job.job, job.attempt))
    wanted = why in (Reason.PREEMPTED_BY_POLICY, Reason.TO_OWN_CELLS, *LEAVES_NODE)
    waits = bool(claimed) or bool(resume_places.waits_for(tx, job))
    return wanted or (why is Reason.PREEMPTED and waits)
