"""ElasticFlow (ASPLOS'23): elastic jobs with absolute deadlines, seconds.

num_gpu and duration are those of the trace it was made from; how fast a job is on other numbers is
in tables beside it. Where a column is there twice (real_duration), the plain one is read.
"""

from __future__ import annotations

from skep.units import seconds
from skep_lab.traces.formats.form import Form
from skep_lab.traces.formats.row import Row
from skep_lab.traces.job import TraceJob


def _job(row: Row) -> TraceJob:
    best_effort = row.has("best_effort") and row.whole("best_effort") > 0
    return TraceJob(
        id=row.text("job_id"),
        at=seconds(row.number_of("submit_time")),
        gpus=row.gpus("num_gpu"),
        run_time=seconds(row.number_of("duration")),
        mini_batches=row.whole("iteration"),
        batch_size=row.whole("batch_size"),
        model=row.text("model_name"),
        deadline=None if best_effort else seconds(row.number_of("ddl")),
    )


ELASTICFLOW = Form(
    "elasticflow",
    "ElasticFlow (pkusys)",
    (
        "job_id",
        "submit_time",
        "iteration",
        "model_name",
        "ddl",
        "batch_size",
        "num_gpu",
        "duration",
    ),
    _job,
    ("best_effort", "real_iteration", "real_duration"),
    from_first=True,
)
