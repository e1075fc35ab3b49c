"""DeepShare's measurements: six models on 2, 4 or 8 GPUs and nodes, and sharing their network.

`isolated_thp.csv` and `shared_thp_ratio.csv`: samples per second alone, and which part of them is
left beside another job. A situation names a neighbour's model and not its size, so what it takes
is the mean over the sizes that were measured.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping

from skep_lab.workloads.names import normalised
from skep_lab.workloads.table import Place, Spread, Table, Work, between, scaled

Shape = tuple[int, int]
"""GPUs and nodes."""


class DeepShare(Table):
    """Rates by model and shape; what neighbours leave by model, shape and neighbour."""

    name = "deepshare"
    origin = "DeepShare: 2 to 8 GPUs on 2 to 8 nodes, and pairs on one network"

    def __init__(
        self,
        alone: Mapping[str, Mapping[Shape, float]],
        shared: Mapping[tuple[str, Shape], Mapping[str, float]],
    ) -> None:
        self.alone = alone
        self.shared = shared

    def models(self) -> tuple[str, ...]:
        return tuple(sorted(self.alone))

    def rate(self, work: Work, place: Place) -> float | None:
        shapes = self.alone.get(work.model)
        if shapes is None:
            return None
        best: dict[int, float] = {}
        for (gpus, _), rate in shapes.items():
            best[gpus] = max(rate, best.get(gpus, 0.0))
        return scaled(best, place.gpus)

    def locality(self, work: Work, place: Place, fewest: Spread) -> float | None:
        shapes = self.alone.get(work.model)
        if shapes is None or place.gpus < 2:
            return None
        gpus = _near([size for size, _ in shapes], place.gpus)
        by_nodes = {nodes: rate for (size, nodes), rate in shapes.items() if size == gpus}
        # One node was never measured: it is taken to be as fast as two.
        return between(by_nodes, len(place.spread)) / between(by_nodes, len(fewest))

    def beside(self, work: Work, neighbour: Work, place: Place) -> float | None:
        shapes = [shape for model, shape in self.shared if model == work.model]
        if not shapes or len(place.spread) == 1:  # On one node it does not use the network.
            return None
        gpus = _near([shape[0] for shape in shapes], place.gpus)
        nodes = _near([shape[1] for shape in shapes if shape[0] == gpus], len(place.spread))
        return self.shared[work.model, (gpus, nodes)].get(neighbour.model)


def _near(sizes: list[int], wanted: int) -> int:
    return min(sorted(sizes), key=lambda size: abs(math.log(size / max(wanted, 1))))


def parse(isolated: Iterable[str], shared: Iterable[str] = ()) -> DeepShare:
    """Return the table in both files.

    Args:
        isolated: The lines of `isolated_thp.csv`.
        shared: The lines of the file with neighbours.

    Raises:
        ValueError: The first file has no rates.
    """
    alone: dict[str, dict[Shape, float]] = {}
    for row in list(csv.reader(isolated))[1:]:
        model, shape = _key(row[0])
        alone.setdefault(model, {})[shape] = float(row[1])
    if not alone:
        raise ValueError("deepshare: no rates in isolated_thp.csv")  # noqa: EM101
    left: dict[tuple[str, Shape], dict[str, float]] = {}
    rows = list(csv.reader(shared))
    for row in rows[1:]:
        by_model: dict[str, list[float]] = {}
        for title, cell in zip(rows[0][1:], row[1:], strict=True):
            by_model.setdefault(_key(title)[0], []).append(min(float(cell), 1.0))
        left[_key(row[0])] = {model: sum(all_) / len(all_) for model, all_ in by_model.items()}
    return DeepShare(alone, left)


def _key(text: str) -> tuple[str, Shape]:
    model, gpus, nodes = text.split(",")
    return normalised(model).model, (int(gpus), int(nodes))
