"""Statistics of a trace."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from skep.units import in_seconds
from skep_lab.traces.job import Trace

HOUR_S = 3600.0
T = TypeVar("T", int, str)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in numbers; times are seconds. Counts by size, VC and model are of jobs."""

    name: str
    jobs: int
    gpus: dict[int, int]
    """By the GPUs of a job, ascending."""
    vcs: dict[str, int]
    models: dict[str, int]
    """Most jobs first, as in `vcs`."""
    span_s: float
    """From the first submission to the last."""
    run_mean_s: float
    run_median_s: float
    run_p99_s: float
    run_max_s: float
    gpu_hours: float
    demand: float
    """GPUs that would be busy on average if every job ran when it was submitted; 0.0: no span."""
    deadlines: int
    opportunistic: int
    elastic: int


def summary(trace: Trace) -> Summary:
    """Return a trace in numbers; all 0 if it has no jobs."""
    jobs = trace.jobs
    runs = sorted(in_seconds(job.run_time) for job in jobs)
    work = sum(job.gpus * in_seconds(job.run_time) for job in jobs)
    span = in_seconds(jobs[-1].at - jobs[0].at) if jobs else 0.0
    sizes = _counted([job.gpus for job in jobs])
    return Summary(
        name=trace.name,
        jobs=len(jobs),
        gpus=dict(sorted(sizes.items())),
        vcs=_counted([job.vc for job in jobs if job.vc]),
        models=_counted([job.model for job in jobs if job.model]),
        span_s=span,
        run_mean_s=sum(runs) / len(runs) if runs else 0.0,
        run_median_s=_part(runs, 0.5),
        run_p99_s=_part(runs, 0.99),
        run_max_s=_part(runs, 1.0),
        gpu_hours=work / HOUR_S,
        demand=work / span if span else 0.0,
        deadlines=sum(job.deadline is not None for job in jobs),
        opportunistic=sum(job.opportunistic for job in jobs),
        elastic=sum(job.workers_max > 0 for job in jobs),
    )


def _counted(values: list[T]) -> dict[T, int]:
    """Return how often each value occurs, most frequent first; equal ones by value."""
    counts: dict[T, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _part(ordered: list[float], part: float) -> float:
    """Return the quantile of ascending values; 0.0 if there are none."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
