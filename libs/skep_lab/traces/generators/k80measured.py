"""What a mini-batch takes on K80s where it was measured, for GENIE's tasks, beside `k80`.

Gavel (OSDI'20) measured models on 1, 2, 4 and 8 K80s at several batch sizes of a worker, on one
server and spread. Three of GENIE's six models have something to stand for them (`MODELS`); the
others keep their curve, and so does what only a curve tells: a forward pass is a third of the
mini-batch on one GPU, and needs no other GPU.

Between measured batch sizes a mini-batch is linear in the samples, beyond them as between the two
outermost; between numbers of GPUs it is linear in their logarithm. Beyond 8 GPUs each doubling
costs as much as the last measured one, but at least nothing. What is spread was measured without
saying over how many nodes, so any number of them from two on is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from skep_lab.traces.generators import k80

MODELS = {"resnet50": "resnet50", "regularized-lstm": "lm", "seq2seq": "transformer"}
"""What stands for GENIE's models: the same one, and networks of the same kind (a language model,
and a translator)."""
LEAST_S = 1e-4
"""No mini-batch is shorter, whatever a line comes to."""


class Row(NamedTuple):
    """A mini-batch that was measured: the model by its name in the table."""

    model: str
    apart: bool
    """Whether the GPUs were spread over servers."""
    gpus: int
    batch: float
    """Samples of one GPU."""
    step_s: float


Rows = tuple[Row, ...]


Line = list[tuple[float, float]]
"""Batch sizes of one GPU with their seconds, the smallest first."""


class Measured:
    """Mini-batches as they were measured, and the curves of `k80` for models that were not."""

    def __init__(self, rows: Rows) -> None:
        """Take the rows; without any, all is as the curves say."""
        self._lines: dict[str, dict[bool, dict[int, Line]]] = {}
        for row in sorted(rows):
            lines = self._lines.setdefault(row.model, {False: {}, True: {}})[row.apart]
            lines.setdefault(row.gpus, []).append((row.batch, row.step_s))

    def step_s(self, of: str, batch: float, spread: Sequence[int] = (1,)) -> float:
        """Return the seconds of a mini-batch.

        Args:
            of: The type of the task, as `k80.kind` names it.
            batch: Samples of a mini-batch of the whole gang.
            spread: Its GPUs on each node.
        """
        model, _, calculation = of.partition("/")
        lines = self._lines.get(MODELS.get(model, ""))
        if lines is None:
            return k80.step_s(of, batch, spread)
        gpus = sum(spread)
        alone = _along(lines[False][1], batch / gpus)
        if calculation == k80.INFERENCE:
            return max(alone * k80.FORWARD, LEAST_S)
        there = lines[False]
        if len(spread) > 1 and lines[True]:
            there = {1: there[1], **lines[True]}
        return max(_between(there, gpus, batch / gpus), LEAST_S)


@cache
def measured(rows: Rows) -> Measured:
    """Return the mini-batches of some rows, made once."""
    return Measured(rows)


def _along(line: Line, batch: float) -> float:
    """Return the seconds at a batch size."""
    if len(line) == 1:
        return line[0][1]
    pairs = list(pairwise(line))
    below, above = next((each for each in pairs if batch <= each[1][0]), pairs[-1])
    slope = (above[1] - below[1]) / (above[0] - below[0])
    return below[1] + slope * (batch - below[0])


def _between(lines: Mapping[int, Line], gpus: int, batch: float) -> float:
    """Return the seconds on a number of GPUs, each with so many samples."""
    sizes = sorted(lines)
    if gpus in lines or len(sizes) == 1:
        return _along(lines.get(gpus, lines[sizes[0]]), batch)
    above = next((each for each in sizes if each >= gpus), sizes[-1])
    below = sizes[sizes.index(above) - 1]
    fewer, more = _along(lines[below], batch), _along(lines[above], batch)
    doubling = (more - fewer) / math.log2(above / below)
    if gpus > above:
        return more + max(doubling, 0.0) * math.log2(gpus / above)
    return fewer + doubling * math.log2(gpus / below)


def rows_of(measured: Iterable[Row]) -> Rows:
    """Return the rows that stand for a model, of those that have one on one GPU.

    Args:
        measured: Rows of any models.
    """
    kept = [row for row in measured if row.model in MODELS.values()]
    alone = {row.model for row in kept if row.gpus == 1 and not row.apart}
    return tuple(sorted(row for row in kept if row.model in alone))
