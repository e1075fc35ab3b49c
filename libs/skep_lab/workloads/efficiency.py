"""Statistical efficiency: how far a mini-batch brings a job, by batch size and part of its run.

Pollux (OSDI'21), section 3.1: with gradient noise scale phi (in samples) and the batch size m0 at
which a job begins, a sample of a mini-batch of m is worth

    EFFICIENCY(m) = (phi + m0) / (phi + m)                                     (equation 7)

of one at m0. `validation-N.csv` has for each epoch at batch size N the squared norm of the gradient
and its variance at m0, so phi / m0 = variance / norm. A mini-batch of m is worth
m / m0 * EFFICIENCY(m) mini-batches of m0: that is its *gain*. Progress is counted in mini-batches
of m0.
"""

from __future__ import annotations

import csv
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from skep_lab.workloads.situation import STAGES


def gain(noise: float, scale: float) -> float:
    """Return how many mini-batches of m0 one of a larger batch is worth (Pollux, equation 7).

    Args:
        noise: The gradient noise scale, in batches of m0: phi / m0.
        scale: The batch size, in batches of m0: m / m0.
    """
    return scale * (noise + 1) / (noise + scale)


class Epoch(NamedTuple):
    """What one epoch at some batch size ended with. `progress` is mini-batches of m0."""

    progress: float
    norm: float
    variance: float


class Training:
    """How one application trains, by batch size."""

    def __init__(self, epochs: Mapping[int, tuple[Epoch, ...]]) -> None:
        """Take the measurements.

        Args:
            epochs: By batch size, the epochs in order: as many for each.
        """
        self.sizes = tuple(sorted(epochs))
        self._epochs = epochs
        count = min(map(len, epochs.values()))
        self._ends = [
            min(epochs[size][number].progress for size in self.sizes) for number in range(count)
        ]
        self._gains: dict[tuple[int, int], float] = {}

    @property
    def base(self) -> int:
        """Return m0, the batch size at which a job begins."""
        return self.sizes[0]

    @property
    def most(self) -> int:
        """Return the largest batch size that was measured."""
        return self.sizes[-1]

    def gain(self, batch: int, stage: int) -> float:
        """Return what a mini-batch is worth in a part of the run, in mini-batches of m0.

        It is the mean by which the mini-batches of all epochs of the part add up.

        Args:
            batch: Its size; beyond the measured sizes it counts as the nearest of them.
            stage: The part of the run, 0 to STAGES - 1.
        """
        known = self._gains.get((batch, stage))
        if known is not None:
            return known
        whole = self._ends[-1]
        begin, end = stage / STAGES * whole, (stage + 1) / STAGES * whole
        steps, at = 0.0, begin
        while at < end:
            epoch = min(bisect_right(self._ends, at), len(self._ends) - 1)
            until = max(min(self._ends[epoch], end), at)
            steps += (until - at) / self._in_epoch(batch, epoch)
            at = until if until > at else end
        found = self._gains[batch, stage] = (end - begin) / steps
        return found

    def mean(self, batch: int) -> float:
        """Return what a mini-batch is worth on the average of a run at one batch size.

        Args:
            batch: The size.
        """
        return STAGES / sum(1 / self.gain(batch, stage) for stage in range(STAGES))

    def steps(self, batch: int) -> float:
        """Return how many mini-batches a run at one batch size takes, by the gains of its epochs.

        Args:
            batch: The size.
        """
        return self._ends[-1] / self.mean(batch)

    def _in_epoch(self, batch: int, epoch: int) -> float:
        """Return the gain in one epoch: norm and variance are linear between measured sizes."""
        size = min(max(batch, self.base), self.most)
        above = bisect_left(self.sizes, size)
        below = above if self.sizes[above] == size else above - 1
        low, high = self.sizes[below], self.sizes[above]
        part = (size - low) / (high - low) if high > low else 0.0
        one, other = self._epochs[low][epoch], self._epochs[high][epoch]
        norm = one.norm + part * (other.norm - one.norm)
        variance = one.variance + part * (other.variance - one.variance)
        scale = size / self.base
        return gain(variance / norm, scale) if norm > 0 else scale


def parse(files: Mapping[int, Iterable[str]], epochs: int = 0) -> Training:
    """Return the measurements in the files of an application.

    Args:
        files: The lines of `validation-N.csv` by N, the batch size.
        epochs: After how many epochs a run ends; 0: after all that were measured.

    Raises:
        ValueError: A file has no epochs.
    """
    found: dict[int, tuple[Epoch, ...]] = {}
    for size, lines in files.items():
        rows = tuple(
            Epoch(float(row["progress"]), float(row["grad_sqr"]), float(row["grad_var"]))
            for row in csv.DictReader(lines)
        )
        if not rows:
            reason = f"no epochs at batch size {size}"
            raise ValueError(reason)
        found[size] = rows[: epochs or len(rows)]
    return Training(found)
