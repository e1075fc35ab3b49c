"""How facts change which jobs wait outside of their queue, and what is kept of the ends of jobs.

    queued --JobDeferred--> deferred --JobEligible--> queued
                            deferred --JobEnded--> over

A deferred job waits for other jobs (`after`), for a time (`begin`), or is held. An array waits in
the same way before its first task becomes a job (`array_facts`). `awaited` is the index from a job
or an array to those that wait for its end. Ends are kept for dependencies that are yet to be
judged: those of the latest ENDS_KEPT jobs and arrays.
"""

from __future__ import annotations

from typing import assert_never

from skep.ids import job_sequence
from skep.ledger import pipelines
from skep.ledger.job_state import ArrayState, Deferral, JobState, State
from skep.ledger.records import JobOutcome
from skep.ledger.state import ClusterState
from skep.wire.facts import End, JobDeferred, JobEligible

ENDS_KEPT = 10_000
"""Ends of jobs that are kept, at 200 bytes each. Admission knows of half as many ended jobs, and
lets no job wait for others: it may be as many ends behind."""


def apply(state: ClusterState, fact: JobDeferred | JobEligible) -> None:
    """Take over that a job leaves its queue, waits for something else, or enters its queue."""
    job = state.jobs[fact.job]
    match fact:
        case JobDeferred():
            _defer(state, job, fact)
        case JobEligible():
            forget(state, job.job, job)
            pipelines.take(state, job)
            job.move("JobEligible")
            job.waits, job.waiting_since = None, fact.at
            state.queue(job).add(job.entry)
        case _:
            assert_never(fact)


def _defer(state: ClusterState, job: JobState, fact: JobDeferred) -> None:
    before = job.state
    job.move("JobDeferred")
    job.waits = fact.why, fact.needs
    if job.deferral is not None:
        job.deferral.begin, job.deferral.held = fact.begin, fact.held
        return  # What it awaits only becomes less, by the ends of those jobs.
    if before is State.QUEUED and state.parked.pop(job.job, None) is None:
        state.queue(job).remove(job.entry)
    job.deferral = Deferral(dict.fromkeys(fact.awaits), fact.begin, fact.held)
    state.deferred[job.job] = job
    index(state, job.job, job)
    pipelines.take(state, job)


def index(state: ClusterState, name: str, waits: JobState | ArrayState) -> None:
    """Note what a deferred job or array waits for."""
    assert waits.deferral is not None, name
    for other in waits.deferral.awaits:
        state.awaited.setdefault(other, {})[name] = None


def forget(state: ClusterState, name: str, waits: JobState | ArrayState) -> None:
    """Have a job or an array wait no more: it goes on, or is over."""
    assert waits.deferral is not None, name
    state.deferred.pop(name, None)
    for other in waits.deferral.awaits:
        others = state.awaited[other]
        del others[name]
        if not others:
            del state.awaited[other]
    waits.deferral = None


def over(state: ClusterState, name: str, vc: str, end: End) -> None:
    """Take over the end of a job or an array: what waited for it waits for one less.

    Args:
        state: Changed; whose turn it is to be looked at is in its `delta`.
        name: What is over; it waits for nothing any more.
        vc: Its VC.
        end: How it ended.
    """
    state.ends.pop(name, None)  # An array that was retried: it is the latest again.
    state.ends[name] = JobOutcome(vc, end)
    if len(state.ends) > ENDS_KEPT:
        del state.ends[next(iter(state.ends))]
    others = state.awaited.pop(name, None)
    if not others:
        return
    for other in others:
        waits = state.jobs.get(other) or state.arrays[other]
        assert waits.deferral is not None, other
        del waits.deferral.awaits[name]
    state.delta.resolves = tuple(sorted(others, key=lambda other: job_sequence(other) or 0))


def check(state: ClusterState) -> None:
    """Assert that what is outside of its queue is what waits, and what it waits for.

    Raises:
        AssertionError: They are not.
    """
    awaited: dict[str, dict[str, None]] = {}
    for job in state.jobs.values():
        assert (job.state is State.DEFERRED) == (job.deferral is not None), job
        assert (job.state is State.DEFERRED) == (job.job in state.deferred), job
        for name in job.deferral.awaits if job.deferral is not None else ():
            awaited.setdefault(name, {})[job.job] = None
    for array in state.arrays.values():
        assert array.gated or array.deferral is None, array
        for name in array.deferral.awaits if array.deferral is not None else ():
            awaited.setdefault(name, {})[array.array] = None
    assert awaited == state.awaited
    pipelines.check(state)
    assert all(name in state.jobs or name in state.arrays for name in awaited), awaited
    assert not state.ends.keys() & (state.jobs.keys() | state.arrays.keys())
    assert not state.arrays.keys() & state.jobs.keys()
