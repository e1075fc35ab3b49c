"""How a family of jobs scales: what a mini-batch takes on so many GPUs and so many nodes.

Learned from the rates of runs, each by its median over the latest jobs; what was never measured is
interpolated between two sizes that were, by a power of the size (Optimus, section 3.2, fits its
speed function to such samples), and never guessed from a single one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from skep.perf import predict
from skep.perf.progress import median
from skep.units import NS_PER_SECOND, Duration
from skep.wire.advice import ScalePoint

FAMILIES_MAX = 5_000
"""Families on one type of GPU, the most recently learned."""
POINTS_MAX = 32
"""Sizes and spreads of one family that are remembered, the most recently learned."""
BEYOND = 2
"""How many times the largest size measured is still said something about."""

Key = tuple[str, str]
"""Family and type of GPU."""


class Scaling:
    """What a mini-batch takes, by family and type of GPU, size and spread."""

    def __init__(self) -> None:
        """Know nothing."""
        self._known: dict[Key, dict[tuple[int, int], predict.Runs]] = {}

    def learn(self, key: Key, gpus: int, nodes: int, job: str, step_ns: Duration) -> None:
        """Take over what a mini-batch of a job takes on so many GPUs of so many nodes."""
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
        """Return every family and type of which something is known."""
        return self._known.keys()

    def check(self) -> None:
        """Assert the bounds."""
        assert len(self._known) <= FAMILIES_MAX
        for points in self._known.values():
            assert 0 < len(points) <= POINTS_MAX
            for runs in points.values():
                runs.check()


def rates(
    points: Sequence[ScalePoint], each: int, sizes: range, own: tuple[int, int] = (0, 0)
) -> tuple[tuple[int, int], ...]:
    """Return thousandths of a mini-batch per second for each number of workers, fewest first.

    A worker has `each` GPUs. `own` is what the job itself was measured at (workers, rate): then the
    others are relative to it. Sizes about which nothing is known are left out.
    """
    best: dict[int, int] = {}
    for point in points:
        best[point.gpus] = min(point.step_ns, best.get(point.gpus, point.step_ns))
    if own[1]:
        unit = _step_ns(best, own[0] * each)
        measured = 1000 * NS_PER_SECOND / own[1]
        best = {gpus: round(step * measured / unit) for gpus, step in best.items()} if unit else {}
        best[own[0] * each] = round(measured)
    found = []
    for workers in sizes:
        step = _step_ns(best, workers * each)
        if step:
            found.append((workers, max(1, round(1000 * NS_PER_SECOND / step))))
    return tuple(found)


def _step_ns(best: dict[int, int], gpus: int) -> float:
    """Return what a mini-batch takes on so many GPUs; 0.0 if unknown."""
    if gpus in best:
        return best[gpus]
    known = sorted(best)
    if len(known) <= 1 or gpus < known[0] or gpus > known[-1] * BEYOND:
        return 0.0
    above = next((at for at, size in enumerate(known) if size > gpus), len(known) - 1)
    low, high = known[above - 1], known[above]
    power = math.log(best[high] / best[low]) / math.log(high / low)
    if gpus > high:
        # Beyond what was measured nothing gets better than in proportion, nor worse.
        power = min(max(power, -1.0), 0.0)
        return float(best[high] * (gpus / high) ** power)
    return float(best[low] * (gpus / low) ** power)


def slowdown(points: Sequence[ScalePoint]) -> tuple[tuple[int, int], ...]:
    """Return how a family's mini-batches suffer on more nodes: (nodes, thousandths), fewest first.

    1000 is what they take on the fewest nodes on which as many GPUs were measured.
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
