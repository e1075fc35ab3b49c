"""Run times for traces that only contain work: from measurements of their authors."""

from __future__ import annotations

import ast
import csv
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from skep_lab.traces.job import TraceJob

GAVEL_TYPE = "v100"
"""The fastest of Gavel's three, whose speed is 1."""
POLLUX_EPOCHS = {
    "bert": 2,
    "cifar10": 100,
    "ncf": 10,
    "imagenet": 90,
    "deepspeech2": 80,
    "yolov3": 50,
}
"""How long each application trains (Pollux's simulator, applications.py)."""
POLLUX_LOCAL_MOST = {"yolov3": 8}
"""Samples that a GPU takes at once, where it is fewer than were measured (there as well)."""
POLLUX_NODE_GPUS = 4


def gavel(lines: Iterable[str]) -> Callable[[TraceJob], float]:
    """Return a function for run times by Gavel's speeds on a V100, on as few nodes as possible.

    Args:
        lines: `isolated_throughput.csv` (gpu_type, placement, job_type, num_gpus, iters_per_s)
            or `simulation_throughputs.json`.

    Raises:
        ValueError: The lines are of neither.
    """
    text = "".join(lines)
    rates = _gavel_json(text) if text.lstrip().startswith("{") else _gavel_csv(text)

    def length(job: TraceJob) -> float:
        rate = rates.get((job.model, job.gpus), 0.0)
        return job.mini_batches / rate if rate else 0.0

    return length


def _gavel_csv(text: str) -> dict[tuple[str, int], float]:
    rows = csv.DictReader(text.splitlines())
    needed = {"gpu_type", "placement", "job_type", "num_gpus", "iters_per_s"}
    if not needed <= dict.fromkeys(rows.fieldnames or ()).keys():
        msg = f"Gavel's speeds have the columns {', '.join(sorted(needed))}"
        raise ValueError(msg)
    return {
        (row["job_type"], int(row["num_gpus"])): float(row["iters_per_s"])
        for row in rows
        if row["gpu_type"] == GAVEL_TYPE and row["placement"] == "consolidated"
    }


def _gavel_json(text: str) -> dict[tuple[str, int], float]:
    try:
        table = msgspec.json.decode(text)[GAVEL_TYPE]
        alone = {ast.literal_eval(key): rates["null"] for key, rates in table.items()}
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, SyntaxError) as error:
        msg = f"these are not Gavel's speeds: {error!r}"
        raise ValueError(msg) from None
    return {(job_type, gpus): float(rate) for (job_type, gpus), rate in alone.items()}


class Measured(NamedTuple):
    """One application of Pollux: the lines of its tables, steps to the end by batch size."""

    placements: tuple[str, ...]
    """Lines of placements.csv."""
    validation: Mapping[int, tuple[str, ...]]
    """Lines of validation-N.csv by N, the batch size."""


def pollux(applications: Mapping[str, Measured]) -> Callable[[TraceJob], float]:
    """Return a function for run times of Pollux's applications: steps, by the time of a step.

    GPUs are on nodes of four, as few as hold them. Where so many were not measured, the nearest
    number is taken; between local batch sizes it is linear; what a GPU cannot take at once it adds
    up in several passes, of which only the last synchronises.

    Args:
        applications: By the name of its model.

    Returns:
        A function that returns seconds; 0.0 for other batch sizes and models.
    """
    steps = {name: _steps(name, each) for name, each in applications.items()}
    times = {name: _step_times(each) for name, each in applications.items()}

    def length(job: TraceJob) -> float:
        count = steps.get(job.model, {}).get(job.batch_size, 0.0)
        return count * _step(job, times[job.model]) if count else 0.0

    return length


def _steps(name: str, measured: Measured) -> dict[int, float]:
    """Return the steps until an application's last epoch has ended, by batch size."""
    found = {}
    for batch, lines in measured.validation.items():
        iterations = [float(row["iteration"]) for row in csv.DictReader(lines)]
        epochs = min(POLLUX_EPOCHS.get(name, len(iterations)), len(iterations))
        found[batch] = iterations[epochs - 1]
    return found


StepTimes = dict[tuple[int, int], list[tuple[float, float, float]]]
"""By nodes and GPUs: local batch size, seconds of a step, seconds of it for synchronisation."""


def _step_times(measured: Measured) -> StepTimes:
    """Return the step times of the placements that fill nodes of four but for one."""
    times: StepTimes = {}
    for row in csv.DictReader(measured.placements):
        spread = sorted(map(int, row["placement"]), reverse=True)
        if all(gpus == POLLUX_NODE_GPUS for gpus in spread[:-1]):
            key = (len(spread), sum(spread))
            values = (float(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"]))
            times.setdefault(key, []).append(values)
    for each in times.values():
        each.sort()
    return times


def _step(job: TraceJob, times: StepTimes) -> float:
    nearest = min(times, key=lambda key: (abs(key[1] - job.gpus), key))
    measured = times[nearest]
    most = POLLUX_LOCAL_MOST.get(job.model, measured[-1][0])
    local = math.ceil(job.batch_size / job.gpus - 1e-8)
    passes = math.ceil(local / most - 1e-8)
    step_s, sync_s = _between(measured, math.ceil(local / passes - 1e-8))
    return step_s + (passes - 1) * (step_s - sync_s)


def _between(measured: list[tuple[float, float, float]], local: float) -> tuple[float, float]:
    """Return the times at a local batch size: linear between two, the ends' beyond them."""
    below = max((each for each in measured if each[0] <= local), default=measured[0])
    above = min((each for each in measured if each[0] >= local), default=measured[-1])
    if below[0] == above[0]:
        return below[1], below[2]
    part = (local - below[0]) / (above[0] - below[0])
    return below[1] + part * (above[1] - below[1]), below[2] + part * (above[2] - below[2])
