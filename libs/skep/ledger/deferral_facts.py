"""How facts change which jobs wait outside of their queue, and what is kept of the ends of jobs.

    queued --JobDeferred--> deferred --JobEligible--> queued
                            deferred --JobEnded--> over

A deferred job waits for other jobs (`after`), for a time (`begin`), or is held. `awaited` is the
index from a job to those that wait for its end. Ends are kept for dependencies that are yet to be
judged: those of the latest ENDS_KEPT jobs.
"""

from __future__ import annotations

from typing import assert_never

from skep.ledger.job_state import Deferral, JobState, State
from skep.ledger.records import JobOutcome
from skep.ledger.state import ClusterState
from skep.wire.facts import JobDeferred, JobEligible, JobEnded

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
            forget(state, job)
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
    index(state, job)


def index(state: ClusterState, job: JobState) -> None:
    """Note which jobs a deferred job waits for."""
    assert job.deferral is not None, job
    for name in job.deferral.awaits:
        state.awaited.setdefault(name, {})[job.job] = None


def forget(state: ClusterState, job: JobState) -> None:
    """Have a job wait outside of its queue no more: it enters that, or is over."""
    assert job.deferral is not None, job
    del state.deferred[job.job]
    for name in job.deferral.awaits:
        others = state.awaited[name]
        del others[job.job]
        if not others:
            del state.awaited[name]
    job.deferral = None


def ended(state: ClusterState, job: JobState, fact: JobEnded) -> None:
    """Take over the end of a job: the jobs that waited for it wait for one less.

    Args:
        state: Changed; whose turn it is to be looked at is in its `delta`.
        job: The job that is over; it is in no queue any more.
        fact: How it ended.
    """
    state.ends[job.job] = JobOutcome(job.spec.vc, fact.end)
    if len(state.ends) > ENDS_KEPT:
        del state.ends[next(iter(state.ends))]
    others = state.awaited.pop(job.job, None)
    if not others:
        return
    for name in others:
        deferral = state.jobs[name].deferral
        assert deferral is not None, name
        del deferral.awaits[job.job]
    state.delta.resolves = tuple(sorted(others, key=lambda name: state.jobs[name].sequence))


def check(state: ClusterState) -> None:
    """Assert that the jobs outside of their queues are those that wait, and what they wait for.

    Raises:
        AssertionError: They are not.
    """
    awaited: dict[str, dict[str, None]] = {}
    for job in state.jobs.values():
        assert (job.state is State.DEFERRED) == (job.deferral is not None), job
        assert (job.state is State.DEFERRED) == (job.job in state.deferred), job
        for name in job.deferral.awaits if job.deferral is not None else ():
            awaited.setdefault(name, {})[job.job] = None
    assert awaited == state.awaited
    assert all(name in state.jobs for name in awaited), awaited
    assert not state.ends.keys() & state.jobs.keys()
