"""Microsoft's Philly cluster, as AdaptDL's and Sia's artifacts publish it (a row for each job).

timestamp is the submission by the cluster's own clock, duration the seconds of all attempts
together, cluster the virtual cluster. Rows are not in order.
"""

from __future__ import annotations

from skep.units import seconds
from skep_lab.traces.formats.form import Form
from skep_lab.traces.formats.row import Row
from skep_lab.traces.job import TraceJob


def _job(row: Row) -> TraceJob:
    return TraceJob(
        id=f"p{row.number}",
        at=seconds(row.wall("timestamp")),
        gpus=row.gpus("num_gpus"),
        run_time=seconds(row.number_of("duration")),
        vc=row.text("cluster"),
    )


PHILLY = Form(
    "philly",
    "Microsoft Philly 2017 (AdaptDL's philly.csv)",
    ("timestamp", "duration", "num_gpus", "cluster"),
    _job,
    ("gpu_time",),
    from_first=True,
)
