"""Salus's measurements: how much GPU memory vision models need at several batch sizes.

Yu and Chowdhury, MLSys'20; the test list of its repository. Linear in the batch size between two
that were measured: activations grow with it, weights do not. Beyond the largest it is that one's:
what is more is done in several steps.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping

from skep_lab.workloads.names import normalised
from skep_lab.workloads.table import Table, Work

MEGABYTE = 1_000_000


class Salus(Table):
    """Bytes by model and batch size."""

    name = "salus"
    origin = "Salus (MLSys'20): peak GPU memory of one worker by batch size"

    def __init__(self, peaks: Mapping[str, Mapping[int, int]]) -> None:
        self.peaks = peaks

    def models(self) -> tuple[str, ...]:
        return tuple(sorted(self.peaks))

    def memory(self, work: Work) -> int | None:
        peaks = self.peaks.get(work.model)
        if peaks is None:
            return None
        sizes = sorted(peaks)
        batch = work.worker_batch or sizes[len(sizes) // 2]
        if batch <= sizes[0]:
            return peaks[sizes[0]]
        if batch >= sizes[-1]:
            return peaks[sizes[-1]]
        high = next(size for size in sizes if size >= batch)
        low = sizes[sizes.index(high) - 1]
        slope = (peaks[high] - peaks[low]) / (high - low)
        return round(peaks[low] + slope * (batch - low))


def parse(lines: Iterable[str]) -> Salus:
    """Return the table in `workloads.csv`: name_batch_length, seconds, megabytes.

    Rows of other kinds are skipped.

    Raises:
        ValueError: There are no such rows.
    """
    peaks: dict[str, dict[int, int]] = {}
    for row in csv.reader(lines):
        parts = row[0].rsplit("_", 2) if row else []
        if len(parts) == 3 and parts[1].isdecimal():
            model = normalised(parts[0]).model
            peak = round(float(row[2]) * MEGABYTE)
            sizes = peaks.setdefault(model, {})
            sizes[int(parts[1])] = max(peak, sizes.get(int(parts[1]), 0))
    if not peaks:
        raise ValueError("salus: no memory in workloads.csv")  # noqa: EM101
    return Salus(peaks)
