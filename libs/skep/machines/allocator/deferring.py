"""Jobs and arrays that wait outside of a queue: for others, for a time, or to be released.

A job is deferred when it is admitted, or when it is held while it waits. It is looked at again when
a job that it waits for has ended, when its time has come, when it is released, and when there is
room in its pipeline. Then it enters
its queue, at the place of its submission, or goes on waiting for what is left. A job whose
dependencies can never be fulfilled is cancelled; those that wait for it are looked at in turn.

An array waits in the same way, as a whole: admission makes its tasks into jobs once it is eligible,
and cancels them if what it waits for can never come. It ends when admission says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from skep.ids import job_sequence
from skep.ledger import pipelines
from skep.ledger.job_state import ArrayState, JobState, State
from skep.ledger.records import PipelineKey
from skep.ledger.state import ClusterState
from skep.machines.allocator.end_facts import ended
from skep.machines.allocator.timers import BeginTime
from skep.machines.allocator.transaction import Transaction
from skep.units import Instant
from skep.wire import deadline
from skep.wire.array import ArrayAdmitted, ArrayFact, ArrayOver, TasksRetried, is_gated
from skep.wire.array_gate import ArrayBroken, ArrayDeferred, ArrayEligible, ArrayEnded, ArraySeen
from skep.wire.facts import End, JobDeferred, JobEligible, ReservationDropped
from skep.wire.reasons import Reason
from skep.wire.spec import After

RESOLVED_MAX = 100
"""Deferred jobs and arrays that one decision looks at: 4 ms of them, and a tenth of what a record
may hold."""
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


def standing(state: ClusterState, waits: JobState | ArrayState, *, first: bool) -> Standing:
    """Return how a job or an array stands with its dependencies.

    Args:
        state: Knows what has not ended, and how the latest ended that have.
        waits: The job or array.
        first: Whether none of its dependencies has been judged before. Later an end that is no
            longer kept was judged when it was.
    """
    vc, after = _asked(waits)
    awaits: list[str] = []
    for kind, _, name in after.named() if after is not None else ():
        other, known = state.jobs.get(name) or state.arrays.get(name), state.ends.get(name)
        if other is not None and _asked(other)[0] == vc and other is not waits:
            awaits.append(name)
        elif known is None or known.vc != vc:
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
    if spec.after is None and spec.begin is None and not spec.hold and spec.pipeline is None:
        return
    begin = deadline.begin(spec, job.submitted_at) or Instant(0)
    _look(tx, job, now, begin=begin, held=spec.hold, first=True)


def array(tx: Transaction, fact: ArrayFact, now: Instant) -> None:
    """Take in what admission says of an array, as far as others wait for it, or it for others.

    Args:
        tx: Facts are added.
        fact: The fact; one that is read again after a restart changes nothing.
        now: The time of the decision.
    """
    state = tx.state
    match fact:
        case ArrayAdmitted() if (job_sequence(fact.array) or 0) > state.last_queued:
            spec, gated = fact.spec, is_gated(fact.spec)
            tx.record(ArraySeen(array=fact.array, vc=spec.vc, gated=gated, after=spec.after))
            if gated:
                begin = deadline.begin(spec, fact.submitted_at) or Instant(0)
                seen = state.arrays[fact.array]
                _look(tx, seen, now, begin=begin, held=spec.hold, first=True)
        case TasksRetried() if fact.number > state.last_asked and fact.array not in state.arrays:
            tx.record(ArraySeen(array=fact.array, vc=fact.vc, number=fact.number))
        case ArrayOver() if fact.array in state.arrays:
            if state.arrays[fact.array].number != fact.number:
                return  # It ended so before it was retried.
            tx.record(ArrayEnded(array=fact.array, end=fact.end, at=now))
            tx.soft.cancel_timer(BeginTime(fact.array))
        case _:
            pass  # Tasks are admission's own.


def hold(tx: Transaction, job: JobState | ArrayState, now: Instant) -> None:
    """Hold a job that has no GPUs, or an array without jobs; what was reserved is free for others.

    Args:
        tx: Facts are added; none if it is held already.
        job: It is queued, deferred, or has a reservation; or an array that is deferred.
        now: The time of the decision.
    """
    if isinstance(job, JobState) and job.state is State.RESERVED:
        tx.record(ReservationDropped(job=job.job, attempt=job.following, why=Reason.HELD))
    begin = job.deferral.begin if job.deferral is not None else Instant(0)
    _look(tx, job, now, begin=begin, held=True)


def release(tx: Transaction, job: JobState | ArrayState, now: Instant) -> None:
    """Let what is held go on: into its queue, or to wait for what else it has to.

    Args:
        tx: A fact is added; none if it is not held.
        job: Any unfinished job or array.
        now: The time of the decision.
    """
    if job.deferral is not None and job.deferral.held:
        _look(tx, job, now, begin=job.deferral.begin, held=False)


def resolve(tx: Transaction, now: Instant) -> None:
    """Look at the deferred jobs and arrays for which something has come.

    Args:
        tx: Facts are added; what is beyond one decision is left in its soft state.
        now: The time of the decision.
    """
    for key in tx.soft.room:
        tx.soft.resolving.update(dict.fromkeys(_next_of(tx.state, key)))
    tx.soft.room.clear()
    for _ in range(RESOLVED_MAX):
        if not tx.soft.resolving:
            return
        name = next(iter(tx.soft.resolving))
        del tx.soft.resolving[name]
        job = tx.state.jobs.get(name) or tx.state.arrays.get(name)
        if job is not None and job.deferral is not None:
            _look(tx, job, now, begin=job.deferral.begin, held=job.deferral.held)


def restarted(tx: Transaction) -> None:
    """Look at all that is deferred anew: what had come for it may not have been decided."""
    arrays = (name for name, each in tx.state.arrays.items() if each.deferral is not None)
    jobs = (name for name, job in tx.state.deferred.items() if not _waits_for_room(job))
    for name in sorted((*jobs, *arrays), key=lambda name: job_sequence(name) or 0):
        tx.soft.resolving[name] = None
    tx.soft.room.update(dict.fromkeys(tx.state.pipelines))


def _look(
    tx: Transaction,
    job: JobState | ArrayState,
    now: Instant,
    *,
    begin: Instant,
    held: bool,
    first: bool = False,
) -> None:
    """Record what becomes of a job or an array: its end, that it is deferred, or may go on."""
    name = job.job if isinstance(job, JobState) else job.array
    found = standing(tx.state, job, first=first)
    if found.never:
        _never(tx, job, found.never, now)
        tx.soft.cancel_timer(BeginTime(name))
        return
    if begin > now:
        tx.soft.set_timer(BeginTime(name), begin)
    told = _reason(found.awaits, begin, now, held=held)
    if told is None and (crowded := _crowded(tx.state, job)):
        told = Reason.WAITS_FOR_PIPELINE, crowded
    if told is None:
        if isinstance(job, ArrayState):
            tx.record(ArrayEligible(array=name, at=now))
        elif job.deferral is not None:
            tx.record(JobEligible(job=name, at=now))
        return
    known = job.deferral
    if known is not None and (job.waits, known.held) == (told, held):
        return  # Of the jobs that it waits for another one has ended; the log has that.
    why, needs = told
    if isinstance(job, ArrayState):
        tx.record(
            ArrayDeferred(
                array=name,
                why=why,
                at=now,
                needs=needs,
                awaits=found.awaits,
                begin=begin,
                held=held,
            )
        )
        return
    tx.record(
        JobDeferred(
            job=name, why=why, at=now, needs=needs, awaits=found.awaits, begin=begin, held=held
        )
    )


def _next_of(state: ClusterState, key: PipelineKey) -> list[str]:
    """Return the jobs that a pipeline has room for, in the order of their queue."""
    jobs = state.pipelines.get(key)
    if jobs is None:
        return []
    bounds = _bounds(state, jobs.let_in)
    found: list[str] = []
    waiting = (state.jobs[name] for name in jobs.deferred)
    for job in sorted(filter(_waits_for_room, waiting), key=lambda job: job.entry):
        (most,) = _bounds(state, (job.job,))
        if len(bounds) < min((most, *bounds)):
            bounds.append(most)
            found.append(job.job)
    return found


def _waits_for_room(job: JobState) -> bool:
    """Return whether a job waits for nothing but room in its pipeline."""
    return job.waits is not None and job.waits[0] is Reason.WAITS_FOR_PIPELINE


def _bounds(state: ClusterState, names: Iterable[str]) -> list[int]:
    """Return the `max_parallel` of jobs of a pipeline."""
    bounds = (state.jobs[name].spec.pipeline for name in names)
    return [bound.max_parallel for bound in bounds if bound is not None]


def _crowded(state: ClusterState, waits: JobState | ArrayState) -> str:
    """Return the pipeline that has no room for a job; empty: there is room, or no bound.

    Where its jobs say different bounds, the lowest of those at work holds. An array has no bound as
    a whole: each of its tasks is a job that has.
    """
    key = pipelines.key_of(waits) if isinstance(waits, JobState) else None
    if key is None or not isinstance(waits, JobState):
        return ""
    let_in = [name for name in state.pipelines[key].let_in if name != waits.job]
    room = len(let_in) < min(_bounds(state, (waits.job, *let_in)))
    return "" if room else key.name


def _asked(waits: JobState | ArrayState) -> tuple[str, After | None]:
    """Return the VC of a job or an array, and what it asked to run after."""
    if isinstance(waits, JobState):
        return waits.spec.vc, waits.spec.after
    return waits.vc, waits.after


def _never(tx: Transaction, job: JobState | ArrayState, detail: str, now: Instant) -> None:
    """Record that what a job or an array waits for can never come."""
    if isinstance(job, ArrayState):
        tx.record(ArrayBroken(array=job.array, at=now, detail=detail))
        return
    why = Reason.DEPENDENCY_NEVER_SATISFIED
    tx.record(ended(job, End.CANCELLED, why, now, detail))


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
