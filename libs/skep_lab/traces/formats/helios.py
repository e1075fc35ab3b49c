"""SenseTime's Helios (SC'21): cluster_log.csv of S-Lab's HeliosData, a row for each Slurm job.

Times are a wall clock, duration is end - start in seconds. Jobs without GPUs are in it as well.
"""

from __future__ import annotations

from skep.units import seconds
from skep_lab.traces.formats.form import Form
from skep_lab.traces.formats.row import Row
from skep_lab.traces.job import TraceJob


def _job(row: Row) -> TraceJob:
    gpus, nodes = row.gpus("gpu_num"), row.whole_or_none("node_num")
    return TraceJob(
        id=row.text("job_id"),
        at=seconds(row.wall("submit_time")),
        gpus=gpus,
        run_time=seconds(row.number_of("duration")),
        workers=nodes if nodes and gpus % nodes == 0 else 0,
        vc=row.text("vc"),
        user=row.text("user"),
        cpus=row.whole_or_none("cpu_num") // max(1, nodes),
    )


HELIOS = Form(
    "helios",
    "SenseTime Helios 2020 (HeliosData, cluster_log.csv)",
    ("job_id", "user", "vc", "gpu_num", "submit_time", "duration"),
    _job,
    ("cpu_num", "node_num", "state", "start_time", "end_time", "queue"),
    from_first=True,
)
