"""Chronus's measurements: five vision models on 2 to 8 GPUs of 1, 2 or 4 nodes.

Gao et al., SoCC'21; `model_info.json`: how fast they are relative to the same GPUs on one node, so
nothing is said about more or fewer GPUs. Between numbers of nodes the slowdown is interpolated in
doublings; on more nodes than were measured it is that of the most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from skep_lab.workloads.names import normalised
from skep_lab.workloads.table import Place, Spread, Table, Work, between


class Chronus(Table):
    """Relative rates by model, GPUs and nodes."""

    name = "chronus"
    origin = "Chronus (SoCC'21): 2 to 8 GPUs on 1, 2 or 4 nodes"

    def __init__(self, by_model: Mapping[str, Mapping[int, Mapping[int, float]]]) -> None:
        self.by_model = by_model

    def models(self) -> tuple[str, ...]:
        return tuple(sorted(self.by_model))

    def locality(self, work: Work, place: Place, fewest: Spread) -> float | None:
        sizes = self.by_model.get(work.model)
        if sizes is None:
            return None
        return self._at(sizes, place.gpus, len(place.spread)) / self._at(
            sizes, place.gpus, len(fewest)
        )

    def _at(self, sizes: Mapping[int, Mapping[int, float]], gpus: int, nodes: int) -> float:
        if nodes == 1 or gpus == 1:
            return 1.0
        # Six GPUs were not measured on four nodes: then the next number of GPUs that was.
        reach = [size for size in sizes if max(sizes[size]) >= nodes]
        reach = reach or [
            size for size in sizes if max(sizes[size]) == max(map(max, sizes.values()))
        ]
        size = min(reach, key=lambda size: (abs(math.log(size / gpus)), size))
        return between(sizes[size], nodes)


def parse(text: str | bytes) -> Chronus:
    """Return the table in `model_info.json`.

    Raises:
        ValueError: It is another text.
    """
    raw = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, float]]])
    return Chronus(
        {
            normalised(model).model: {
                int(gpus): {int(nodes): rate for nodes, rate in by_nodes.items()}
                for gpus, by_nodes in sizes.items()
            }
            for model, sizes in raw.items()
        }
    )
