"""Pollux's measurements: six applications at every split of up to 16 T4s on up to 4 nodes.

Qiao et al., OSDI'21; `placements.csv` and, for 6 to 16 nodes, `scalability.csv`. Batch sizes are
those of the gang: with more GPUs each has less to do, and a mini-batch that does not fit is done in
several steps, of which only the last one waits for the others (gradient accumulation).

A split that was not measured is the mean of the four most alike that were, weighted by how alike
they are: in GPUs, nodes, and GPUs of the fullest and the emptiest node, each counted in doublings.
What is on one node is compared with what is on one node only. It is never faster than the best
split of as many GPUs over as many nodes that was measured, or, if there is none, over the next
smaller number of nodes: going further apart gains only where that was seen.
`tests/system/validate_workloads.py` says how far off that is for splits that were measured.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from skep_lab.traces.formats.lengths import POLLUX_EPOCHS, POLLUX_LOCAL_MOST
from skep_lab.workloads import efficiency
from skep_lab.workloads.efficiency import Training
from skep_lab.workloads.table import Limits, Place, Spread, Table, Work

NODES_DENSE = 4
"""Up to so many nodes every split was measured, in `placements.csv`."""
ALIKE = 4
"""Fewer and more of them are no closer to splits left out."""

BATCH_STEPS = 4
"""Batch sizes of each doubling among which a job chooses its best one."""
ONE_GPU = ("ncf",)
"""Applications that have one GPU in Pollux's experiments, at a batch size that fills it."""


class Step(NamedTuple):
    """Seconds of one step, and of those the wait for the other workers."""

    step_s: float
    sync_s: float


Measured = dict[Spread, dict[int, Step]]
"""By split, by batch size of one GPU."""


class Pollux(Table):
    """Steps by application, split, and batch size of a GPU."""

    name = "pollux"
    origin = "Pollux (OSDI'21): T4; every split of 1 to 16 GPUs over 1 to 4 nodes, and 6 to 16"
    gpu_types = ("t4",)

    def __init__(
        self, applications: Mapping[str, Measured], training: Mapping[str, Training] = {}
    ) -> None:
        self.applications = applications
        self.training = training

    def models(self) -> tuple[str, ...]:
        return tuple(sorted(self.applications))

    def rate(self, work: Work, place: Place) -> float | None:
        if place.gpu_type not in ("", *self.gpu_types) or work.model not in self.applications:
            return None
        return 1 / self.step(work, place.spread).step_s

    def locality(self, work: Work, place: Place, fewest: Spread) -> float | None:
        if work.model not in self.applications:
            return None
        return self.step(work, fewest).step_s / self.step(work, place.spread).step_s

    def utilisation(self, work: Work, place: Place) -> float | None:
        """Return the part of a mini-batch that is not a wait for other workers."""
        if work.model not in self.applications:
            return None
        step = self.step(work, place.spread)
        return max(1 - step.sync_s / step.step_s, 0.0)

    def limits(self, work: Work) -> Limits | None:
        """Return how far a job can grow: each GPU has at least the smallest measured batch."""
        measured = self.applications.get(work.model)
        if measured is None:
            return None
        if work.model in ONE_GPU:
            return Limits(1, 1)
        least = min(size for sizes in measured.values() for size in sizes)
        fixed = max(int(work.gang_batch) // least, 1)
        training = self.training.get(work.model)
        if training is None:
            return Limits(fixed)
        return Limits(fixed, max(training.most // least, 1), training.most)

    def adapted(self, work: Work, place: Place, batch_max: int, stage: int) -> float | None:
        """Return the goodput at the best batch size, relative to that of the trace's.

        Goodput is throughput times statistical efficiency (Pollux, equation 6): here progress per
        second, in mini-batches of the batch size at which the application begins.
        """
        training = self.training.get(work.model)
        if training is None or work.model not in self.applications:
            return None
        own = int(work.gang_batch) or training.base
        fixed = training.mean(own) / self._step_s(work, own, place)
        best = max(
            training.gain(batch, stage) / self._step_s(work, batch, place)
            for batch in _batches(training.base, min(max(batch_max, own), training.most), own)
        )
        return best / fixed

    def _step_s(self, work: Work, batch: int, place: Place) -> float:
        return self.step(work._replace(batch=batch, each=False), place.spread).step_s

    def seconds(self, work: Work, place: Place) -> float | None:
        rate = self.rate(work, place)
        return 1 / rate if rate else None

    def step(self, work: Work, spread: Spread) -> Step:
        """Return what one mini-batch of the gang takes at any split."""
        measured = self.applications[work.model]
        local = self.local_batch(work) * work.gpus / sum(spread)
        own = at_batch(measured[spread], local) if spread in measured else None
        if own is not None:
            return own
        guessed = alike(measured, spread, local)
        bound = _best_seen(measured, spread, local)
        slower = max(guessed.step_s, bound)
        return Step(slower, guessed.sync_s + slower - guessed.step_s)

    def local_batch(self, work: Work) -> float:
        """Return the batch size of a GPU in the trace; if it is unknown, a middling one."""
        if work.batch:
            return work.worker_batch
        splits = self.applications[work.model].values()
        sizes = max((sorted(sizes) for sizes in splits), key=len)
        return sizes[len(sizes) // 2]


def _batches(least: int, most: int, own: int) -> list[int]:
    """Return the batch sizes among which a job chooses: its own, and some of each doubling."""
    count = max(math.ceil(math.log2(most / least) * BATCH_STEPS), 0)
    sizes = [round(least * 2 ** (step / BATCH_STEPS)) for step in range(count)]
    return sorted({*(size for size in sizes if size <= most), most, own})


def at_batch(sizes: Mapping[int, Step], local: float) -> Step:
    """Return the step at a batch size.

    It is linear between two measured sizes; above the largest it consists of several steps.

    Args:
        sizes: Steps by batch size of a GPU.
        local: The batch size of a GPU.
    """
    ordered = sorted(sizes)
    steps = max(math.ceil(local / ordered[-1]), 1)
    at = max(local / steps, ordered[0])
    above = min(bisect_left(ordered, at), len(ordered) - 1)
    below = above if ordered[above] <= at else max(above - 1, 0)
    low, high = sizes[ordered[below]], sizes[ordered[above]]
    width = ordered[above] - ordered[below]
    part = (at - ordered[below]) / width if width else 0.0
    step_s = low.step_s + part * (high.step_s - low.step_s)
    sync_s = low.sync_s + part * (high.sync_s - low.sync_s)
    return Step(step_s + (steps - 1) * max(step_s - sync_s, 0.0), sync_s)


def alike(measured: Measured, spread: Spread, local: float) -> Step:
    """Return the weighted mean of the steps at splits that are similar to this one.

    Means are geometric, and weights fall with the square of the distance.

    Args:
        measured: Steps by split and batch size.
        spread: The split.
        local: The batch size of a GPU.
    """
    here = _features(spread)
    near = sorted(
        (math.dist(here, _features(other)), other)
        for other in measured
        if (len(other) == 1) is (len(spread) == 1)
    )[:ALIKE]
    if not near:  # Nothing over several nodes was measured.
        near = sorted((math.dist(here, _features(other)), other) for other in measured)[:ALIKE]
    weights = [1 / (distance + 1e-6) ** 2 for distance, _ in near]
    steps = [at_batch(measured[other], local) for _, other in near]
    total = sum(weights)
    logs = sum(w * math.log(step.step_s) for w, step in zip(weights, steps, strict=True)) / total
    share = sum(w * step.sync_s / step.step_s for w, step in zip(weights, steps, strict=True))
    return Step(math.exp(logs), math.exp(logs) * share / total)


def _best_seen(measured: Measured, spread: Spread, local: float) -> float:
    """Return the shortest step of as many GPUs on as many nodes, else on the next fewer; or 0."""
    gpus = sum(spread)
    fewer = [other for other in measured if sum(other) == gpus and len(other) <= len(spread)]
    most = max(map(len, fewer), default=0)
    steps = [at_batch(measured[other], local).step_s for other in fewer if len(other) == most]
    return min(steps, default=0.0)


def _features(spread: Spread) -> tuple[float, float, float, float]:
    return (
        math.log2(sum(spread)),
        math.log2(len(spread)),
        math.log2(spread[0]),
        math.log2(spread[-1]),
    )


def parse(
    placements: Mapping[str, Iterable[str]],
    scalability: Mapping[str, Iterable[str]],
    validation: Mapping[str, Mapping[int, Iterable[str]]] = {},
) -> Pollux:
    """Return the table in the files of each application.

    Splits that differ only in order are averaged.

    Args:
        placements: By application, the lines of `placements.csv`.
        scalability: By application, the lines of `scalability.csv`.
        validation: By application and batch size, the lines of `validation-N.csv`.

    Raises:
        ValueError: An application has no placements.
    """
    applications: dict[str, Measured] = {}
    for model, lines in placements.items():
        rows: dict[Spread, dict[int, list[Step]]] = {}
        most = POLLUX_LOCAL_MOST.get(model, math.inf)
        for row in csv.DictReader(lines):
            spread = tuple(sorted(map(int, row["placement"]), reverse=True))
            _note(rows, spread, row, most)
        for row in csv.DictReader(scalability.get(model, ())):
            nodes, gpus = int(row["num_nodes"]), int(row["num_replicas"])
            each, more = divmod(gpus, nodes)
            spread = (each + 1,) * more + (each,) * (nodes - more)
            if spread not in rows or len(spread) > NODES_DENSE:
                _note(rows, spread, row, most)
        if not rows:
            raise ValueError(f"pollux: no placements of {model}")  # noqa: EM102
        applications[model] = {
            spread: {size: _mean(steps) for size, steps in sorted(sizes.items())}
            for spread, sizes in sorted(rows.items())
        }
    training = {
        model: efficiency.parse(files, POLLUX_EPOCHS.get(model, 0))
        for model, files in validation.items()
        if files
    }
    return Pollux(applications, training)


def _note(
    rows: dict[Spread, dict[int, list[Step]]], spread: Spread, row: dict[str, str], most: float
) -> None:
    if int(row["local_bsz"]) > most:
        return  # It was measured, and no job of Pollux takes so many samples at once.
    step = Step(float(row["step_time"]), float(row["sync_time"]))
    rows.setdefault(spread, {}).setdefault(int(row["local_bsz"]), []).append(step)


def _mean(steps: list[Step]) -> Step:
    count = len(steps)
    return Step(
        sum(step.step_s for step in steps) / count, sum(step.sync_s for step in steps) / count
    )
