"""Requests for changes: what is refused, what begins at once, and what waits."""

from __future__ import annotations

from skep.ledger import sharing
from skep.ledger.job_state import ArrayState, JobState, State
from skep.ledger.state import ClusterState
from skep.machines.allocator import deferring
from skep.machines.allocator.changes import (
    change_ends,
    making_room,
    migration,
    packing,
    parameter_servers,
    resizing,
    rounds,
    warning,
)
from skep.machines.allocator.outcome import Refused
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire.changes import (
    Ask,
    AskCheckpoint,
    AskHold,
    AskMigrate,
    AskPack,
    AskPriority,
    AskRelease,
    AskResize,
    AskResume,
    AskSuspend,
    AskTaken,
    AskUnpack,
    ChangeAsked,
    Goal,
    JobPrioritised,
    Result,
)
from skep.wire.commands import Checkpoint, Resume
from skep.wire.reasons import Reason


def ask(tx: Transaction, fact: ChangeAsked, now: Instant) -> None:
    """Take a request that admission passed on. The latest one waits for the end of a change.

    Args:
        tx: The request is recorded, or what came of it at once.
        fact: The request, with its number.
        now: The time of the decision.
    """
    if fact.number <= tx.state.last_asked:
        return  # Read again after a restart.
    job, array = tx.state.jobs.get(fact.ask.job), tx.state.arrays.get(fact.ask.job)
    taken = AskTaken(job=fact.ask.job, number=fact.number, ask=fact.ask)
    if array is not None and isinstance(fact.ask, AskHold | AskRelease):
        _hold_array(tx, array, taken, now)
        return
    if job is None:
        change_ends.over(tx, taken, Result.REFUSED, now, Reason.ALREADY_ENDED)
        return
    if isinstance(fact.ask, AskPriority):
        _prioritise(tx, job, taken, fact.ask.priority, now)
        return
    if isinstance(fact.ask, AskHold | AskRelease):
        _hold(tx, job, taken, now)
        return
    waits = job.state in (State.QUEUED, State.DEFERRED, State.RESERVED)
    if waits and isinstance(fact.ask, AskPack):
        change_ends.over(tx, taken, *packing.answer(tx, job, fact.ask, now))
        return
    if waits or job.state is State.STOPPING:
        change_ends.over(tx, taken, Result.REFUSED, now, Reason.NOT_RUNNING, f"it is {job.state}")
        return
    if job.asked is not None:
        change_ends.over(tx, job.asked, Result.OVERTAKEN, now, Reason.OVERTAKEN)
    tx.record(taken)
    follow(tx, job, now)


def _prioritise(
    tx: Transaction, job: JobState, taken: AskTaken, priority: int, now: Instant
) -> None:
    """Let a waiting job have another priority. One that has GPUs has been chosen by its own."""
    if job.state not in (State.QUEUED, State.DEFERRED):
        change_ends.over(tx, taken, Result.REFUSED, now, Reason.NOT_WAITING, f"it is {job.state}")
        return
    if priority != job.spec.priority:
        tx.record(JobPrioritised(job=job.job, priority=priority, number=taken.number, at=now))
    change_ends.over(tx, taken, Result.DONE, now)


def _hold(tx: Transaction, job: JobState, taken: AskTaken, now: Instant) -> None:
    """Hold a job that has no GPUs, or release one that is held; as it is already, it stays."""
    if not isinstance(taken.ask, AskHold):
        deferring.release(tx, job, now)
    elif job.state in (State.QUEUED, State.DEFERRED, State.RESERVED):
        deferring.hold(tx, job, now)
    else:
        text = f"it is {job.state}: `skep suspend` has a running job stand still"
        change_ends.over(tx, taken, Result.REFUSED, now, Reason.HAS_GPUS, text)
        return
    change_ends.over(tx, taken, Result.DONE, now)


def _hold_array(tx: Transaction, array: ArrayState, taken: AskTaken, now: Instant) -> None:
    """Hold an array whose tasks are no jobs yet, or release one that is held."""
    if not isinstance(taken.ask, AskHold):
        deferring.release(tx, array, now)
    elif array.deferral is not None:
        deferring.hold(tx, array, now)
    else:
        text = "its tasks have begun to be jobs: hold those of its jobs that wait"
        change_ends.over(tx, taken, Result.REFUSED, now, Reason.CANNOT, text)
        return
    change_ends.over(tx, taken, Result.DONE, now)


def follow(tx: Transaction, job: JobState, now: Instant) -> None:
    """Begin what was asked for last, if nothing else is under way."""
    if packing.lower(tx, job, now):
        return
    warning.follow(tx, job, now)
    asked = job.asked
    if asked is None or job.change is not None or job.state not in (State.RUNNING, State.SUSPENDED):
        return
    wish = asked.ask
    if _depends(wish) and not job.known:
        return  # Its ranks have yet to say what they can, or their nodes to say that they do not.
    against = refusal(tx.state, job, wish)
    if against is not None:
        change_ends.over(tx, asked, Result.REFUSED, now, *against)
        return
    refused = _carry_out(tx, job, asked, now)
    if refused is not None:
        change_ends.over(tx, asked, Result.REFUSED, now, *refused)


def _carry_out(tx: Transaction, job: JobState, asked: AskTaken, now: Instant) -> Refused | None:
    """Begin a change that nothing speaks against, or return why it cannot begin."""
    suspended = job.state is State.SUSPENDED
    match asked.ask:
        case AskSuspend(release=release):
            if suspended and (job.released or not release):
                change_ends.over(tx, asked, Result.DONE, now)
            else:
                making_room.suspend(tx, job, now, Reason.REQUESTED, release=release)
        case AskResume():
            if not suspended:
                change_ends.over(tx, asked, Result.DONE, now)
            elif not job.released:
                rounds.begin(tx, job, Goal.RESUME, Resume(), now, why=Reason.REQUESTED)
            # Else it waits until its GPUs are idle: `come_back`.
        case AskCheckpoint():
            rounds.begin(tx, job, Goal.CHECKPOINT, Checkpoint(), now, why=Reason.REQUESTED)
        case AskMigrate(to=to):
            refused = migration.begin(tx, job, to, now)
            # Without GPUs it waits for some there: `come_back`.
            return None if job.released else refused
        case AskResize(workers=workers, servers=count) if parameter_servers.same(
            job, workers, count
        ):
            change_ends.over(tx, asked, Result.DONE, now)
        case AskResize(workers=workers, servers=count):
            return resizing.begin(tx, job, workers, now, servers=count)
        case AskPack() as wish:
            return packing.begin(tx, job, wish, now)
        case AskUnpack():
            making_room.leave(tx, job, asked, now)
        case AskPriority() | AskHold() | AskRelease():
            pass  # It is answered at once, and waits for nothing.
    return None


def _depends(wish: Ask) -> bool:
    """Return whether a request needs something of the job's own side."""
    return isinstance(wish, AskCheckpoint | AskMigrate | AskResize | AskUnpack) or (
        isinstance(wish, AskSuspend) and wish.release
    )


def refusal(state: ClusterState, job: JobState, wish: Ask) -> Refused | None:
    """Return why what is asked for cannot be done, or None."""
    match wish:
        case AskUnpack() if not sharing.shares(state, job):
            return Refused(Reason.NOT_PACKED)
        case AskResize() if sharing.shares(state, job):
            return Refused(Reason.PACKED, "unpack it first")
        case AskSuspend(release=True) if "release" not in job.can:
            return Refused(Reason.CANNOT, "release (`skep show` tells what it can)")
        case AskCheckpoint() | AskResize() if job.state is State.SUSPENDED:
            return Refused(Reason.NOT_RUNNING, "it is suspended: resume it first")
        case AskCheckpoint() if "checkpoint" not in job.can:
            return Refused(Reason.CANNOT, "checkpoint (`skep show` tells what it can)")
        case AskMigrate() if "migrate" not in job.can:
            return Refused(Reason.CANNOT, "migrate (`skep show` tells what it can)")
        case AskMigrate() if len(job.live) < len(job.members):
            return Refused(Reason.NOT_RUNNING, "a part of it has ended")
        case AskResize(workers=workers, servers=count):
            return parameter_servers.refusal(job, count) or resizing.refusal(job, workers)
        case _:
            return None
