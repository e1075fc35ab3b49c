"""Optimus' form of a mini-batch's time, for parameter servers and for all-reduce.

Peng et al., Optimus, section 3.2: with w workers and p servers and a mini-batch of M samples shared
among the workers, t = a M / w + b + c w / p + d w + e p. Without servers the term of c and e has
nothing to stand on; a term for each node beyond the first one takes its place.
"""

from __future__ import annotations

import msgspec

from skep.perf.model.placement import Placement

Terms = tuple[float, float, float, float, float]


class Optimus(msgspec.Struct, frozen=True, tag="optimus"):
    """Nanoseconds of each term, at least 0."""

    terms: Terms
    servers: bool = False
    """Whether the terms are those of a job with parameter servers."""
    batch: float = 1.0
    """Samples per GPU that an unknown batch size stands for."""


def terms_of(place: Placement, batch: float) -> Terms:
    """Return what each coefficient is multiplied with.

    Args:
        place: The placement. With servers, a worker counts as one GPU if workers are not told.
        batch: Samples per GPU where the placement has none.
    """
    local = place.batch or batch
    if place.servers:
        workers = place.workers or place.gpus
        return (local, 1.0, workers / place.servers, float(workers), float(place.servers))
    many = place.gpus > 1
    return (local, 1.0, float(many), float(place.gpus - 1), float(place.nodes - 1))


def step_ns(optimus: Optimus, place: Placement) -> float:
    """Return nanoseconds of a mini-batch.

    Args:
        optimus: The coefficients.
        place: The placement.
    """
    terms = terms_of(place, optimus.batch)
    return sum(part * weight for part, weight in zip(optimus.terms, terms, strict=True))
