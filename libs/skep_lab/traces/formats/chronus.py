"""Chronus (SoCC'21): jobs with deadlines; every time is in minutes.

expect_time_list are minutes after submission: the first is when the job should have ended, later
ones (between dashes) are worth less. A best-effort job has none. Virtual clusters were drawn anew
by its authors, and some jobs ask for no GPU.
"""

from __future__ import annotations

from skep.units import Duration, seconds
from skep_lab.traces.formats.form import Form
from skep_lab.traces.formats.row import NUMBER_MAX, Row, RowError
from skep_lab.traces.job import TraceJob


def _job(row: Row) -> TraceJob:
    at = seconds(row.number_of("submit_time") * 60)
    return TraceJob(
        id=row.text("job_id"),
        at=at,
        gpus=row.gpus("num_gpu"),
        run_time=seconds(row.number_of("duration") * 60),
        mini_batches=row.whole("iterations"),
        model=row.text("model_name"),
        vc=row.text("user").removeprefix("vc_"),
        deadline=_deadline(row, at),
    )


def _deadline(row: Row, at: Duration) -> Duration | None:
    if row.whole("best_effort"):
        return None
    first = row.text("expect_time_list").split("-")[0]
    try:
        minutes = float(first)
    except ValueError:
        minutes = float("nan")
    if not abs(minutes) < NUMBER_MAX:
        text = f"is not a number: {first[:40]!r}"
        raise RowError(column="expect_time_list", text=text, hint="minutes, such as 102-142-182")
    return Duration(at + seconds(minutes * 60))


CHRONUS = Form(
    "chronus",
    "Chronus (S-Lab, Philly with deadlines), minutes",
    (
        "job_id",
        "user",
        "num_gpu",
        "submit_time",
        "iterations",
        "model_name",
        "duration",
        "expect_time_list",
        "best_effort",
    ),
    _job,
    ("interval", "expect_value_list", "job_type"),
)
