"""How a family of jobs scales: what a mini-batch takes on so many GPUs and nodes.

It is learned from the rates of runs, as the median over the latest jobs. A size that was never
measured is interpolated between two measured ones, by a power of the size (Optimus, section 3.2,
fits its speed function to such samples), and never extrapolated from a single one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from skep.perf import predict
from skep.perf.progress import median
from skep.units import NS_PER_SECOND, Duration
from skep.wire.advice import ScalePoint

FAMILIES_MAX = 5_000
"""Families on one type of GPU, the most recently learned ones."""
POINTS_MAX = 32
"""Sizes and spreads of one family that are remembered, the most recently learned ones."""
BEYOND = 2
"""Predictions go up to this multiple of the largest measured size."""

Key = tuple[str, str]
"""Family and type of GPU."""


class Predicted(NamedTuple):
    """What a mini-batch is predicted to take on so many GPUs of so many nodes."""

    usual: ScalePoint
    """P50."""
    late: ScalePoint
    """P90."""
    spread: bool
    """Whether fewer nodes could hold them."""


class Scaling:
    """What a mini-batch takes, by family and type of GPU, number of GPUs and number of nodes."""

    def __init__(self) -> None:
        """Begin without measurements."""
        self._known: dict[Key, dict[tuple[int, int], predict.Runs]] = {}

    def learn(self, key: Key, gpus: int, nodes: int, job: str, step_ns: Duration) -> None:
        """Record what a mini-batch of a job takes.

        Args:
            key: The family and type of GPU.
            gpus: GPUs of the job.
            nodes: How many nodes they are on.
            job: Its id; a later value of the same job replaces an earlier one.
            step_ns: Nanoseconds of a mini-batch.
        """
        points = self._known.pop(key, None) or {}
        self._known[key] = points
        runs = points.pop((gpus, nodes), None) or predict.Runs()
        runs.learn(job, step_ns)
        points[gpus, nodes] = runs
        if len(points) > POINTS_MAX:
            del points[next(iter(points))]
        if len(self._known) > FAMILIES_MAX:
            del self._known[next(iter(self._known))]

    def points(self, key: Key) -> tuple[ScalePoint, ...]:
        """Return what is known of a family, fewest GPUs first."""
        known = self._known.get(key, {})
        return tuple(
            ScalePoint(gpus=gpus, nodes=nodes, step_ns=known[gpus, nodes].median())
            for gpus, nodes in sorted(known)
        )

    def keys(self) -> Iterable[Key]:
        """Return every family and type with measurements."""
        return self._known.keys()

    def check(self) -> None:
        """Assert the bounds.

        Raises:
            AssertionError: One of them is broken.
        """
        assert len(self._known) <= FAMILIES_MAX
        for points in self._known.values():
            assert 0 < len(points) <= POINTS_MAX
            for runs in points.values():
                runs.check()


def rates(
    points: Sequence[ScalePoint], each: int, sizes: range, own: tuple[int, int] = (0, 0)
) -> tuple[tuple[int, int], ...]:
    """Return the rate for each number of workers, fewest first.

    Args:
        points: What is known of the family.
        each: GPUs of a worker.
        sizes: Numbers of workers.
        own: Workers of the job itself and its measured rate, in thousandths: then the other
            rates are relative to it. (0, 0): not measured.

    Returns:
        Pairs of workers and thousandths of a mini-batch per second; unknown sizes are left out.
    """
    best: dict[int, int] = {}
    for point in points:
        best[point.gpus] = min(point.step_ns, best.get(point.gpus, point.step_ns))
    if own[1]:
        unit = _step_ns(best, own[0] * each)
        measured = 1000 * NS_PER_SECOND / own[1]
        scaled = best.items() if unit else ()
        best = {gpus: max(round(step * measured / unit), 1) for gpus, step in scaled}
        best[own[0] * each] = max(round(measured), 1)
    found = []
    for workers in sizes:
        step = _step_ns(best, workers * each)
        if step:
            found.append((workers, max(1, round(1000 * NS_PER_SECOND / step))))
    return tuple(found)


def _step_ns(best: dict[int, int], gpus: int) -> float:
    """Return what a mini-batch takes on so many GPUs, in nanoseconds; 0.0 if unknown."""
    if gpus in best:
        return best[gpus]
    known = sorted(best)
    if len(known) <= 1 or gpus < known[0] or gpus > known[-1] * BEYOND:
        return 0.0
    above = next((at for at, size in enumerate(known) if size > gpus), len(known) - 1)
    low, high = known[above - 1], known[above]
    power = math.log(best[high] / best[low]) / math.log(high / low)
    if gpus > high:
        # Beyond measured sizes the speed-up is at most linear, and there is no slow-down.
        power = min(max(power, -1.0), 0.0)
        return float(best[high] * (gpus / high) ** power)
    return float(best[low] * (gpus / low) ** power)


def slowdown(points: Sequence[ScalePoint]) -> tuple[tuple[int, int], ...]:
    """Return how much longer a family's mini-batches take on more nodes, fewest first.

    Returns:
        Pairs of nodes and thousandths; 1000 is the time on the fewest nodes on which as many
        GPUs were measured.
    """
    by_gpus: dict[int, dict[int, int]] = {}
    for point in points:
        by_gpus.setdefault(point.gpus, {})[point.nodes] = point.step_ns
    ratios: dict[int, list[int]] = {}
    for steps in by_gpus.values():
        if len(steps) > 1:
            base = steps[min(steps)]
            for nodes, step in steps.items():
                ratios.setdefault(nodes, []).append(1000 * step // base)
    return tuple((nodes, median(ratios[nodes])) for nodes in sorted(ratios))
