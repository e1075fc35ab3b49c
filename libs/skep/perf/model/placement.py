"""What is measured and what is predicted: placements, points and spans."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from skep.units import Duration

LIMIT_NS = float(1 << 62)
"""No mini-batch takes longer; predictions stop there."""


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Where a gang runs, and on how much: what a mini-batch's time depends on.

    `gpus` are those of the whole gang and `nodes` the nodes that they are on. `batch` is samples
    per GPU and mini-batch; 0: unknown. It may be a fraction where a batch size is shared out.
    `workers` and `servers` are for jobs with parameter servers; 0: it has none.
    """

    gpu_type: str
    gpus: int
    nodes: int = 1
    batch: float = 0.0
    workers: int = 0
    servers: int = 0


class Point(msgspec.Struct, frozen=True):
    """What was measured: nanoseconds of a mini-batch at a placement.

    `samples` are the mini-batches behind it; `spread` is their standard deviation, as a part of
    `step_ns` (0.0: unknown).
    """

    placement: Placement
    step_ns: Duration
    samples: int = 1
    spread: float = 0.0


class Stratum(StrEnum):
    """How far a placement is from what was measured of its family."""

    NEAR = "near"
    MORE_GPUS = "more-gpus"
    """More than twice the GPUs of any measured placement."""
    MORE_NODES = "more-nodes"
    """More nodes than any measured placement has."""


class Basis(StrEnum):
    """What a prediction rests on."""

    NOTHING = "nothing"
    OTHERS = "others"
    """Other families only; for want of a measurement even the scale is theirs."""
    BORROWED = "borrowed"
    """The most similar model, with fewer measurements of its own than a promise needs."""
    FEW = "few"
    """Fewer measurements than a promise needs; the rest is from other families."""
    OWN = "own"
    """Enough measurements of the family itself."""


class Span(msgspec.Struct, frozen=True):
    """What a mini-batch is predicted to take, in nanoseconds: P10, P50 and P90.

    `promised`: a promise may rest on it. All three are 0 where nothing is known.
    """

    p10: Duration
    p50: Duration
    p90: Duration
    stratum: Stratum
    basis: Basis
    promised: bool = False


def clean(points: Any) -> list[Point]:
    """Return the points that can be learned from, in their order; one for each placement.

    Of several at the same placement it is the one with the most samples, the last of equal ones.

    Args:
        points: An iterable of points. Those without GPUs, nodes or time, and those with more nodes
            than GPUs and servers, are left out.
    """
    found: dict[Placement, Point] = {}
    for point in points:
        place = point.placement
        most = max(place.gpus, place.workers) + place.servers
        good = 0 < point.step_ns < LIMIT_NS and place.gpus >= 1 and 1 <= place.nodes <= most
        if not good or place.batch < 0 or place.batch != place.batch or place.batch > LIMIT_NS:
            continue
        known = found.get(place)
        if known is None or point.samples >= known.samples:
            found[place] = point
    return list(found.values())
