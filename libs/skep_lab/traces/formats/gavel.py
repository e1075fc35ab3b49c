"""Gavel (OSDI'20) and Shockwave (NSDI'23): values between tabs, without a header.

Three layouts are distinguished by the number of values in a row: 7 (Gavel's Philly traces), 10 (its
later ones), and 12 (Shockwave's, the only one with run times). Gavel's rows contain the steps of a
job; run times come from its measured speeds (`lengths.gavel`). Times are seconds. A model's name
contains its batch size: "ResNet-18 (batch size 32)". Priority weights and SLOs are not read.
"""

from __future__ import annotations

import re

from skep.units import Duration, seconds
from skep_lab.traces.formats.form import Form
from skep_lab.traces.formats.row import Row, RowError
from skep_lab.traces.job import TraceJob

OLD = (
    "job_type",
    "command",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "arrival",
    "scale_factor",
)
NEW = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival",
)
SHOCKWAVE = (*NEW[:7], "mode", "priority_weight", "SLO", "duration", "arrival")
BATCH = re.compile(r"\(batch size (\d+)\)\s*$")


def _job(row: Row) -> TraceJob:
    model = row.text("job_type")
    batch = BATCH.search(model)
    gpus, at = row.gpus("scale_factor"), seconds(row.number_of("arrival"))
    run_time = seconds(row.number_of("duration")) if row.has("duration") else Duration(0)
    if row.has("duration") and run_time == 0:
        raise RowError(column="duration", text="runs for no time")
    return TraceJob(
        id=f"g{row.number}",
        at=at,
        run_time=run_time,
        gpus=gpus,
        model=model,
        mini_batches=row.whole("total_steps", 1),
        batch_size=int(batch[1]) if batch else 0,
    )


def _like(values: list[str]) -> bool:
    at = {7: 4, 10: 5, 12: 5}[len(values)]
    return values[at].strip().isdigit()


GAVEL = Form(
    "gavel",
    "Gavel and Shockwave (7, 10 or 12 values between tabs)",
    ("job_type", "total_steps", "scale_factor", "arrival"),
    _job,
    layouts=(OLD, NEW, SHOCKWAVE),
    known=_like,
    tabs=True,
    no_lengths=True,
)
