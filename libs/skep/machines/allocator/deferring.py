"""Jobs that wait outside of their queue: for other jobs, for a time, or to be released.

A job is deferred when it is admitted, or when it is held while it waits. It is looked at again when
a job that it waits for has ended, when its time has come, and when it is released. Then it enters
its queue, at the place of its submission, or goes on waiting for what is left. A job whose
dependencies can never be fulfilled is cancelled; those that wait for it are looked at in turn.
"""

from __future__ import annotations

from typing import NamedTuple

from skep.ledger.job_state import JobState, State
from skep.ledger.state import ClusterState
from skep.machines.allocator.end_facts import ended
from skep.machines.allocator.timers import BeginTime
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire import deadline
from skep.wire.facts import End, JobDeferred, JobEligible, ReservationDropped
from skep.wire.reasons import Reason

RESOLVED_MAX = 100
"""Deferred jobs that one decision looks at: 4 ms of them, and a tenth of what a record may hold."""
FULFILLED: dict[str, tuple[End, ...]] = {
    "ok": (End.SUCCEEDED,),
    "any": (End.SUCCEEDED, End.FAILED, End.CANCELLED),
    "fail": (End.FAILED, End.CANCELLED),
}
"""By kind of dependency: the ends that fulfil it."""
WISHES = {"ok": "succeeds", "any": "ends", "fail": "fails"}


class Standing(NamedTuple):
    """How a job stands with its dependencies: those that have yet to end, or why it never starts.

    `never` is what is wrong, in words; empty: it may start one day.
    """

    awaits: tuple[str, ...] = ()
    never: str = ""


def standing(state: ClusterState, job: JobState, *, first: bool) -> Standing:
    """Return how a job stands with its dependencies.

    Args:
        state: Knows which jobs have not ended, and how the latest ended that have.
        job: The job.
        first: Whether none of its dependencies has been judged before. Later an end that is no
            longer kept was judged when it was.
    """
    after = job.spec.after
    awaits: list[str] = []
    for kind, _, name in after.named() if after is not None else ():
        other, known = state.jobs.get(name), state.ends.get(name)
        if other is not None and other.spec.vc == job.spec.vc and other is not job:
            awaits.append(name)
        elif known is None or known.vc != job.spec.vc:
            if first:
                return Standing(never=f"it is not known how {name} ended")
        elif known.end not in FULFILLED[kind]:
            return Standing(never=f"{name} {known.end}; it was to run once that {WISHES[kind]}")
    return Standing(tuple(awaits))


def queued(tx: Transaction, job: JobState, now: Instant) -> None:
    """Defer a job that was just admitted, if it has to wait for something before its turn.

    Args:
        tx: Facts are added: that it is deferred, or its end.
        job: It is in its queue.
        now: The time of the decision.
    """
    spec = job.spec
    if spec.after is None and spec.begin is None and not spec.hold:
        return
    begin = deadline.begin(spec, job.submitted_at) or Instant(0)
    _look(tx, job, now, begin=begin, held=spec.hold, first=True)


def hold(tx: Transaction, job: JobState, now: Instant) -> None:
    """Hold a job that has no GPUs; what was reserved for it is free for others.

    Args:
        tx: Facts are added; none if it is held already.
        job: It is queued, deferred, or has a reservation.
        now: The time of the decision.
    """
    if job.state is State.RESERVED:
        tx.record(ReservationDropped(job=job.job, attempt=job.following, why=Reason.HELD))
    begin = job.deferral.begin if job.deferral is not None else Instant(0)
    _look(tx, job, now, begin=begin, held=True)


def release(tx: Transaction, job: JobState, now: Instant) -> None:
    """Let a job that is held go on: into its queue, or to wait for what else it has to.

    Args:
        tx: A fact is added; none if it is not held.
        job: Any unfinished job.
        now: The time of the decision.
    """
    if job.deferral is not None and job.deferral.held:
        _look(tx, job, now, begin=job.deferral.begin, held=False)


def resolve(tx: Transaction, now: Instant) -> None:
    """Look at the deferred jobs for which something has come.

    Args:
        tx: Facts are added; what is beyond one decision is left in its soft state.
        now: The time of the decision.
    """
    for _ in range(RESOLVED_MAX):
        if not tx.soft.resolving:
            return
        name = next(iter(tx.soft.resolving))
        del tx.soft.resolving[name]
        job = tx.state.jobs.get(name)
        if job is not None and job.deferral is not None:
            _look(tx, job, now, begin=job.deferral.begin, held=job.deferral.held)


def restarted(tx: Transaction) -> None:
    """Look at every deferred job anew: what had come for it may not have been decided."""
    for job in sorted(tx.state.deferred.values(), key=lambda each: each.sequence):
        tx.soft.resolving[job.job] = None


def _look(
    tx: Transaction, job: JobState, now: Instant, *, begin: Instant, held: bool, first: bool = False
) -> None:
    """Record what becomes of a job: its end, that it is deferred, or that it enters its queue."""
    found = standing(tx.state, job, first=first)
    if found.never:
        why = Reason.DEPENDENCY_NEVER_SATISFIED
        tx.record(ended(job, End.CANCELLED, why, now, found.never))
        tx.soft.cancel_timer(BeginTime(job.job))
        return
    if begin > now:
        tx.soft.set_timer(BeginTime(job.job), begin)
    told = _reason(found.awaits, begin, now, held=held)
    if told is None:
        if job.deferral is not None:
            tx.record(JobEligible(job=job.job, at=now))
        return
    known = job.deferral
    if known is not None and (job.waits, known.held) == (told, held):
        return  # Of the jobs that it waits for another one has ended; the log has that.
    why, needs = told
    tx.record(
        JobDeferred(
            job=job.job, why=why, at=now, needs=needs, awaits=found.awaits, begin=begin, held=held
        )
    )


def _reason(
    awaits: tuple[str, ...], begin: Instant, now: Instant, *, held: bool
) -> tuple[Reason, str] | None:
    """Return what a job waits for, in the order of what takes a person to end; None: nothing."""
    if held:
        return Reason.HELD, ""
    if awaits:
        return Reason.WAITS_FOR_JOBS, awaits[0]
    if begin > now:
        return Reason.WAITS_FOR_TIME, deadline.told(begin)
    return None
