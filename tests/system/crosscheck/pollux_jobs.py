"""How jobs train in Pollux's simulator: by epochs, in steps of a minute, from its measurements.

Facts are from reading petuum/adaptdl, branch osdi21-artifact (simulator/applications.py and
simulator.py). An application has epochs, each with its own gradient noise. A job makes progress by
its goodput until the next epoch begins, which is at a whole second. Between measured batch sizes a
step is linear; a split that was not measured is interpolated between numbers of nodes, GPUs and
batch sizes (a Delaunay triangulation, for which SciPy is needed).
"""

from __future__ import annotations

import csv
import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from skep.units import NS_PER_SECOND, Duration, Instant
from skep.wire.cluster import Cluster
from skep_lab.simulator.ledger import BEGIN
from skep_lab.simulator.settings import Settings
from skep_lab.simulator.work import Work
from skep_lab.simulator.world import World
from skep_lab.traces.formats.lengths import POLLUX_EPOCHS, POLLUX_LOCAL_MOST
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.pollux import ONE_GPU
from skep_lab.workloads.situation import Situation, Speeds, Steady

TICK_S = 60
NODES, NODE_GPUS = 16, 4
ORIGIN = Instant(BEGIN + 40 * NS_PER_SECOND)
"""A simulation begins 20 s after a full minute; ticks are full minutes of a trace."""
AFTER_TICK_S = 1e-6
"""What would be over a moment after a tick is over at the tick, and its tick does not see that."""
BATCHES = 50
EPS = 1e-8
"""As much is left out of account when numbers are rounded up."""

Placement = tuple[int, ...]


class Step(NamedTuple):
    """Seconds of a step, and of those the wait for the other workers."""

    step_s: float
    sync_s: float


class Batch(NamedTuple):
    """What a GPU does in a mini-batch: its samples at once, and how many times more."""

    each: int
    more: int


class Epoch(NamedTuple):
    """Where an epoch ends at one batch size, and its gradients."""

    progress: float
    iteration: float
    norm: float
    variance: float


class Application:
    """One of the six applications."""

    def __init__(
        self,
        name: str,
        placements: Iterable[Mapping[str, str]],
        scalability: Iterable[Mapping[str, str]],
        validation: Mapping[int, Sequence[Epoch]],
    ) -> None:
        """Take the measurements.

        Args:
            name: Its name.
            placements: Rows of `placements.csv`.
            scalability: Rows of `scalability.csv`.
            validation: By batch size, the epochs of `validation-N.csv`.
        """
        self.name = name
        self.epochs = POLLUX_EPOCHS[name]
        self._runs = dict(sorted(validation.items()))
        self.base, self.most = min(self._runs), max(self._runs)
        self._measured: dict[str, list[tuple[int, Step]]] = {}
        grouped: dict[tuple[int, int, int], list[Step]] = {}
        for row in placements:
            where, size = row["placement"], int(row["local_bsz"])
            step = Step(float(row["step_time"]), float(row["sync_time"]))
            self._measured.setdefault(where, []).append((size, step))
            grouped.setdefault((len(where), sum(map(int, where)), size), []).append(step)
        sizes = [size for rows in self._measured.values() for size, _ in rows]
        self.least_each = min(sizes)
        self.most_each = POLLUX_LOCAL_MOST.get(name, max(sizes))
        for rows in self._measured.values():
            rows.sort()
        self._points = [(*key, *_mean(steps)) for key, steps in sorted(grouped.items())]
        for row in scalability:
            where_n = int(row["num_nodes"]), int(row["num_replicas"]), int(row["local_bsz"])
            self._points.append((*where_n, float(row["step_time"]), float(row["sync_time"])))
        self._between: Callable[..., Any] | None = None
        self._steps: dict[tuple[Placement, int], Step] = {}
        self._ends = [0.0] + [
            min(epochs[number].progress for epochs in self._runs.values())
            for number in range(self.epochs)
        ]
        self.goodput = lru_cache(maxsize=None)(self._goodput)
        self.best_goodput = lru_cache(maxsize=None)(self._best_goodput)

    def end_of(self, epoch: int) -> float:
        """Return the progress with which an epoch is over; 0: none has begun."""
        return self._ends[epoch]

    def batch(self, wanted: float, gpus: int) -> Batch:
        """Return how a batch size is divided among GPUs.

        A single GPU with more than the smallest batch size always makes two steps of it, as noise
        cannot be measured of one.
        """
        each = math.ceil(wanted / gpus - EPS)
        more = math.ceil(each / self.most_each - EPS) - 1
        if gpus == 1 and wanted > self.base:
            more = max(1, more)
        return self.capped(Batch(math.ceil(each / (more + 1) - EPS), more), gpus)

    def capped(self, batch: Batch, gpus: int) -> Batch:
        """Return a batch that is not above the largest measured one."""
        return Batch(min(batch.each, int(self.most / (gpus * (batch.more + 1)))), batch.more)

    def step(self, placement: Placement, each: int) -> Step:
        """Return what a step takes with some GPUs on each node, in the order of the nodes."""
        first = min(placement[i:] + placement[:i] for i in range(len(placement)))
        key = first, each
        found = self._steps.get(key)
        if found is None:
            rows = self._measured.get("".join(map(str, first)))
            found = self._steps[key] = _at(rows, each) if rows else self._guess(first, each)
        return found

    def _guess(self, placement: Placement, each: int) -> Step:
        if self._between is None:
            scipy = importlib.import_module("scipy.interpolate")
            self._between = scipy.LinearNDInterpolator(
                [point[:3] for point in self._points], [point[3:] for point in self._points]
            )
        step_s, sync_s = self._between([min(len(placement), NODES), sum(placement), each])[0]
        assert not math.isnan(step_s), f"{self.name}: nothing is known of {placement} with {each}"
        return Step(float(step_s), float(sync_s))

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        """Return the squared norm and the variance in an epoch at a batch size."""
        low = max(size for size in self._runs if size <= batch)
        high = min(size for size in self._runs if size >= batch)
        one, other = self._runs[low][epoch], self._runs[high][epoch]
        if low == high:
            return one.norm, one.variance
        return (
            ((batch - low) * other.norm + (high - batch) * one.norm) / (high - low),
            ((batch - low) * other.variance + (high - batch) * one.variance) / (high - low),
        )

    def iterations(self, batch: int, epoch: int) -> float:
        """Return the mini-batches of a run at a measured batch size by the end of an epoch."""
        return self._runs[batch][epoch].iteration

    def _goodput(self, placement: Placement, batch: Batch, epoch: int) -> float:
        """Return the progress per second in an epoch."""
        gpus = sum(placement)
        whole = gpus * batch.each * (batch.more + 1)
        norm, variance = self.gradients(whole, epoch)
        gain = (variance + norm) / (variance / (whole / self.base) + norm)
        step_s, sync_s = self.step(placement, batch.each)
        return gain / (step_s + (step_s - sync_s) * batch.more)

    def _best_goodput(self, placement: Placement, epoch: int) -> float:
        """Return the progress per second at the best of 50 batch sizes."""
        gpus, best = sum(placement), 0.0
        least = max(self.base, self.least_each * gpus)
        for number in range(BATCHES):
            wanted = least * (self.most / least) ** (number / (BATCHES - 1))
            batch = self.batch(wanted, gpus)
            if self.least_each <= batch.each <= self.most_each:
                best = max(best, self.goodput(placement, batch, epoch))
        return best


def _mean(steps: Sequence[Step]) -> Step:
    count = len(steps)
    return Step(sum(s.step_s for s in steps) / count, sum(s.sync_s for s in steps) / count)


def _at(rows: Sequence[tuple[int, Step]], each: int) -> Step:
    """Return a step at a batch size, linear between measured ones."""
    assert rows[0][0] <= each <= rows[-1][0], (rows[0][0], each, rows[-1][0])
    above = next(number for number, (size, _) in enumerate(rows) if size >= each)
    high_size, high = rows[above]
    if high_size == each:
        return high
    low_size, low = rows[above - 1]
    part = (each - low_size) / (high_size - low_size)
    return Step(
        low.step_s + part * (high.step_s - low.step_s),
        low.sync_s + part * (high.sync_s - low.sync_s),
    )


def read(data: Path) -> dict[str, Application]:
    """Return the applications in the folder of public data."""
    found = {}
    for name in POLLUX_EPOCHS:
        folder = data / "pollux" / "traces" / name
        validation = {
            int(path.stem.partition("-")[2]): [
                Epoch(*(float(row[k]) for k in ("progress", "iteration", "grad_sqr", "grad_var")))
                for row in _rows(path)
            ]
            for path in sorted(folder.glob("validation-*.csv"))
        }
        found[name] = Application(
            name, _rows(folder / "placements.csv"), _rows(folder / "scalability.csv"), validation
        )
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


class Epochs(Work):
    """The progress of a job by epochs; `done` only says about how far it is."""

    app: Any = None
    epoch: int = 0
    progress: float = 0.0

    def goodput(self, placement: Placement, epoch: int) -> float:
        """Return its progress per second, at its own batch size or the one that it chooses."""
        app: Application = self.app
        own = self.job.batch_size
        if self.job.batch_max and app.name in ONE_GPU:
            own = app.most
        elif self.job.batch_max:
            return app.best_goodput(placement, epoch)
        return app.goodput(placement, app.batch(own, sum(placement)), epoch)

    def advance(self, now: Instant, store_every: int) -> None:
        """Add the progress since the last call."""
        if self.rate and now > self.since:
            self.epoch, self.progress, _ = self._walk(_seconds(self.since), _seconds(now))
            part = min(self.progress / self.app.end_of(self.app.epochs), 1.0)
            before, self.done = self.done, int(self.job.run_time * part)
            self.made += self.done - before
        self.since = now

    def left(self) -> Duration:
        """Return how long it still takes where it is."""
        began = _seconds(self.since)
        _, _, over = self._walk(began, math.inf)
        assert over is not None
        return Duration(round((over - began) * NS_PER_SECOND))

    def lose(self) -> None:
        """Keep everything: jobs store their state when they are stopped."""

    def _walk(self, at: float, until: float) -> tuple[int, float, float | None]:
        """Return the epoch and progress at some time, and when it was over if it is by then."""
        assert self.where is not None
        placement = self.where.spread
        app: Application = self.app
        epoch, progress = self.epoch, self.progress
        if epoch == app.epochs:
            return epoch, progress, at
        while at < until:
            tick = min((at // TICK_S + 1) * TICK_S, until)
            left = tick - at
            while left > 0:
                goodput, end = self.goodput(placement, epoch), app.end_of(epoch + 1)
                if progress + goodput * left < end:
                    progress += goodput * left
                    break
                epoch, spent = epoch + 1, round((end - progress) / goodput)
                progress, left = end, left - spent
                if epoch == app.epochs:
                    unseen = AFTER_TICK_S if tick - left == at and not at % TICK_S else 0.0
                    return epoch, progress, tick - left + unseen
            at = tick
        return epoch, progress, None


def _seconds(at: int) -> float:
    return (at - ORIGIN) / NS_PER_SECOND


class ByEpochs(Steady):
    """Speeds that are of no matter: `Epochs` knows where a job is."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return 1.0."""
        return 1.0


class Minutes(World):
    """A world in which jobs train by epochs, in whole seconds."""

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        settings: Settings,
        speeds: Speeds,
        applications: Mapping[str, Application],
    ) -> None:
        """Begin with nothing.

        Args:
            trace: The jobs, each with the batch size and application of a workload.
            cluster: The cluster.
            settings: Costs, policies and more.
            speeds: Of no matter.
            applications: Their measurements.
        """
        super().__init__(trace, cluster, settings, speeds)
        works = self.agents.works
        for name, work in list(works.items()):
            works[name] = Epochs(job=work.job, app=applications[work.job.model])
