"""Tiresias' simulator (NSDI'19), whose columns many others took over; times in seconds."""

from __future__ import annotations

from skep.units import seconds
from skep_lab.traces.formats.form import Form
from skep_lab.traces.formats.row import Row
from skep_lab.traces.job import TraceJob


def _job(row: Row) -> TraceJob:
    return TraceJob(
        id=row.text("job_id"),
        at=seconds(row.number_of("submit_time")),
        run_time=seconds(row.number_of("duration")),
        gpus=row.gpus("num_gpu"),
        mini_batches=row.whole("iterations"),
        model=row.text("model_name"),
        vc=row.text("vc"),
    )


TIRESIAS = Form(
    "tiresias",
    "Tiresias (SymbioticLab, simulator)",
    ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration"),
    _job,
    ("interval", "vc"),
)
