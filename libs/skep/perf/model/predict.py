"""Predicts a mini-batch's time from fitted parameters: pure `math`, some microseconds.

Whatever was fitted goes by one name here, `Parameters`. `predict` adds what an interval needs: how
far the placement is from what was measured, and how wrong predictions that far were for others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from skep.perf.model import genie, kernel, optimus, theta
from skep.perf.model.genie import Genie
from skep.perf.model.kernel import Kernel
from skep.perf.model.optimus import Optimus
from skep.perf.model.placement import LIMIT_NS, Basis, Placement, Span, Stratum
from skep.perf.model.theta import Theta
from skep.perf.model.widening import AS_LEARNED, Widening, factor_of
from skep.units import Duration

Form = Theta | Kernel | Optimus | Genie

POINTS_PROMISED = 3
"""A promise rests on at least so many measured placements."""
GPUS_NEAR = 2
"""Up to so many times the GPUs of the largest measured gang is near."""


class Seen(msgspec.Struct, frozen=True):
    """What was measured of a family: how many placements, and the largest of them."""

    points: int = 0
    gpus: int = 0
    nodes: int = 0


class Errors(msgspec.Struct, frozen=True):
    """How wrong predictions in a stratum are: logarithms of measured over predicted.

    `low` and `high` are the 10 and 90 % quantiles; `known` says from how many families.
    """

    low: float
    high: float
    known: int = 0


UNKNOWN = Errors(-1.6, 1.6)
"""Where no errors are known: a fifth to five times."""


class Parameters(msgspec.Struct, frozen=True):
    """All that was fitted to a family on one type of GPU.

    `forms` and their `weights` are blended in logarithms. The errors are those of each stratum.
    """

    forms: tuple[Form, ...] = ()
    weights: tuple[float, ...] = ()
    seen: Seen = Seen()
    near: Errors = UNKNOWN
    more_gpus: Errors = UNKNOWN
    more_nodes: Errors = UNKNOWN
    far_weights: tuple[float, ...] = ()
    """The weights beyond what was measured; empty: the same."""
    borrowed: bool = False
    """The most similar model is what was expected at first."""


NOTHING = Span(Duration(0), Duration(0), Duration(0), Stratum.MORE_GPUS, Basis.NOTHING)


def form_ns(form: Form, place: Placement) -> float:
    """Return nanoseconds of a mini-batch by one form.

    Args:
        form: What was fitted.
        place: The placement.
    """
    match form:
        case Theta():
            return theta.step_ns(form, place.gpus, place.nodes, place.batch)
        case Kernel():
            return kernel.step_ns(form, place.gpus, place.nodes, place.batch)
        case Optimus():
            return optimus.step_ns(form, place)
        case Genie():
            return genie.step_ns(form, place.gpus, place.nodes, place.batch)


def stratum_of(seen: Seen, place: Placement) -> Stratum:
    """Return how far a placement is from what was measured; more nodes is the farther one.

    Args:
        seen: What was measured.
        place: The placement.
    """
    if place.nodes > seen.nodes:
        return Stratum.MORE_NODES
    if place.gpus > GPUS_NEAR * seen.gpus:
        return Stratum.MORE_GPUS
    return Stratum.NEAR


def step_ns(parameters: Parameters, place: Placement, stratum: Stratum | None = None) -> float:
    """Return nanoseconds of a mini-batch, blended; 0.0 where nothing was fitted.

    Args:
        parameters: What was fitted.
        place: The placement.
        stratum: Its stratum, if the caller knows it.
    """
    if not parameters.forms:
        return 0.0
    weights = parameters.weights
    if parameters.far_weights:
        stratum = stratum or stratum_of(parameters.seen, place)
        if stratum is not Stratum.NEAR:
            weights = parameters.far_weights
    logs = total = 0.0
    for form, weight in zip(parameters.forms, weights, strict=True):
        if weight > 0:
            logs += weight * math.log(min(max(form_ns(form, place), 1.0), LIMIT_NS))
            total += weight
    return math.exp(logs / total) if total > 0 else 0.0


def promised(seen: Seen, place: Placement) -> bool:
    """Return whether a promise may rest on a prediction: enough points, two nodes among them.

    Args:
        seen: What was measured.
        place: The placement.
    """
    return seen.points >= POINTS_PROMISED and (place.nodes <= 1 or seen.nodes > 1)


def basis_of(parameters: Parameters) -> Basis:
    """Return what predictions of a family rest on.

    Args:
        parameters: What was fitted.
    """
    points = parameters.seen.points
    if points >= POINTS_PROMISED:
        return Basis.OWN
    if parameters.borrowed:
        return Basis.BORROWED
    return Basis.FEW if points else Basis.OTHERS


def errors_of(parameters: Parameters, stratum: Stratum) -> Errors:
    """Return how wrong predictions of a stratum are.

    Args:
        parameters: What was fitted.
        stratum: How far the placement is from what was measured.
    """
    match stratum:
        case Stratum.NEAR:
            return parameters.near
        case Stratum.MORE_GPUS:
            return parameters.more_gpus
        case Stratum.MORE_NODES:
            return parameters.more_nodes


def predict(parameters: Parameters, place: Placement, widening: Widening = AS_LEARNED) -> Span:
    """Return what a mini-batch takes there: P10, P50 and P90.

    Args:
        parameters: What was fitted.
        place: The placement.
        widening: By how much errors are wider than they were for others.
    """
    if not parameters.forms or place.gpus < 1 or place.nodes < 1:
        return NOTHING
    seen = parameters.seen
    stratum = stratum_of(seen, place)
    middle = step_ns(parameters, place, stratum)
    if not middle > 0:
        return NOTHING
    errors = errors_of(parameters, stratum)
    wider = factor_of(widening, stratum)
    low = middle * math.exp(max(min(errors.low * wider, 0.0), -40.0))
    high = middle * math.exp(min(max(errors.high * wider, 0.0), 40.0))
    return Span(
        Duration(max(round(low), 1)),
        Duration(max(round(middle), 1)),
        Duration(max(round(min(high, LIMIT_NS)), 1)),
        stratum,
        basis_of(parameters),
        promised(seen, place),
    )


def predict_all(
    parameters: Parameters, places: Sequence[Placement], widening: Widening = AS_LEARNED
) -> list[Span]:
    """Return a span for each placement, in their order: what `predict` returns, to the last bits.

    Placements with the same GPUs and batch size on different numbers of nodes share most terms.

    Args:
        parameters: What was fitted.
        places: The placements.
        widening: As for `predict`.
    """
    found = [NOTHING] * len(places)
    alike: dict[tuple[int, float], list[int]] = {}
    for at, place in enumerate(places):
        if place.gpus < 1 or place.nodes < 1 or place.servers:
            found[at] = predict(parameters, place, widening)
        else:
            alike.setdefault((place.gpus, place.batch), []).append(at)
    shared: dict[tuple[Stratum, bool], _Shared] = {}
    for group in alike.values():
        spans = _alike(parameters, [places[at] for at in group], widening, shared)
        for at, span in zip(group, spans, strict=True):
            found[at] = span
    return found


def _alike(
    parameters: Parameters,
    places: list[Placement],
    widening: Widening,
    shared: dict[tuple[Stratum, bool], _Shared],
) -> list[Span]:
    """Return spans of placements that differ in their nodes only."""
    exp, log, seen = math.exp, math.log, parameters.seen
    gpus, batch, counts = places[0].gpus, places[0].batch, [each.nodes for each in places]
    by_form = [
        [
            log(step if 1.0 <= step <= LIMIT_NS else min(max(step, 1.0), LIMIT_NS))
            for step in _steps_ns(form, gpus, counts, batch)
        ]
        for form in parameters.forms
    ]
    found = []
    for place, *logs in zip(places, *by_form, strict=True):
        key = stratum_of(seen, place), place.nodes > 1
        known = shared.get(key)
        if known is None:
            known = shared[key] = _shared(parameters, place, widening)
        weights, total, low, high, like = known
        if not like.p50:
            found.append(like)
            continue
        blended = 0.0
        for weight, each in zip(weights, logs, strict=True):
            if weight > 0:
                blended += weight * each
        middle = exp(blended / total)  # At least 1, as each form's is here.
        p10, p50 = Duration(max(round(middle * low), 1)), Duration(round(middle))
        p90 = Duration(round(min(middle * high, LIMIT_NS)))
        found.append(Span(p10, p50, p90, like.stratum, like.basis, like.promised))
    return found


class _Shared(NamedTuple):
    """What placements of one stratum have in common."""

    weights: tuple[float, ...]
    total: float
    low: float
    """P10 over P50."""
    high: float
    like: Span
    """What is predicted at one of them."""


def _shared(parameters: Parameters, place: Placement, widening: Widening) -> _Shared:
    like = predict(parameters, place, widening)
    far = parameters.far_weights and like.stratum is not Stratum.NEAR
    weights = parameters.far_weights if far else parameters.weights
    errors, wider = errors_of(parameters, like.stratum), factor_of(widening, like.stratum)
    return _Shared(
        weights,
        sum(weight for weight in weights if weight > 0),
        math.exp(max(min(errors.low * wider, 0.0), -40.0)),
        math.exp(min(max(errors.high * wider, 0.0), 40.0)),
        like,
    )


def _steps_ns(form: Form, gpus: int, counts: Sequence[int], batch: float) -> list[float]:
    """Return nanoseconds of a mini-batch by one form on several numbers of nodes."""
    match form:
        case Theta():
            return theta.steps_ns(form, gpus, counts, batch)
        case Kernel():
            return kernel.steps_ns(form, gpus, counts, batch)
        case Optimus() if not form.servers:
            one = optimus.step_ns(form, Placement("", gpus, 1, batch))
            return [one + form.terms[4] * (nodes - 1) for nodes in counts]
        case _:
            return [form_ns(form, Placement("", gpus, nodes, batch)) for nodes in counts]
