"""What every table of measurements answers, and how it fills the gaps between its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Spread = tuple[int, ...]
"""GPUs on each node, largest first."""


class Work(NamedTuple):
    """What trains: a model (normalised), its batch size, and on how many GPUs its trace had it.

    `batch` is the whole gang's, or with `each` that of one worker; 0: not told.
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


class Table:
    """A source of measurements. A question that it cannot answer is answered by None.

    All rates are those of the whole gang; only their ratios matter, so the unit is the source's.
    """

    name = ""
    origin = ""
    """Who measured what, on what."""
    gpu_types: tuple[str, ...] = ()
    """That it was measured on; empty: that is not told, and it speaks for any."""
    compares_types = False
    """Its rates on one type may be compared with those on another."""

    def models(self) -> tuple[str, ...]:
        """Return the models it knows, normalised and sorted."""
        raise NotImplementedError

    def rate(self, work: Work, place: Place) -> float | None:
        """Return mini-batches per second alone; the place's spread is over as few nodes as hold it.

        Above 0. Comparable between numbers of GPUs, servers and types, at the same batch size.
        """
        return None

    def locality(self, work: Work, place: Place, fewest: Spread) -> float | None:
        """Return how fast it is there, relative to `fewest`: the same GPUs on as few nodes."""
        return None

    def packed(self, work: Work, partner: Work, place: Place) -> float | None:
        """Return how fast it is with one partner on its GPUs, relative to alone: 0 to 1.

        0.0 is what was measured too: the two do not fit into a GPU's memory.
        """
        return None

    def beside(self, work: Work, neighbour: Work, place: Place) -> float | None:
        """Return how fast it is with one neighbour on its network, relative to without: to 1."""
        return None

    def utilisation(self, work: Work, place: Place) -> float | None:
        """Return the part of its GPUs' time that is busy alone there, 0 to 1."""
        return None

    def memory(self, work: Work) -> int | None:
        """Return the bytes of a GPU that a worker needs."""
        return None

    def seconds(self, work: Work, place: Place) -> float | None:
        """Return seconds of one mini-batch alone on as few nodes as hold it, if that is known."""
        return None


def fewest(gpus: int, node_gpus: int) -> Spread:
    """Return the spread over as few nodes as hold so many GPUs, the last one with what is left."""
    whole, rest = divmod(gpus, node_gpus)
    return (node_gpus,) * whole + ((rest,) if rest else ())


def between(points: Mapping[int, float], at: float) -> float:
    """Return the value at `at`: linear between neighbouring points, in logarithms of both.

    Beyond the last point on either side it is that point's: nothing is extrapolated. All keys and
    values are above 0; there is at least one.
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
    """Return the rate on so many GPUs: `between`, and beyond the last point as it was going.

    Beyond means: each doubling brings as much as the last one measured, but no less than nothing
    and no more than double. Below the first point it is in proportion.
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
    """Return the batch size closest to the wanted one in ratio; of 0, the one in the middle."""
    ordered = sorted(sizes)
    if wanted <= 0:
        return ordered[len(ordered) // 2]
    return min(ordered, key=lambda size: (abs(math.log(size / wanted)), size))


def together(factors: Sequence[float]) -> float:
    """Return what several partners leave of a rate, of what each alone leaves: slowdowns add up.

    So does `skep.perf.interference`. Never more than the worst of them leaves.
    """
    if any(factor <= 0 for factor in factors):
        return 0.0
    return 1 / (1 + sum(max(1 / factor - 1, 0.0) for factor in factors))
