"""Proven partners: two jobs whose pack was tried and kept, as the facts tell it.

When both have to stand for others, they may go on together without another trial.
"""

from __future__ import annotations

from typing import Any

from skep.ledger.job_state import JobState
from skep.ledger.state import ClusterState
from skep.wire.trials import TrialOver, Verdict

MILLI = 1000


def judged(state: ClusterState, fact: TrialOver, needed_milli: int) -> None:
    """Take over a verdict: a trial of two jobs is a pack."""
    if len(fact.jobs) != 2:
        return
    pair = [state.jobs.get(name) for name in fact.jobs]
    kept = fact.verdict is Verdict.KEPT and all(job is not None for job in pair)
    for job, other in zip(pair, reversed(fact.jobs), strict=True):
        if job is None:
            continue
        if kept or job.proven_partner == other:
            parted(state, job)
        if kept:
            job.proven_partner, job.proven_milli = other, max(MILLI, needed_milli + fact.gain_milli)


def parted(state: ClusterState, job: JobState) -> None:
    """Forget the proven partner of a job: its rates may not say so any more."""
    other = state.jobs.get(job.proven_partner)
    if other is not None and other.proven_partner == job.job:
        other.proven_partner, other.proven_milli = "", 0
        state.delta.views += (other.job,)
    job.proven_partner, job.proven_milli = "", 0


def shown(state: ClusterState, job: JobState) -> dict[str, Any]:
    """Return what of a job's view is known of this."""
    if job.proven_partner not in state.jobs:
        return {}
    return {"proven_partner": job.proven_partner, "proven_milli": job.proven_milli}
