"""Gavel's measurements: 26 models on V100, P100 and K80, alone and in pairs on the same GPUs.

Narayanan et al., OSDI'20; `simulation_throughputs.json` in its flat form. Rates are those of all
workers together, batch sizes those of one worker. Gavel knows two placements: on as few servers as
possible, and not; so everything that is spread further than needed is as fast as its second one.
Pairs were measured on one GPU; gangs are taken to suffer as their workers do. A pair that does not
fit into the memory has the rate 0.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable

from skep_lab.workloads.names import normalised
from skep_lab.workloads.table import Place, Spread, Table, Work, nearest, scaled

TYPES = ("v100", "p100", "k80")
"""The fastest first, as it is for most models."""

Job = tuple[str, int]
"""A model and its batch size."""


class Gavel(Table):
    """Rates by type, placement, job and GPUs; pairs by type and both jobs."""

    name = "gavel"
    origin = "Gavel (OSDI'20): V100, P100, K80; 1 to 8 GPUs; pairs on the same GPUs"
    gpu_types = TYPES
    compares_types = True

    def __init__(
        self,
        alone: dict[tuple[str, bool, Job], dict[int, float]],
        pairs: dict[str, dict[tuple[Job, Job], float]],
        unfit: frozenset[tuple[str, Job, int]] = frozenset(),
    ) -> None:
        """Take rates; `True` is consolidated. Pairs are relative to alone, on one GPU.

        What is `unfit` does not run on so many GPUs of a type.
        """
        self.alone = alone
        self.unfit = unfit
        self.pairs = pairs
        self._batches: dict[str, tuple[int, ...]] = {}
        for _, _, (model, batch) in alone:
            known = self._batches.get(model, ())
            self._batches[model] = tuple(sorted({*known, batch}))

    def models(self) -> tuple[str, ...]:
        return tuple(sorted(self._batches))

    def rate(self, work: Work, place: Place) -> float | None:
        job = self._job(work)
        if job is None:
            return None
        if not place.gpu_type:
            rates = [self._rate(kind, job, place.gpus) for kind in TYPES]
            return max((rate for rate in rates if rate), default=None)
        return self._rate(place.gpu_type, job, place.gpus)

    def locality(self, work: Work, place: Place, fewest: Spread) -> float | None:
        job = self._job(work)
        kind = place.gpu_type or TYPES[0]
        near = self.alone.get((kind, True, job)) if job else None
        far = self.alone.get((kind, False, job)) if job else None
        if near is None or far is None or not any(gpus > 1 for gpus in far):
            return None
        if len(place.spread) <= len(fewest):
            return 1.0
        return scaled(far, place.gpus) / scaled(near, place.gpus)

    def packed(self, work: Work, partner: Work, place: Place) -> float | None:
        first, second = self._job(work), self._job(partner)
        if first is None or second is None:
            return None
        found = self.pairs.get(place.gpu_type or TYPES[0], {}).get((first, second))
        return None if found is None else min(found, 1.0)

    def seconds(self, work: Work, place: Place) -> float | None:
        rate = self.rate(work, place)
        return 1 / rate if rate else None

    def _rate(self, kind: str, job: Job, gpus: int) -> float | None:
        if (kind, job, gpus) in self.unfit:
            return 0.0
        points = self.alone.get((kind, True, job))
        if points is None or (gpus > 1 and len(points) == 1):
            return None  # Some models were measured on one GPU only.
        return scaled(points, gpus)

    def _job(self, work: Work) -> Job | None:
        batches = self._batches.get(work.model)
        return (work.model, nearest(batches, work.worker_batch)) if batches else None


def parse(isolated: Iterable[str], pairs: Iterable[str] = ()) -> Gavel:
    """Return the table in both files.

    Args:
        isolated: The lines of `isolated_throughput.csv`.
        pairs: The lines of `packed_pairs.csv`.

    Raises:
        ValueError: They are other texts.
    """
    alone: dict[tuple[str, bool, Job], dict[int, float]] = {}
    unfit: dict[tuple[str, Job, int], None] = {}
    for row in csv.DictReader(isolated):
        rate = float(row["iters_per_s"])
        if rate > 0:  # 0 is how Gavel notes that the model does not fit.
            key = row["gpu_type"], row["placement"] == "consolidated", _job(row["job_type"])
            alone.setdefault(key, {})[int(row["num_gpus"])] = rate
        else:
            unfit[row["gpu_type"], _job(row["job_type"]), int(row["num_gpus"])] = None
    if not alone:
        raise ValueError("gavel: no rates in isolated_throughput.csv")  # noqa: EM101
    both: dict[str, dict[tuple[Job, Job], float]] = {}
    for row in csv.DictReader(pairs):
        # All pairs on several GPUs have zeros in the file: they were not measured.
        if (row["num_gpus_a"], row["num_gpus_b"], row["placement"]) != ("1", "1", "consolidated"):
            continue
        first, second = _job(row["job_a"]), _job(row["job_b"])
        found = both.setdefault(row["gpu_type"], {})
        for job, other, column in ((first, second, "a"), (second, first, "b")):
            single = alone.get((row["gpu_type"], True, job), {}).get(1)
            if single is not None and (job, other) not in found:
                found[job, other] = float(row[f"iters_per_s_{column}"]) / single
    return Gavel(alone, both, frozenset(unfit))


def _job(text: str) -> Job:
    name = normalised(text)
    return name.model, max(name.batch, 1)
