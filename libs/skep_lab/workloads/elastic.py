"""Jobs of traces as elastic ones: how many GPUs they may have, and which batch sizes.

Traces of elastic schedulers (Pollux, ElasticFlow, DL²) name the GPUs for which a job was tuned.
How far it can grow is in the measurements beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from skep_lab.traces.job import RowProblem, Trace, TraceJob
from skep_lab.workloads.table import Limits

Elasticity = Literal["no", "size", "batch"]
"""What jobs may change while they run: nothing, their number of workers, or that and their batch
size."""


def elastic(
    trace: Trace,
    limits: Callable[[TraceJob], Limits | None],
    mini_batch_s: Callable[[TraceJob], float],
    gpus: int,
    *,
    batch: bool,
) -> Trace:
    """Return a trace in which every job with known limits has one GPU per worker, and is elastic.

    Its mini-batches are counted if the trace does not tell them: predictions of its end need them.
    A job with parameter servers keeps the sizes that its trace says.

    Args:
        trace: The jobs.
        limits: How far a job can grow; None: unknown, and the job stays as it is.
        mini_batch_s: Seconds of a mini-batch in the trace; 0.0: unknown.
        gpus: GPUs of the cluster: no job may have more.
        batch: Whether jobs may change their batch size as well.
    """
    jobs, left = [], 0
    for job in trace.jobs:
        found = limits(job)
        step_s = mini_batch_s(job)
        steps = round(job.run_time / 1e9 / step_s) if step_s else 0
        if found is None or job.servers:
            already = bool(steps and job.workers_max)  # It is elastic in its trace.
            made = steps if already and not job.mini_batches else job.mini_batches
            jobs.append(msgspec.structs.replace(job, mini_batches=made))
            left += not already
            continue
        adapts = batch and found.batch > 0
        most = min(found.gpus_adapting if adapts else found.gpus, gpus)
        jobs.append(
            msgspec.structs.replace(
                job,
                workers=job.gpus,
                workers_min=1,
                workers_max=max(most, job.gpus),
                batch_max=max(found.batch, job.batch_size) if adapts else 0,
                mini_batches=job.mini_batches or max(steps, 1),
            )
        )
    notes = trace.notes
    if left:
        text = f"{left} jobs are not elastic: nothing says how far they can grow"
        notes = (*notes, RowProblem(0, text))
    return msgspec.structs.replace(trace, jobs=tuple(jobs), notes=notes)
