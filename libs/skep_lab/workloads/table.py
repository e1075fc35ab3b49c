"""The interface of tables of measurements, and how gaps between their rows are filled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Spread = tuple[int, ...]
"""GPUs on each node, largest first."""


class Work(NamedTuple):
    """What trains: a model (normalised), its batch size, and the number of GPUs in its trace.

    `batch` is the whole gang's, or with `each` that of one worker; 0: unknown.
    """

    model: str
    batch: int = 0
    gpus: int = 1
    each: bool = False

    @property
    def gang_batch(self) -> int:
        """Return the batch size of the whole gang in the trace."""
        return self.batch * self.gpus if self.each else self.batch

    @property
    def worker_batch(self) -> float:
        """Return the batch size of one GPU in the trace."""
        return self.batch if self.each else self.batch / self.gpus


class Place(NamedTuple):
    """Where it trains: the type is normalised (empty: the fastest that the table has)."""

    gpu_type: str
    spread: Spread
    workers: int
    servers: int = 0

    @property
    def gpus(self) -> int:
        """Return its GPUs on all nodes."""
        return sum(self.spread)


class Limits(NamedTuple):
    """How far a job can grow: GPUs by whether its batch size is fixed, and its largest batch."""

    gpus: int
    """At the batch size of its trace."""
    gpus_adapting: int = 0
    """At its largest batch size."""
    batch: int = 0
    """Its largest batch size; 0: it is not known how another one would train."""


class Table:
    """A source of measurements. It answers None if it does not know.

    All rates are those of the whole gang; only their ratios matter, so the unit is the source's.
    """

    name = ""
    origin = ""
    """The authors, and the hardware that was measured."""
    gpu_types: tuple[str, ...] = ()
    """The measured types; empty: unknown, and the table is used for any type."""
    compares_types = False
    """Whether its rates on one type may be compared with those on another."""

    def models(self) -> tuple[str, ...]:
        """Return the models it knows, normalised and sorted."""
        raise NotImplementedError

    def rate(self, work: Work, place: Place) -> float | None:
        """Return mini-batches per second alone, above 0.

        Rates are comparable between numbers of GPUs, servers and types, at the same batch size.

        Args:
            work: The job.
            place: Its spread is over as few nodes as hold it.
        """
        return None

    def locality(self, work: Work, place: Place, fewest: Spread) -> float | None:
        """Return its speed there, relative to the same GPUs on as few nodes as possible.

        Args:
            work: The job.
            place: Where it runs.
            fewest: The same GPUs on as few nodes as possible.
        """
        return None

    def packed(self, work: Work, partner: Work, place: Place) -> float | None:
        """Return its speed with one partner on its GPUs, relative to alone: 0 to 1.

        0.0 is a measurement too: the two do not fit into a GPU's memory.

        Args:
            work: The job.
            partner: The other job.
            place: Where both run.
        """
        return None

    def beside(self, work: Work, neighbour: Work, place: Place) -> float | None:
        """Return its speed with one neighbour on its network, relative to without: at most 1.

        Args:
            work: The job.
            neighbour: The other job.
            place: Where the job runs.
        """
        return None

    def limits(self, work: Work) -> Limits | None:
        """Return the most GPUs and the largest batch size with which a job can train.

        Args:
            work: The job.
        """
        return None

    def adapted(self, work: Work, place: Place, batch_max: int, stage: int) -> float | None:
        """Return the progress of a job at its best batch size, relative to that of its trace.

        Both are on the same GPUs. The progress at the batch size of its trace is the mean of a
        whole run.

        Args:
            work: The job.
            place: Where it runs.
            batch_max: The largest batch size that the job may have.
            stage: The part of its run in which it is.
        """
        return None

    def utilisation(self, work: Work, place: Place) -> float | None:
        """Return the part of the time for which its GPUs are busy alone there, 0 to 1."""
        return None

    def memory(self, work: Work) -> int | None:
        """Return the bytes of GPU memory that a worker needs."""
        return None

    def seconds(self, work: Work, place: Place) -> float | None:
        """Return seconds of one mini-batch alone, on as few nodes as hold it."""
        return None


def fewest(gpus: int, node_gpus: int) -> Spread:
    """Return the spread of GPUs over as few nodes as possible; the last node has the rest.

    Args:
        gpus: How many GPUs.
        node_gpus: GPUs of a node.
    """
    whole, rest = divmod(gpus, node_gpus)
    return (node_gpus,) * whole + ((rest,) if rest else ())


def between(points: Mapping[int, float], at: float) -> float:
    """Return the value at `at`, linear between neighbouring points in logarithms of both.

    Beyond the last point on either side it is that point's: nothing is extrapolated.

    Args:
        points: At least one; all keys and values are above 0.
        at: Above 0.
    """
    keys = sorted(points)
    if at <= keys[0]:
        return points[keys[0]]
    if at >= keys[-1]:
        return points[keys[-1]]
    above = next(key for key in keys if key >= at)
    below = max(key for key in keys if key <= at)
    if above == below:
        return points[above]
    part = math.log(at / below) / math.log(above / below)
    return math.exp((1 - part) * math.log(points[below]) + part * math.log(points[above]))


def scaled(points: Mapping[int, float], gpus: int) -> float:
    """Return the rate on a number of GPUs, extrapolated from the measured points.

    Between points it is that of `between`. Beyond the last point each doubling gains as much as the
    last measured one, but at least nothing and at most a factor of two. Below the first point it is
    proportional.

    Args:
        points: Rates by number of GPUs.
        gpus: The number.
    """
    keys = sorted(points)
    last = keys[-1]
    if gpus < keys[0]:
        return points[keys[0]] * gpus / keys[0]
    if gpus <= last or len(keys) == 1:
        return between(points, gpus)
    gain = math.log(points[last] / points[keys[-2]]) / math.log(last / keys[-2])
    return float(points[last] * (gpus / last) ** min(max(gain, 0.0), 1.0))


def nearest(sizes: Sequence[int], wanted: float) -> int:
    """Return the batch size with the ratio closest to 1 to the wanted one.

    Args:
        sizes: At least one batch size.
        wanted: The wanted one; 0: the median is returned.
    """
    ordered = sorted(sizes)
    if wanted <= 0:
        return ordered[len(ordered) // 2]
    return min(ordered, key=lambda size: (abs(math.log(size / wanted)), size))


def together(factors: Sequence[float]) -> float:
    """Return what several partners leave of a rate: their slowdowns add up.

    `skep.perf.interference` adds them up in the same way.

    Args:
        factors: What each partner alone leaves, 0 to 1.

    Returns:
        At most the smallest of the factors.
    """
    if any(factor <= 0 for factor in factors):
        return 0.0
    return 1 / (1 + sum(max(1 / factor - 1, 0.0) for factor in factors))
