"""Muri (SIGCOMM'22): Tiresias' columns and, for a mini-batch, its time on each resource.

All times are milliseconds. resource_time_0, _1 and _2 are what a mini-batch spends on CPU (reading
from storage), on GPU, and on network or output.
"""

from __future__ import annotations

from skep.units import seconds
from skep_lab.traces.formats.form import Form
from skep_lab.traces.formats.row import Row
from skep_lab.traces.job import TraceJob

DEMANDS = ("resource_time_0", "resource_time_1", "resource_time_2")


def _job(row: Row) -> TraceJob:
    return TraceJob(
        id=row.text("job_id"),
        at=seconds(row.number_of("submit_time") / 1e3),
        run_time=seconds(row.number_of("duration") / 1e3),
        gpus=row.gpus("num_gpu"),
        mini_batches=row.whole("iterations"),
        batch_size=row.whole_or_none("batch_size"),
        model=row.text("model_name"),
        priority=row.whole_or_none("priority"),
        demands=tuple(row.number_of(column) / 1e3 for column in DEMANDS),
    )


MURI = Form(
    "muri",
    "Muri (pkusys), milliseconds",
    ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", *DEMANDS),
    _job,
    ("batch_size", "interval", "iteration_time", "priority"),
)
