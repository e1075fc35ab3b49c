"""Pollux (OSDI'21): the workloads of its simulator, a row for each job, time in seconds.

A row names the application, GPUs and batch size; how long it then takes is in measurements beside
it (`lengths.pollux`). Pollux itself gives its jobs other numbers of GPUs; here they are fixed.
"""

from __future__ import annotations

from skep.units import Duration, seconds
from skep_lab.traces.formats.form import Form
from skep_lab.traces.formats.row import Row
from skep_lab.traces.job import TraceJob


def _job(row: Row) -> TraceJob:
    return TraceJob(
        id=row.text("name"),
        at=seconds(row.number_of("time")),
        run_time=Duration(0),
        gpus=row.gpus("num_replicas"),
        model=row.text("application"),
        batch_size=row.whole("batch_size", 1),
    )


POLLUX = Form(
    "pollux",
    "Pollux (AdaptDL, osdi21-artifact, workload-*.csv)",
    ("name", "time", "application", "num_replicas", "batch_size"),
    _job,
    no_lengths=True,
)
