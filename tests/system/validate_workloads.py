"""Says how far off the workload models are where they fill gaps: measured against left out.

    python -m tests.system.validate_workloads [--data DIR]

Every measurement is left out in turn and said from the others, as `skep_lab.workloads` would:

    pollux.splits    each split of 2 to 16 GPUs, at every batch size
    pollux.nodes     6 to 16 nodes, from those of at most 4
    gavel.gpus       2 and 4 GPUs, from the numbers around
    gavel.eight      8 GPUs, from 1 to 4
    gavel.batch      how a model scales, from its scaling at the nearest other batch size
    gavel.pairs      pairs on one GPU, from the fitted loads that answer where no table is
    chronus.nodes    2 nodes, from 1 and 4
    dl2.servers      each number of servers but the ends, from those around
    elasticflow.gpus each number of GPUs but the ends, from those around

Prints JSON: by model the mean and the worst error in per cent of what was measured, and how many
there are. `--data` is the folder with the public measurements (default SKEP_SHARED_DATA).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from skep_lab.workloads.chronus import Chronus
from skep_lab.workloads.dl2 import Dl2
from skep_lab.workloads.elasticflow import ElasticFlow
from skep_lab.workloads.figures import Figures
from skep_lab.workloads.gavel import Gavel
from skep_lab.workloads.pollux import Pollux
from skep_lab.workloads.table import Place, Table, Work, between, scaled
from skep_services import workload_tables

Error = tuple[str, float, float]
"""A model, what was said, and what was measured."""


class Summary(NamedTuple):
    """Errors of one model, in per cent of what was measured."""

    mean: float
    worst: float
    measured: int


def main() -> int:
    """Leave out, say, compare and print."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", default=os.environ.get("SKEP_SHARED_DATA", ""))
    given = parser.parse_args()
    if not given.data or not Path(given.data).is_dir():
        print(
            f"error: no folder {given.data!r}: name the one with the public data by --data or by "
            "SKEP_SHARED_DATA",
            file=sys.stderr,
        )
        return 2
    read = workload_tables.read(Path(given.data))
    print(json.dumps({"absent": read.absent, **validate(read.tables)}, indent=2))
    return 0


def validate(tables: tuple[Table, ...]) -> dict[str, Any]:
    """Return the errors of every kind that the tables at hand allow, by model and of all."""
    found: dict[str, Any] = {}
    for table in tables:
        if isinstance(table, Pollux):
            found["pollux.splits"] = summed(pollux_splits(table))
            found["pollux.nodes"] = summed(pollux_nodes(table))
        elif isinstance(table, Gavel):
            found["gavel.gpus"] = summed(gavel_gpus(table, (2, 4)))
            found["gavel.eight"] = summed(gavel_gpus(table, (8,)))
            found["gavel.batch"] = summed(gavel_batch(table))
            found["gavel.pairs"] = summed(gavel_pairs(table))
        elif isinstance(table, Chronus):
            found["chronus.nodes"] = summed(chronus_nodes(table))
        elif isinstance(table, Dl2):
            found["dl2.servers"] = summed(dl2_servers(table))
        elif isinstance(table, ElasticFlow):
            found["elasticflow.gpus"] = summed(elasticflow_gpus(table))
    return found


def summed(errors: Iterator[Error]) -> dict[str, Any]:
    """Return mean, worst and number of the errors, by model and of all."""
    by_model: dict[str, list[float]] = {}
    for model, said, measured in errors:
        by_model.setdefault(model, []).append(abs(said / measured - 1) * 100)
    every = [error for all_ in by_model.values() for error in all_]
    named = {"all": every, **dict(sorted(by_model.items()))}
    return {
        model: Summary(round(sum(all_) / len(all_), 1), round(max(all_), 1), len(all_))._asdict()
        for model, all_ in named.items()
        if all_
    }


def pollux_splits(table: Pollux) -> Iterator[Error]:
    """Leave out each split over at most four nodes."""
    for model, measured in table.applications.items():
        for split, sizes in measured.items():
            if sum(split) == 1 or len(split) > 4:
                continue
            others = Pollux({model: {key: row for key, row in measured.items() if key != split}})
            for size, step in sizes.items():
                said = others.step(Work(model, size, sum(split), each=True), split)
                yield model, said.step_s, step.step_s


def pollux_nodes(table: Pollux) -> Iterator[Error]:
    """Leave out everything over more than four nodes."""
    for model, measured in table.applications.items():
        few = Pollux({model: {key: row for key, row in measured.items() if len(key) <= 4}})
        for split in measured:
            if len(split) <= 4:
                continue
            for size, step in measured[split].items():
                said = few.step(Work(model, size, sum(split), each=True), split)
                yield model, said.step_s, step.step_s


def gavel_gpus(table: Gavel, left_out: tuple[int, ...]) -> Iterator[Error]:
    """Leave out numbers of GPUs of every job, type and placement."""
    for (_, _, (model, _)), points in table.alone.items():
        for gpus in left_out:
            rest = {n: rate for n, rate in points.items() if n != gpus and (gpus < 8 or n < 8)}
            if gpus in points and len(rest) >= 2:
                yield model, scaled(rest, gpus), points[gpus]


def gavel_batch(table: Gavel) -> Iterator[Error]:
    """Leave out each batch size: how the model scales is said from the nearest other one's."""
    for (kind, near, (model, batch)), points in table.alone.items():
        others = {
            size: row
            for (k, n, (m, size)), row in table.alone.items()
            if (k, n, m) == (kind, near, model) and size != batch and len(row) > 1
        }
        if len(points) < 2 or not others:
            continue
        closest = others[min(others, key=lambda size: (max(size, batch) / min(size, batch), size))]
        for gpus, rate in points.items():
            if gpus > 1 and gpus in closest:
                yield model, closest[gpus] / closest[1], rate / points[1]


def gavel_pairs(table: Gavel) -> Iterator[Error]:
    """Say every pair that fits into a GPU by the fitted loads: half of the pairs are theirs."""
    figures = Figures()
    for kind, pairs in table.pairs.items():
        for (first, second), left in pairs.items():
            if left > 0:
                said = figures.packed(
                    Work(*first, each=True), Work(*second, each=True), Place(kind, (1,), 1)
                )
                if said is not None:
                    yield first[0], said, left


def chronus_nodes(table: Chronus) -> Iterator[Error]:
    """Leave out two nodes where four were measured too."""
    for model, sizes in table.by_model.items():
        for rates in sizes.values():
            if {1, 2, 4} <= set(rates):
                yield model, between({1: rates[1], 4: rates[4]}, 2), rates[2]


def dl2_servers(table: Dl2) -> Iterator[Error]:
    """Leave out each number of servers but the ends, at every number of workers."""
    for model, grid in table.grids.items():
        for row in grid.values():
            for servers in sorted(row)[1:-1]:
                rest = {key: rate for key, rate in row.items() if key != servers}
                yield model, between(rest, servers), row[servers]


def elasticflow_gpus(table: ElasticFlow) -> Iterator[Error]:
    """Leave out each number of GPUs but the ends, at every batch size and type."""
    for (kind, model), sizes in table.rates.items():
        for points in sizes.values():
            for gpus in sorted(points)[1:-1]:
                rest = {key: rate for key, rate in points.items() if key != gpus}
                yield f"{model} on {kind}", scaled(rest, gpus), points[gpus]


if __name__ == "__main__":
    sys.exit(main())
