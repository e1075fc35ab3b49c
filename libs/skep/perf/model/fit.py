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

ROUNDS_MAX = 40
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


PLAIN = Prior(
    mean=(0.0, 2.0, -2.5, -5.0, -1.5, -4.0, -12.0, 0.0),
    sd=(30.0, 3.0, 3.0, 3.0, 3.0, 3.0, 0.01, 2.0),
    noise=0.05,
)
"""Next to nothing is expected: enough that what no point tells has a value. Pollux' form."""
BROAD = msgspec.structs.replace(
    PLAIN,
    mean=(0.0, 2.0, -2.5, -5.0, -1.5, -4.0, -5.0, 0.0),
    sd=(30.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.5),
)
"""Where learning a prior begins."""
SCALE_SD = 30.0
"""Scales of two families have nothing to do with one another."""


class Rows(NamedTuple):
    """Points as arrays: all of one family."""

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


def _soft(logs: Array) -> tuple[Array, Array]:
    """Return the power and its derivative by its logarithm-like parameter, from 1 to POWER_MAX."""
    part = 1 / (1 + np.exp(-np.clip(logs, -40, 40)))
    width = POWER_MAX - 1
    return 1 + width * part, width * part * (1 - part)


def _curve(logs: Array, data: Rows) -> tuple[Array, Array]:
    """Return log seconds of each point and their derivatives, of several thetas at once.

    Args:
        logs: [thetas, LOGS].
        data: The points.

    Returns:
        [thetas, points] and [thetas, points, LOGS].
    """
    count = len(data.gpus)
    logs = np.clip(logs, -40, 40)
    share = 1 / (1 + np.exp(-logs[:, SHARE, None]))
    grad = (1 - share) + share * data.batch
    parts = np.exp(logs[:, NEAR : NODE + 1])[:, :, None]
    many, apart = data.gpus > 1, (data.nodes > 1) & (data.gpus > 1)
    more = np.maximum(data.gpus - 2, 0.0)
    near = many & ~apart
    slopes = np.stack(
        [near * 1.0, near * more, apart * 1.0, apart * more, apart * (data.nodes - 2)]
    )  # [5, points]
    shares = parts * slopes[None]
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


def fit_logs(data: Rows, weights: Array, prior: Prior) -> Fitted:
    """Return the thetas with the highest posterior, for several choices of points at once.

    Levenberg and Marquardt's steps, with Huber's loss on errors.

    Args:
        data: The points.
        weights: [fits, points]; 0 leaves a point out.
        prior: What is expected.
    """
    fits = len(weights)
    mean, certain = np.array(prior.mean), 1 / np.square(np.array(prior.sd))
    begin = np.tile(mean, (fits, 1))
    least = np.maximum(weights.sum(axis=1), 1e-9)
    begin[:, 0] = (weights * (data.logs - _curve(_scaleless(begin), data)[0])).sum(axis=1) / least
    mean_of = np.tile(mean, (fits, 1))
    if prior.sd[0] >= SCALE_SD:
        mean_of[:, 0] = begin[:, 0]

    def look(logs: Array) -> tuple[Array, Array, Array, Array]:
        curve, slope = _curve(logs, data)
        errors = (data.logs - curve) / prior.noise
        size = np.abs(errors)
        loss = np.where(size <= HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
        off = logs - mean_of
        total = (weights * loss).sum(axis=1) + 0.5 * (certain * off**2).sum(axis=1)
        heavy = weights * np.minimum(1.0, HUBER / np.maximum(size, 1e-12))
        return total, errors, slope / prior.noise, heavy

    logs, damping = begin, np.full(fits, 1e-2)
    total, errors, slope, heavy = look(logs)
    eye = np.eye(LOGS)
    for _ in range(ROUNDS_MAX):
        scaled = slope * heavy[:, :, None]
        bend = scaled.transpose(0, 2, 1) @ slope + np.diag(certain)
        push = (scaled * errors[:, :, None]).sum(axis=1) - certain * (logs - mean_of)
        diagonal = np.einsum("fii->fi", bend)
        move = np.linalg.solve(
            bend + (damping[:, None] * diagonal)[:, :, None] * eye, push[:, :, None]
        )[:, :, 0]
        tried = logs + np.clip(move, -2.0, 2.0)
        new = look(tried)
        better = new[0] < total
        gain = np.where(better, total - new[0], 0.0)
        keep = better[:, None]
        logs = np.where(keep, tried, logs)
        total = np.where(better, new[0], total)
        errors = np.where(keep, new[1], errors)
        slope = np.where(keep[:, :, None], new[2], slope)
        heavy = np.where(keep, new[3], heavy)
        damping = np.clip(np.where(better, damping * 0.2, damping * 8), 1e-8, 1e8)
        if np.all((gain < 1e-6) & (better | (damping > 1e5))):
            break
    bend = (slope * heavy[:, :, None]).transpose(0, 2, 1) @ slope + np.diag(certain)
    return Fitted(logs, np.einsum("fii->fi", np.linalg.inv(bend)))


def _scaleless(logs: Array) -> Array:
    found = logs.copy()
    found[:, 0] = 0.0
    return found


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
DOUBT = 2.0
"""So many families' worth of BROAD is mixed in."""


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
        found = [fit_logs(each, np.ones((1, len(each.gpus))), prior) for each in data]
        logs = np.array([each.logs[0] for each in found])
        spread = np.array([each.spread[0] for each in found])
        count = len(logs)
        mean = (logs.sum(axis=0) + DOUBT * mean0 * 0.5) / (count + DOUBT * 0.5)
        var = ((logs - mean) ** 2 + np.minimum(spread, var0)).sum(axis=0) + DOUBT * var0 * 0.25
        sd = np.maximum(np.sqrt(var / (count + DOUBT * 0.25)), SD_LEAST)
        errors = [
            np.median(np.abs(each.logs - _curve(one.logs, each)[0][0]))
            for each, one in zip(data, found, strict=True)
            if len(each.gpus) > LOGS
        ]
        noise = float(np.clip(1.4 * np.median(errors), 0.03, 0.15)) if errors else start.noise
        prior = Prior(
            (0.0, *(float(each) for each in mean[1:])),
            (SCALE_SD, *(float(each) for each in sd[1:])),
            noise,
            count,
        )
    return prior


# --- the other forms ------------------------------------------------------------------------------


def _least_positive(matrix: Array, wanted: Array) -> Array:
    """Return the non-negative least squares: the best of all subsets of columns."""
    columns = matrix.shape[1]
    best, found = math.inf, np.zeros(columns)
    for size in range(1, columns + 1):
        for chosen in itertools.combinations(range(columns), size):
            part = matrix[:, chosen]
            normal = part.T @ part
            normal[np.diag_indices(size)] *= 1 + 1e-9
            try:
                values = np.linalg.solve(normal, part.T @ wanted)
            except np.linalg.LinAlgError:
                continue
            error = float(np.sum((part @ values - wanted) ** 2))
            if np.all(values >= 0) and error < best * (1 - 1e-9) - 1e-12:
                best, found = error, np.zeros(columns)
                found[list(chosen)] = values
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
    values = _least_positive(terms / steps[:, None], np.ones(len(points)))
    a, b, c, d, e = (float(each) for each in values)
    return Optimus((a, b, c, d, e), servers=points[0].placement.servers > 0, batch=base)


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
    values = _least_positive(matrix, missing)
    return float(values[0]), float(values[1])
