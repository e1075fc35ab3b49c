"""How facts change which jobs of a pipeline with `max_parallel` are let in.

What is kept of pipelines follows from the jobs: `take` is told of a job whose deferral changed, and
`over` of one that has ended.
"""

from __future__ import annotations

from skep.ledger.job_state import JobState
from skep.ledger.records import PipelineJobs, PipelineKey
from skep.ledger.state import ClusterState


def key_of(job: JobState) -> PipelineKey | None:
    """Return which pipeline a job is of; None: of none with a bound."""
    bound = job.spec.pipeline
    return None if bound is None else PipelineKey(job.spec.vc, job.owner, bound.name)


def take(state: ClusterState, job: JobState) -> None:
    """Take over that a job has come, is deferred, or is not any more."""
    key = key_of(job)
    if key is None:
        return
    jobs = state.pipelines.setdefault(key, PipelineJobs())
    if job.deferral is None:
        jobs.deferred.pop(job.job, None)
        jobs.let_in[job.job] = None
        return
    jobs.deferred[job.job] = None
    if job.job in jobs.let_in:
        del jobs.let_in[job.job]
        state.delta.pipelines += (key,)


def over(state: ClusterState, job: JobState) -> None:
    """Take over that a job has ended."""
    key = key_of(job)
    if key is None:
        return
    jobs = state.pipelines[key]
    if job.job in jobs.let_in:
        del jobs.let_in[job.job]
        state.delta.pipelines += (key,)
    jobs.deferred.pop(job.job, None)
    if not jobs.let_in and not jobs.deferred:
        del state.pipelines[key]


def check(state: ClusterState) -> None:
    """Assert that what is kept of pipelines is what the jobs say.

    Raises:
        AssertionError: It is not.
    """
    found: dict[PipelineKey, tuple[set[str], set[str]]] = {}
    for job in state.jobs.values():
        key = key_of(job)
        if key is not None:
            let_in, deferred = found.setdefault(key, (set(), set()))
            (let_in if job.deferral is None else deferred).add(job.job)
    kept = {key: (set(jobs.let_in), set(jobs.deferred)) for key, jobs in state.pipelines.items()}
    assert kept == found, (kept, found)
