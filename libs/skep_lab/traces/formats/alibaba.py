"""Alibaba's GPU clusters: tasks of PAI in 2020, and the pods of 2023.

2020, pai_task_table.csv (clusterdata, cluster-trace-gpu-v2020), published without a header: a row
for each role of a job. Times are seconds; plan_cpu and plan_gpu are per cent of one CPU and one GPU
for each instance, plan_mem is GB. The time a task started stands for its submission.

2023, openb_pod_list_*.csv: a pod for each row, times in seconds, cpu and GPU in thousandths. A pod
runs from when it was scheduled to when it was deleted. Many ask for a part of a GPU or for none.
"""

from __future__ import annotations

from collections.abc import Set

import msgspec

from skep.units import GIB, MIB, Duration, seconds
from skep_lab.traces.formats.form import Form, Numbered
from skep_lab.traces.formats.row import NO_GPU, WHOLE, Row, RowError
from skep_lab.traces.job import RowProblem, TraceJob

TASKS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
STATES = ("Terminated", "Failed", "Running", "Waiting", "Ready")


def _task(row: Row) -> TraceJob:
    """Return one role of a job; without GPUs it counts as parameter servers.

    Raises:
        RowError: A value cannot be read, or the role has a fraction of a GPU.
    """
    instances = row.whole("inst_num", 1)
    each = row.number_of("plan_gpu") if row.has("plan_gpu") else 0.0
    if each % 100:
        percent = row.text("plan_gpu")
        text = f"asks for a fraction of a GPU: {percent} per cent"
        raise RowError(column="plan_gpu", text=text, hint=WHOLE)
    gpus = int(each // 100)
    kind = row.text("gpu_type").lower() if gpus else ""
    return TraceJob(
        id=row.text("job_name"),
        at=seconds(row.number_of("start_time")),
        run_time=_between(row, "start_time", "end_time"),
        gpus=gpus * instances,
        workers=instances if gpus else 0,
        servers=0 if gpus else instances,
        gpu_type=kind,
        cpus=round(row.number_of("plan_cpu") / 100) if row.has("plan_cpu") and gpus else 0,
        memory=round(row.number_of("plan_mem") * GIB) if row.has("plan_mem") and gpus else 0,
    )


def _merge(rows: list[Numbered], bad: Set[str]) -> tuple[list[Numbered], list[RowProblem], int]:
    """Return a job for all its roles, from the first one's start to the last one's end.

    Where an instance has more GPUs in one role than in another, there is no telling how a gang of
    workers that are alike would be spread: `workers` is 0 then, and so is what each one needs.
    """
    roles: dict[str, list[Numbered]] = {}
    for number, role in rows:
        roles.setdefault(role.id, []).append((number, role))
    jobs: list[Numbered] = []
    problems: list[RowProblem] = []
    merged = 0
    for name, group in roles.items():
        if name in bad:
            part = RowError("job_name", "is of a job of which another row cannot be used")
            problems += [part.at(number) for number, _ in group]
            continue
        gpus = sum(role.gpus for _, role in group)
        if not gpus:
            no_gpu = RowError("plan_gpu", "asks for no GPU", NO_GPU)
            problems += [no_gpu.at(number) for number, _ in group]
            continue
        merged += len(group) - 1
        begin = min(role.at for _, role in group)
        end = max(role.at + role.run_time for _, role in group)
        main = max((role for _, role in group), key=lambda role: role.gpus)
        changes = {
            "gpus": gpus,
            "workers": sum(role.workers for _, role in group),
            "servers": sum(role.servers for _, role in group),
            "at": begin,
            "run_time": end - begin,
        }
        if len({role.gpus // role.workers for _, role in group if role.workers}) > 1:
            changes |= {"workers": 0, "cpus": 0, "memory": 0}
        jobs.append((group[0][0], msgspec.structs.replace(main, **changes)))
    return jobs, problems, merged


def _between(row: Row, begin: str, end: str) -> Duration:
    for column in (begin, end):
        if not row.has(column):
            raise RowError(column, "is empty", "the job never began, or had not ended")
    return seconds(row.number_of(end) - row.number_of(begin))


def _pod(row: Row) -> TraceJob:
    gpus, part = row.gpus("num_gpu"), row.whole("gpu_milli")
    if part != 1000:
        text = f"asks for a fraction of a GPU: {part} thousandths"
        raise RowError(column="gpu_milli", text=text, hint=WHOLE)
    return TraceJob(
        id=row.text("name"),
        at=seconds(row.number_of("creation_time")),
        gpus=gpus,
        workers=1,
        run_time=_between(row, "scheduled_time", "deletion_time"),
        gpu_type=row.text("gpu_spec").split("|")[0].lower() if row.has("gpu_spec") else "",
        tied=row.has("gpu_spec"),
        cpus=-(-row.whole("cpu_milli") // 1000),
        memory=row.whole("memory_mib") * MIB,
        opportunistic=row.text("qos") == "BE",
    )


ALIBABA_2020 = Form(
    "alibaba-2020",
    "Alibaba PAI 2020 (pai_task_table.csv, with its header or without)",
    TASKS,
    _task,
    layouts=(TASKS,),
    known=lambda values: values[3] in STATES,
    from_first=True,
    merge=_merge,
)

ALIBABA_2023 = Form(
    "alibaba-2023",
    "Alibaba 2023 (openb_pod_list_*.csv)",
    (
        "name",
        "cpu_milli",
        "memory_mib",
        "num_gpu",
        "gpu_milli",
        "creation_time",
        "deletion_time",
        "scheduled_time",
    ),
    _pod,
    ("gpu_spec", "qos", "pod_phase"),
    from_first=True,
)
