"""The public measurements as points of families, by data set: what predictions are judged on.

A data set is what one group measured on one type of GPU and network; its models are its families.
A mini-batch's time is that of the gang. How each source is read:

- Pollux: every split and batch size of a GPU, up to 16 nodes.
- ElasticFlow: batch sizes are the gang's. Gangs are taken to be on as few nodes as hold them: of 8
  A100s and of 4 T4s.
- Gavel: batch sizes are a worker's, and rates are those of all workers together. What is not
  consolidated is taken to be on two nodes.
- DeepShare: samples per second; the batch size is unknown, and taken to be a constant of a GPU.
- DL2: workers and servers, of which each has a node to itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skep.perf.model.placement import Placement, Point
from skep.units import seconds
from skep_lab.workloads.deepshare import DeepShare
from skep_lab.workloads.dl2 import Dl2
from skep_lab.workloads.elasticflow import ElasticFlow
from skep_lab.workloads.gavel import TYPES, Gavel
from skep_lab.workloads.pollux import Pollux
from skep_lab.workloads.table import Table

Families = dict[str, list[Point]]
"""By model."""

POINTS_LEAST = 4
"""A family with fewer points has nothing left to predict."""
NODE_GPUS = {"a100": 8, "t4": 4}
"""GPUs of ElasticFlow's nodes."""


def families(tables: Iterable[Table]) -> dict[str, Families]:
    """Return the families of each data set that the tables hold.

    Args:
        tables: Any tables; those without times of gangs are passed over.
    """
    found: dict[str, Families] = {}
    for table in tables:
        match table:
            case Pollux():
                found["pollux-t4"] = _pollux(table)
            case ElasticFlow():
                for kind in NODE_GPUS:
                    found[f"elasticflow-{kind}"] = _elasticflow(table, kind)
            case Gavel():
                for kind in TYPES:
                    found[f"gavel-{kind}"] = _gavel(table, kind)
            case DeepShare():
                found["deepshare"] = _deepshare(table)
            case Dl2():
                found["dl2"] = _dl2(table)
            case _:
                pass
    return {name: _large(each) for name, each in found.items()}


def _large(found: Families) -> Families:
    """Return the families that were measured on more than one number of GPUs."""
    return {
        model: points
        for model, points in sorted(found.items())
        if len(points) > POINTS_LEAST
        and len({(each.placement.gpus, each.placement.nodes) for each in points}) > 1
    }


def _point(place: Placement, step_s: float) -> Point:
    return Point(place, seconds(step_s))


def _pollux(table: Pollux) -> Families:
    return {
        model: [
            _point(Placement("t4", sum(spread), len(spread), size), step.step_s)
            for spread, sizes in sorted(splits.items())
            for size, step in sorted(sizes.items())
        ]
        for model, splits in table.applications.items()
    }


def _elasticflow(table: ElasticFlow, kind: str) -> Families:
    found: Families = {}
    for (one, model), sizes in table.rates.items():
        if one != kind:
            continue
        found[model] = [
            _point(Placement(kind, gpus, -(-gpus // NODE_GPUS[kind]), batch / gpus), 1 / rate)
            for batch, rates in sorted(sizes.items())
            for gpus, rate in sorted(rates.items())
        ]
    return found


def _gavel(table: Gavel, kind: str) -> Families:
    found: Families = {}
    for (one, near, (model, batch)), rates in sorted(table.alone.items()):
        for gpus, rate in sorted(rates.items()):
            if one != kind or (gpus == 1 and not near):
                continue  # One GPU is as it is in both placements.
            place = Placement(kind, gpus, 1 if near else 2, batch)
            found.setdefault(model, []).append(_point(place, gpus / rate))
    return found


def _deepshare(table: DeepShare) -> Families:
    return {
        model: [
            # Samples are rates of thousands for some models, so the unit is a thousand of them.
            _point(Placement("deepshare", gpus, nodes, 1), 1000 * gpus / rate)
            for (gpus, nodes), rate in sorted(shapes.items())
        ]
        for model, shapes in table.alone.items()
    }


def _dl2(table: Dl2) -> Families:
    return {
        model: [
            _point(
                Placement(
                    "dl2",
                    workers,
                    workers + servers,
                    table.batches[model] / workers,
                    workers,
                    servers,
                ),
                table.batches[model] / speed,
            )
            for workers, speeds in sorted(grid.items())
            for servers, speed in sorted(speeds.items())
        ]
        for model, grid in table.grids.items()
    }


def counts(found: Mapping[str, Families]) -> dict[str, dict[str, int]]:
    """Return how many points each family of each data set has."""
    return {name: {model: len(each) for model, each in one.items()} for name, one in found.items()}
