"""Finish-time fairness: how much later a job ends than on its tenant's fair share.

Themis (NSDI 2020, section 3.2) defines rho = T_sh / T_id: the time to finish in the shared cluster
over the time to finish on an exclusive share. A cluster is fair if no job's rho is much above 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from skep_lab.measures.job import completion
from skep_lab.measures.stat import Steps
from skep_lab.outcome import JobOutcome, RunResult

NS_END = 1
"""A job without run time still asks for its GPUs for this long."""


def shares(result: RunResult) -> dict[str, float]:
    """Return each tenant's fair share in GPUs: what its VC owns, else an equal part of all."""
    tenants = list(dict.fromkeys(outcome.job.vc for outcome in result.jobs))
    owned = result.vc_gpus
    if all(owned.get(vc) for vc in tenants):
        return {vc: float(owned[vc]) for vc in tenants}
    return {vc: result.gpus / len(tenants) for vc in tenants}


def finish_time_fairness(
    result: RunResult, share: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return rho by job id, for jobs that have ended and are not opportunistic.

    Without a run on the share itself, T_id is an estimate like Themis' T_id = T x N_avg: the run
    time in the trace, times the mean demand for the tenant's share while the job was there (GPUs of
    all its unfinished jobs over the GPUs of the share; at least 1). `rho_against` is exact, if
    there is such a run.

    Args:
        result: The run.
        share: By VC, its GPUs; None: `shares` of the result.
    """
    share = shares(result) if share is None else share
    asked = _asked(result)
    found: dict[str, float] = {}
    for outcome in result.jobs:
        took = completion(outcome)
        job = outcome.job
        if took is None or job.opportunistic or job.run_time <= 0 or share[job.vc] <= 0:
            continue
        wanted = asked[job.vc].mean(job.at, job.at + took)
        found[job.id] = took / (job.run_time * max(1.0, wanted / share[job.vc]))
    return found


def _asked(result: RunResult) -> dict[str, Steps]:
    """Return over time how many GPUs each tenant's unfinished jobs ask for."""
    changes: dict[str, list[tuple[int, float]]] = {}
    for outcome in result.jobs:
        job = outcome.job
        if job.opportunistic or outcome.refused:
            continue
        of_vc = changes.setdefault(job.vc, [])
        of_vc.append((job.at, job.gpus))
        if outcome.ended is not None:
            of_vc.append((max(outcome.ended, job.at + NS_END), -job.gpus))
    return {vc: Steps(each) for vc, each in changes.items()}


def rho_against(shared: RunResult, private: Mapping[str, JobOutcome]) -> dict[str, float]:
    """Return rho by job id, with T_id from a run of the tenant alone on its share.

    Args:
        shared: The run in the shared cluster.
        private: By job id, the outcome on the share.
    """
    found: dict[str, float] = {}
    for outcome in shared.jobs:
        there = private.get(outcome.job.id)
        took, alone_took = completion(outcome), completion(there) if there is not None else None
        if took is not None and alone_took:
            found[outcome.job.id] = took / alone_took
    return found
