"""Fits the forms to measurements. For the advisor and the laboratory: it uses numpy.

Every fit minimises errors of logarithms, so a mini-batch predicted at half or twice its time counts
the same. Fits have no random part: the same points give the same parameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from skep.perf.model.genie import AS_PRINTED, Genie, Reading, single_rate
from skep.perf.model.optimus import Optimus, terms_of
from skep.perf.model.placement import Placement, Point, clean
from skep.perf.model.theta import POWER_MAX, Theta

Array = NDArray[np.float64]

ROUNDS_MAX = 30
"""Steps of a fit; most need ten."""
HUBER = 1.5
"""Errors beyond this many times the noise count with their size, not their square (Huber)."""
LOGS = 8
"""Logarithms of a theta: scale, share of samples, near, near_gpu, far, far_gpu, node, power."""
SHARE, NEAR, NEAR_GPU, FAR, FAR_GPU, NODE, POWER = range(1, LOGS)


class Prior(msgspec.Struct, frozen=True):
    """What is expected of a theta's logarithms before anything is measured, and the noise."""

    mean: tuple[float, ...]
    sd: tuple[float, ...]
    noise: float = 0.05
    families: int = 0
    """From how many families it was learned."""
    lean: tuple[float, ...] = (0.0,) * 8
    """How the mean of each changes with the scale: longer mini-batches have, for what they
    compute, less to synchronise."""
    middle: float = 0.0
    """The scale at which the mean is as given."""


PLAIN = Prior(
    mean=(0.0, 2.0, -2.5, -5.0, -1.5, -4.0, -12.0, 0.0),
    sd=(30.0, 3.0, 3.0, 3.0, 3.0, 3.0, 0.01, 2.0),
    noise=0.05,
)
"""Next to nothing is expected: enough that what no point tells has a value. Pollux' form."""
BROAD = Prior(
    mean=(0.0, 2.0, -2.0, -3.8, -1.1, -5.0, -5.6, -3.5),
    sd=(30.0, 2.1, 1.3, 1.6, 1.6, 2.9, 2.5, 2.2),
    noise=0.05,
    lean=(0.0, 0.25, -0.2, -0.15, -0.3, -0.25, 0.0, 0.2),
)
"""Where learning a prior begins: what the public measurements' models for tuning have in common
(`skep_lab.measures.protocol`), of all types of GPU."""
SCALE_SD = 30.0
"""Scales of two families have nothing to do with one another."""


class Rows(NamedTuple):
    """Points as arrays: [points] of one family, or [fits, points] of several with as many each."""

    gpus: Array
    nodes: Array
    batch: Array
    """Relative to the family's reference batch size."""
    logs: Array
    """Logarithms of seconds."""
    base: float
    """The reference batch size."""


def rows(points: Sequence[Point], base: float = 0.0) -> Rows:
    """Return points as arrays.

    Args:
        points: At least one.
        base: The batch size that others are relative to; 0: of the first point.
    """
    base = base or points[0].placement.batch or 1.0
    return Rows(
        np.array([float(each.placement.gpus) for each in points]),
        np.array([float(each.placement.nodes) for each in points]),
        np.array([(each.placement.batch or base) / base for each in points]),
        np.log(np.array([each.step_ns / 1e9 for each in points])),
        base,
    )


def _within(values: Array, most: float) -> Array:
    """Return values that are at most so far from 0: `np.clip`, a few microseconds sooner."""
    return np.minimum(np.maximum(values, -most), most)


class Terms(NamedTuple):
    """What all thetas have in common at some points."""

    many: NDArray[np.bool_]
    """Whether there is more than one GPU."""
    slopes: Array
    """What near, near_gpu, far, far_gpu and node are multiplied with: [5, points] (of each fit)."""


def _terms(data: Rows) -> Terms:
    many, apart = data.gpus > 1, (data.nodes > 1) & (data.gpus > 1)
    more = np.maximum(data.gpus - 2, 0.0)
    near = many & ~apart
    slopes = [near * 1.0, near * more, apart * 1.0, apart * more, apart * (data.nodes - 2)]
    return Terms(many, np.stack(slopes, axis=-2))


def _soft(logs: Array) -> tuple[Array, Array]:
    """Return the power and its derivative by its logarithm-like parameter, from 1 to POWER_MAX."""
    part = 1 / (1 + np.exp(-_within(logs, 40.0)))
    width = POWER_MAX - 1
    return 1 + width * part, width * part * (1 - part)


def _curve(logs: Array, data: Rows, terms: Terms) -> tuple[Array, Array]:
    """Return log seconds of each point and their derivatives, of several thetas at once.

    Args:
        logs: [thetas, LOGS].
        data: The points.
        terms: What `_terms` returns of them.

    Returns:
        [thetas, points] and [thetas, points, LOGS].
    """
    count = data.gpus.shape[-1]
    logs, many = _within(logs, 40.0), terms.many
    share = 1 / (1 + np.exp(-logs[:, SHARE, None]))
    grad = (1 - share) + share * data.batch
    parts = np.exp(logs[:, NEAR : NODE + 1])[:, :, None]
    shares = parts * terms.slopes
    sync = shares.sum(axis=1)
    power, by_power = _soft(logs[:, POWER])
    power, by_power = power[:, None], by_power[:, None]
    log_grad = np.log(grad)
    log_sync = np.where(many, np.log(np.maximum(sync, 1e-300)), -1e9)
    high = np.maximum(log_grad, log_sync)
    both = power * high + np.log(
        np.exp(power * (log_grad - high)) + np.exp(power * (log_sync - high))
    )
    part = np.exp(power * log_sync - both)  # What synchronisation is of the sum.
    curve = logs[:, 0, None] + both / power
    slope = np.empty((len(logs), count, LOGS))
    slope[:, :, 0] = 1.0
    slope[:, :, SHARE] = (1 - part) * (data.batch - 1) / grad * share * (1 - share)
    ratio = np.where(many, part / np.maximum(sync, 1e-300), 0.0)
    slope[:, :, NEAR : NODE + 1] = (ratio[:, None] * shares).transpose(0, 2, 1)
    mixed = (1 - part) * log_grad + np.where(many, part * log_sync, 0.0)
    slope[:, :, POWER] = (mixed / power - both / power**2) * by_power
    return curve, slope


class Fitted(NamedTuple):
    """Thetas as logarithms, with how sure they are (inverse of the curvature)."""

    logs: Array
    spread: Array


def fit_logs(data: Rows, weights: Array, prior: Prior, groups: int = 1) -> Fitted:
    """Return the thetas with the highest posterior, for several choices of points at once.

    Levenberg and Marquardt's steps, with Huber's loss on errors.

    Args:
        data: The points.
        weights: [fits, points]; 0 leaves a point out.
        prior: What is expected.
        groups: In so many groups of one size fits go on until all of a group are done: what comes
            of one does not depend on the others.
    """
    fits, terms = len(weights), _terms(data)
    mean, lean = np.array(prior.mean), np.array(prior.lean)
    least = np.maximum(weights.sum(axis=1), 1e-9)
    begin = np.tile(mean, (fits, 1))
    for _ in range(2):  # The mean depends on the scale, and the scale on the mean.
        rest = (weights * (data.logs - _curve(_scaleless(begin), data, terms)[0])).sum(
            axis=1
        ) / least
        begin = expected(prior, rest)
    # What is expected is linear: `turn @ logs` has the mean `mean_of`. Scales are free.
    turn = np.eye(LOGS)
    turn[1:, 0] -= lean[1:]
    mean_of = np.tile(mean - lean * prior.middle, (fits, 1))
    mean_of[:, 0] = begin[:, 0]
    certain = 1 / np.square(np.array(prior.sd))
    bent = turn.T @ (certain[:, None] * turn)

    def look(logs: Array) -> tuple[Array, Array, Array, Array]:
        curve, slope = _curve(logs, data, terms)
        errors = (data.logs - curve) / prior.noise
        size = np.abs(errors)
        loss = np.where(size <= HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
        off = logs @ turn.T - mean_of
        total = (weights * loss).sum(axis=1) + 0.5 * (certain * off**2).sum(axis=1)
        heavy = weights * np.minimum(1.0, HUBER / np.maximum(size, 1e-12))
        return total, errors, slope / prior.noise, heavy

    logs, damping, done = begin, np.full(fits, 1e-2), np.zeros(fits, np.bool_)
    total, errors, slope, heavy = look(logs)
    eye = np.eye(LOGS)
    for _ in range(ROUNDS_MAX):
        scaled = slope * heavy[:, :, None]
        bend = scaled.transpose(0, 2, 1) @ slope + bent
        off = logs @ turn.T - mean_of
        push = (scaled * errors[:, :, None]).sum(axis=1) - (certain * off) @ turn
        diagonal = np.einsum("fii->fi", bend)
        move = np.linalg.solve(
            bend + (damping[:, None] * diagonal)[:, :, None] * eye, push[:, :, None]
        )[:, :, 0]
        tried = logs + _within(move, 2.0)
        new = look(tried)
        better = (new[0] < total) & ~done
        gain = np.where(better, total - new[0], 0.0)
        keep = better[:, None]
        logs = np.where(keep, tried, logs)
        total = np.where(better, new[0], total)
        errors = np.where(keep, new[1], errors)
        slope = np.where(keep[:, :, None], new[2], slope)
        heavy = np.where(keep, new[3], heavy)
        damping = np.minimum(np.maximum(damping * np.where(better, 0.2, 8.0), 1e-8), 1e8)
        stops = ((gain < 1e-4) & (better | (damping > 1e4))).reshape(groups, -1).all(axis=1)
        done |= np.repeat(stops, fits // groups)
        if done.all():
            break
    bend = (slope * heavy[:, :, None]).transpose(0, 2, 1) @ slope + bent
    return Fitted(logs, np.einsum("fii->fi", np.linalg.inv(bend)))


def expected(prior: Prior, scales: Array) -> Array:
    """Return the mean of thetas' logarithms, given the logarithms of their scales: [thetas, LOGS].

    Args:
        prior: What is expected.
        scales: [thetas].
    """
    found = np.array(prior.mean) + np.array(prior.lean) * (scales[:, None] - prior.middle)
    found[:, 0] = scales
    return np.asarray(found, np.float64)


def _scaleless(logs: Array) -> Array:
    found = logs.copy()
    found[:, 0] = 0.0
    return found


def curve(logs: Array, data: Rows) -> Array:
    """Return log seconds of each point by several thetas: [thetas, points].

    Args:
        logs: [thetas, LOGS].
        data: The points.
    """
    return _curve(logs, data, _terms(data))[0]


def as_theta(logs: Array, base: float) -> Theta:
    """Return a theta from its logarithms.

    Args:
        logs: [LOGS].
        base: The reference batch size.
    """
    scale = math.exp(float(np.clip(logs[0], -60, 60))) * 1e9
    share = 1 / (1 + math.exp(-float(np.clip(logs[SHARE], -40, 40))))
    near, near_gpu, far, far_gpu, node = (
        scale * math.exp(float(np.clip(each, -40, 40))) for each in logs[NEAR : NODE + 1]
    )
    return Theta(
        scale * (1 - share),
        scale * share / base,
        near,
        near_gpu,
        far,
        far_gpu,
        node,
        power=float(_soft(logs[POWER : POWER + 1])[0][0]),
        batch=base,
    )


def fit_theta(points: Sequence[Point], prior: Prior = PLAIN) -> Theta | None:
    """Return the theta that fits best, given what is expected.

    Args:
        points: Of one family on one type of GPU.
        prior: `PLAIN` expects next to nothing.

    Returns:
        None without points.
    """
    points = clean(points)
    if not points:
        return None
    data = rows(points)
    return as_theta(fit_logs(data, np.ones((1, len(points))), prior).logs[0], data.base)


def middle(points: Sequence[Point]) -> float:
    """Return the middle batch size of a family on its fewest GPUs."""
    fewest = min(each.placement.gpus for each in points)
    sizes = sorted(each.placement.batch for each in points if each.placement.gpus == fewest)
    return sizes[len(sizes) // 2] or 1.0


PRIOR_ROUNDS = 4
SD_LEAST = 0.3
"""Families are never taken to be more alike than this: few were seen."""
DOUBT = 1.0
"""So many families' worth of BROAD is mixed in."""
FOLDS = 6
"""In so many parts the points of a family are left out to learn the noise."""
LEAN_SURE = 10.0
"""How many squares of log scales it takes to believe a lean of the pool's own half."""
NOISE_LEAST, NOISE_MOST = 0.03, 0.3
NOISE_PART = 1.0
"""The noise, as a part of the median error of points left out."""


def learn_prior(families: Sequence[Sequence[Point]], start: Prior = BROAD) -> Prior:
    """Return what other families teach of a theta (empirical Bayes).

    Each is fitted given what is expected; what is expected is what was fitted, and again.

    Args:
        families: Points of families on the same type of GPU and network.
        start: What is expected at first, and where too little is known.
    """
    data = [rows(each, middle(each)) for each in map(clean, families) if each]
    if not data:
        return start
    prior = start
    mean0, var0 = np.array(start.mean), np.square(np.array(start.sd))
    for _ in range(PRIOR_ROUNDS):
        logs, spread = _fit_each(data, prior)
        count = len(logs)
        middle_of = float(logs[:, 0].mean())
        scale = logs[:, 0] - middle_of
        lean = scale @ (logs - logs.mean(axis=0)) + LEAN_SURE * np.array(start.lean)
        lean /= scale @ scale + LEAN_SURE
        lean[0] = 0.0
        straight = logs - scale[:, None] * lean
        mean = (straight.sum(axis=0) + DOUBT * mean0) / (count + DOUBT)
        var = ((straight - mean) ** 2 + np.minimum(spread, var0)).sum(axis=0) + DOUBT * var0
        # One family less is free to differ than were seen, and the next one differs from the mean.
        sure = max(count - 1 + DOUBT, DOUBT) / (1 + 1 / (count + DOUBT))
        sd = np.maximum(np.sqrt(var / sure), SD_LEAST)
        prior = Prior(
            (0.0, *(float(each) for each in mean[1:])),
            (SCALE_SD, *(float(each) for each in sd[1:])),
            prior.noise,
            count,
            tuple(float(each) for each in lean),
            middle_of,
        )
    more = [each for each in data if len(each.gpus) > 2]
    off = [float(np.median(np.abs(each))) for each in _left_out_each(more, prior)]
    if not off:
        return prior
    noise = min(max(NOISE_PART * float(np.median(off)), NOISE_LEAST), NOISE_MOST)
    return msgspec.structs.replace(prior, noise=noise)


def _alike(families: Sequence[Rows]) -> list[tuple[list[int], Rows]]:
    """Return families with as many points each together: their numbers, and their points."""
    by_count: dict[int, list[int]] = {}
    for at, each in enumerate(families):
        by_count.setdefault(len(each.gpus), []).append(at)
    found = []
    for same in by_count.values():
        gpus, nodes, batch, logs = (
            np.stack([families[at][column] for at in same]) for column in range(4)
        )
        found.append((same, Rows(gpus, nodes, batch, logs, 0.0)))
    return found


def _fit_each(families: Sequence[Rows], prior: Prior) -> tuple[Array, Array]:
    """Return the theta of each family, and how sure it is: [families, LOGS] both."""
    logs, spread = np.zeros((2, len(families), LOGS))
    for same, data in _alike(families):
        fitted = fit_logs(data, np.ones(data.gpus.shape), prior, groups=len(same))
        logs[same], spread[same] = fitted
    return logs, spread


def _left_out_each(families: Sequence[Rows], prior: Prior) -> list[Array]:
    """Return logarithms of measured over predicted of each family's points.

    Each point is predicted from those of its family that are in other folds, of FOLDS at most.
    """
    found: list[Array] = [np.zeros(0)] * len(families)
    for same, data in _alike(families):
        count = data.gpus.shape[1]
        folds = min(FOLDS, count)
        fold = np.arange(count) % folds
        weights = np.tile((fold[None] != np.arange(folds)[:, None]) * 1.0, (len(same), 1))
        gpus, nodes, batch, logs = (np.repeat(column, folds, axis=0) for column in data[:4])
        each = Rows(gpus, nodes, batch, logs, 0.0)
        told = curve(fit_logs(each, weights, prior, groups=len(same)).logs, each)
        held = told.reshape(len(same), folds, count)[:, fold, np.arange(count)]
        for at, errors in zip(same, data.logs - held, strict=True):
            found[at] = errors
    return found


# --- the other forms ------------------------------------------------------------------------------


def _least_positive(matrix: Array, wanted: Array, weights: Array | None = None) -> Array:
    """Return non-negative least squares: of all subsets of columns, the best one.

    Args:
        matrix: [rows, columns].
        wanted: [rows].
        weights: [fits, rows], for several choices of rows; None: one fit with all of them.

    Returns:
        [fits, columns].
    """
    count, columns = matrix.shape
    weights = np.ones((1, count)) if weights is None else weights
    normal = np.einsum("fr,rc,rd->fcd", weights, matrix, matrix)
    normal += np.eye(columns) * (1e-9 * np.einsum("fcc->fc", normal)[:, :, None] + 1e-30)
    right = np.einsum("fr,rc,r->fc", weights, matrix, wanted)
    best = np.full(len(weights), math.inf)
    found = np.zeros((len(weights), columns))
    for size in range(1, columns + 1):
        for chosen in itertools.combinations(range(columns), size):
            at = list(chosen)
            part = normal[:, at][:, :, at]
            values = np.linalg.solve(part, right[:, at, None])[:, :, 0]
            full = np.zeros_like(found)
            full[:, at] = values
            error = np.sum(weights * (full @ matrix.T - wanted) ** 2, axis=1)
            take = np.all(values >= 0, axis=1) & (error < best * (1 - 1e-9) - 1e-12)
            best = np.where(take, error, best)
            found = np.where(take[:, None], full, found)
    return found


def fit_optimus(points: Sequence[Point]) -> Optimus | None:
    """Return Optimus' form with the smallest relative errors.

    Args:
        points: Of one family on one type of GPU: all with servers, or all without.

    Returns:
        None without points.
    """
    points = clean(points)
    if not points:
        return None
    base = points[0].placement.batch or 1.0
    terms = np.array([terms_of(each.placement, base) for each in points])
    steps = np.array([float(each.step_ns) for each in points])
    values = _least_positive(terms / steps[:, None], np.ones(len(points)))[0]
    a, b, c, d, e = (float(each) for each in values)
    return Optimus((a, b, c, d, e), servers=points[0].placement.servers > 0, batch=base)


def optimus_left_out(points: Sequence[Point]) -> Array:
    """Return logarithms of measured over predicted, each point predicted from all others.

    Args:
        points: Of one family, at least two.
    """
    base = points[0].placement.batch or 1.0
    terms = np.array([terms_of(each.placement, base) for each in points])
    steps = np.array([float(each.step_ns) for each in points])
    count = len(points)
    values = _least_positive(terms / steps[:, None], np.ones(count), 1 - np.eye(count))
    told = np.sum(values * terms, axis=1)
    return np.asarray(np.log(steps / np.maximum(told, 1.0)), np.float64)


def fit_genie(points: Sequence[Point], reading: Reading = AS_PRINTED) -> Genie | None:
    """Return GENIE's coefficients by its two regressions (section 5.1.5).

    k comes from the runs on one GPU, gamma and lambda from the others. Where none is on one GPU,
    those on the fewest GPUs take their place.

    Args:
        points: Of one task type on one platform.
        reading: How equations 7 and 8 are read.

    Returns:
        None without points.
    """
    points = clean(points)
    if not points:
        return None
    fewest = min(each.placement.gpus for each in points)
    single = [each for each in points if each.placement.gpus == fewest]
    local = np.array([each.placement.batch or 1.0 for each in single])
    rates = local / np.array([each.step_ns / 1e9 for each in single])
    powers = [0, 1, 2] if reading.constant else [1, 2]
    different = len(np.unique(local))
    powers = powers[: min(len(powers), different)]
    if len(powers) == 1 and reading.constant:
        powers = [0]
    matrix = np.stack([(local / local.max()) ** power for power in powers], axis=1)
    found = np.linalg.lstsq(matrix, rates, rcond=None)[0]
    k = [0.0, 0.0, 0.0]
    for power, value in zip(powers, found, strict=True):
        k[power] = float(value / local.max() ** power)
    genie = Genie(k[0], k[1], k[2], 0.0, 0.0, reading)
    more = [each for each in points if each.placement.gpus > 1]
    if not more:
        return genie
    gamma, near = _penalty(genie, [each.placement for each in more], more)
    return msgspec.structs.replace(genie, gamma=gamma, lambda_=near / gamma if gamma > 0 else 0.0)


def _penalty(
    genie: Genie, places: Sequence[Placement], points: Sequence[Point]
) -> tuple[float, float]:
    """Return gamma and lambda gamma by a regression of the GPUs that are missing."""
    gpus = np.array([float(each.gpus) for each in places])
    nodes = np.array([float(each.nodes) for each in places])
    each_node = gpus / nodes
    rates = np.array(
        [
            place.gpus * (place.batch or 1.0) / (point.step_ns / 1e9)
            for place, point in zip(places, points, strict=True)
        ]
    )
    single = np.array([single_rate(genie, place.batch or 1.0) for place in places])
    missing = gpus - rates / single
    matrix = np.stack([(nodes - 1) * each_node / (gpus - 1), (each_node - 1) / (gpus - 1)], axis=1)
    if genie.reading.alone == "none":
        matrix *= ((nodes > 1) & (each_node > 1))[:, None]
    values = _least_positive(matrix, missing)[0]
    return float(values[0]), float(values[1])
