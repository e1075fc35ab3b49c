"""ElasticFlow's measurements: how models scale over 1 to 64 A100s, or T4s.

Gu et al., ASPLOS'23; `throughputs_A100` and `throughputs_T4`: mini-batches per second by batch size
of the gang. What could not run has no number, and is taken from the nearest that did. The T4's are
Pollux's applications and the A100's are others of the same names, so the two are not compared.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping

from skep_lab.workloads.names import normalised
from skep_lab.workloads.table import Limits, Place, Table, Work, nearest, scaled


class ElasticFlow(Table):
    """Rates by type, model, batch size and GPUs."""

    name = "elasticflow"
    origin = "ElasticFlow (ASPLOS'23): A100 and T4; 1 to 64 GPUs at a fixed batch size"
    gpu_types = ("a100", "t4")

    def __init__(self, rates: Mapping[tuple[str, str], Mapping[int, Mapping[int, float]]]) -> None:
        self.rates = rates

    def models(self) -> tuple[str, ...]:
        return tuple(sorted({model for _, model in self.rates}))

    def rate(self, work: Work, place: Place) -> float | None:
        kinds = (place.gpu_type,) if place.gpu_type else self.gpu_types
        # As many samples per second as with the nearest batch size that this type was measured at.
        for kind in kinds:
            if sizes := self.rates.get((kind, work.model)):
                batch = nearest(tuple(sizes), work.gang_batch)
                return scaled(sizes[batch], place.gpus) * batch / (work.gang_batch or batch)
        return None

    def limits(self, work: Work) -> Limits | None:
        """Return the most GPUs that were measured at the batch size nearest to the job's."""
        found = [
            max(sizes[nearest(tuple(sizes), work.gang_batch)])
            for (_, model), sizes in self.rates.items()
            if model == work.model
        ]
        return Limits(max(found)) if found else None

    def seconds(self, work: Work, place: Place) -> float | None:
        rate = self.rate(work, place)
        return 1 / rate if rate else None


def parse(files: Mapping[tuple[str, str], Iterable[str]]) -> ElasticFlow:
    """Return the table in the files.

    Args:
        files: Their lines, by type of GPU and model.

    Raises:
        ValueError: They are other texts.
    """
    rates: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    for (kind, model), lines in files.items():
        found = {}
        for row in csv.DictReader(lines):
            batch = int(row.pop("global_batch_size"))
            points = {int(gpus): float(text) for gpus, text in row.items() if text}
            measured = {
                gpus: rate for gpus, rate in points.items() if rate > 0 and math.isfinite(rate)
            }
            if measured:
                found[batch] = measured
        if not found:
            raise ValueError(f"elasticflow: no rates of {model} on {kind}")  # noqa: EM102
        rates[kind, normalised(model).model] = found
    return ElasticFlow(rates)
