"""DL²'s measurements: eight models by number of workers and parameter servers.

Peng et al., TPDS'21 (the paper at hand), `config_speed.txt`. A mini-batch is shared among the
workers, whose speeds add up to samples per second: the file's constants say that a mini-batch of
DSSM takes 0.567 s alone, and 256 samples at 462 per second take 0.554 s. Jobs without servers are
not known here.

At a fixed batch size most of these models are slowed down by more workers, and sped up by more
servers. (The paper's Figure 2 has Seq2Seq fastest with 4 servers and 8 workers of twelve; in this
file it is not.)

Between measured numbers it is linear in their logarithms, first along the servers, then along the
workers; beyond them it is the last one's.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping

from skep_lab.workloads.names import normalised
from skep_lab.workloads.table import Limits, Place, Table, Work, between


class Dl2(Table):
    """Samples per second by model, workers and servers; samples of a mini-batch by model."""

    name = "dl2"
    origin = "DL² (TPDS'21): numbers of workers and parameter servers"

    def __init__(
        self, grids: Mapping[str, Mapping[int, Mapping[int, float]]], batches: Mapping[str, int]
    ) -> None:
        self.grids = grids
        self.batches = batches

    def models(self) -> tuple[str, ...]:
        return tuple(sorted(self.grids))

    def rate(self, work: Work, place: Place) -> float | None:
        grid = self.grids.get(work.model)
        if grid is None or place.servers < 1 or place.workers < 1:
            return None
        rows = {workers: between(row, place.servers) for workers, row in grid.items()}
        return between(rows, place.workers) / self.batches[work.model]

    def limits(self, work: Work) -> Limits | None:
        """Return the most workers that were measured."""
        grid = self.grids.get(work.model)
        return Limits(max(grid)) if grid else None

    def seconds(self, work: Work, place: Place) -> float | None:
        rate = self.rate(work, place)
        return 1 / rate if rate else None


def parse(lines: Iterable[str]) -> Dl2:
    """Return the table in `config_speed.csv`.

    Raises:
        ValueError: It is another text.
    """
    grids: dict[str, dict[int, dict[int, float]]] = {}
    batches: dict[str, int] = {}
    for row in csv.DictReader(lines):
        model = normalised(row["model"]).model
        workers, servers = int(row["num_worker"]), int(row["num_ps"])
        batches[model] = int(row["total_batch"])
        if (speed := float(row["sum_speed"])) > 0:  # One run of VGG-16 failed.
            grids.setdefault(model, {}).setdefault(workers, {})[servers] = speed
    if not grids:
        raise ValueError("dl2: no speeds in config_speed.csv")  # noqa: EM101
    return Dl2(grids, batches)
