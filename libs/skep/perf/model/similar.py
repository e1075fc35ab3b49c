"""Fits the Gaussian process over similar families. For the advisor and the laboratory (numpy).

Of point x of family m the logarithm of the time is t_m(x) + c_m + s(x) + o_m(x) + noise. t_m is the
theta that a prior leads to expect for a family of this scale. The scale c_m is free, s is shared by
all families and o_m is the family's own: both are slopes of the features plus a smooth function
with the same squared-exponential kernel. All of it is one kernel matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from skep.perf.model.fit import BROAD, Array, Prior, Rows, as_theta, curve, expected, middle, rows
from skep.perf.model.kernel import Kernel
from skep.perf.model.placement import Point, clean

ANCHORS_MAX = 32
"""Kernels of a prediction: at 0.3 us each they leave it far below 50 us."""
POOL_POINTS_MAX = 32
"""Points of each other family that are used: further ones lie among them."""
POOL_ALL_MAX = 640
"""Points of all other families: the matrix is inverted once for each pool."""
SCALE_VAR = 900.0
"""Scales of two families have nothing to do with one another."""


class Shape(msgspec.Struct, frozen=True):
    """How smooth the functions are, and how large: standard deviations of logarithms."""

    lengths: tuple[float, float, float, float, float] = (3.5, 3.6, 1.7, 1.0, 4.6)
    shared: float = 0.12
    own: float = 1.85
    slope_shared: tuple[float, float, float, float, float] = (0.05, 0.27, 0.05, 1.5, 0.05)
    slope_own: tuple[float, float, float, float, float] = (0.44, 0.05, 0.1, 0.1, 1.2)
    noise: float = 0.48


SHAPE = Shape()


class Others(NamedTuple):
    """Other families, ready for use: their features, the factor of their matrix, and its answer."""

    places: Array
    factor: Array
    answer: Array
    shape: Shape
    prior: Prior


def features_of(data: Rows) -> Array:
    """Return the features of points: [points, 5]."""
    return np.stack(
        [
            np.log2(data.batch),
            np.log2(data.gpus),
            np.log2(data.nodes),
            (data.gpus > 1) * 1.0,
            (data.nodes > 1) * 1.0,
        ],
        axis=1,
    )


def _smooth(a: Array, b: Array, shape: Shape) -> Array:
    scale = 1 / np.array(shape.lengths)
    one, two = a * scale, b * scale
    far = np.sum(one**2, axis=1)[:, None] + np.sum(two**2, axis=1)[None] - 2 * one @ two.T
    return np.asarray(np.exp(-0.5 * np.maximum(far, 0.0)))


def _shared(a: Array, b: Array, shape: Shape) -> Array:
    slopes = np.square(np.array(shape.slope_shared))
    return np.asarray((a * slopes) @ b.T + shape.shared**2 * _smooth(a, b, shape))


def _own(a: Array, b: Array, shape: Shape) -> Array:
    slopes = np.square(np.array(shape.slope_own))
    return np.asarray((a * slopes) @ b.T + shape.own**2 * _smooth(a, b, shape) + SCALE_VAR)


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most so many points, spread over all that was measured.

    Begins with the first one; the next is always the one farthest from those taken.

    Args:
        points: Of one family.
        most: How many, at least one.
    """
    points = clean(points)
    if len(points) <= most:
        return points
    places = features_of(rows(points, middle(points)))
    places *= np.array([0.5, 1.0, 1.0, 2.0, 2.0])
    taken = [0]
    far = np.sum((places - places[0]) ** 2, axis=1)
    while len(taken) < most:
        at = int(np.argmax(far))
        taken.append(at)
        far = np.minimum(far, np.sum((places - places[at]) ** 2, axis=1))
    return [points[at] for at in sorted(taken)]


def mean_of(data: Rows, prior: Prior) -> Array:
    """Return the logarithms of the theta that is expected for a family: [1, LOGS].

    Its scale is that of the point with the fewest GPUs and the batch size nearest to the reference.

    Args:
        data: The family's points.
        prior: What is expected.
    """
    near = np.lexsort((np.abs(np.log(data.batch)), data.nodes, data.gpus))[0]
    at = slice(near, near + 1)
    one = Rows(data.gpus[at], data.nodes[at], data.batch[at], data.logs[at], data.base)
    scale = one.logs.copy()
    for _ in range(3):
        scale += one.logs - curve(expected(prior, scale), one)[0]
    return expected(prior, scale)


def others_of(
    families: Sequence[Sequence[Point]], prior: Prior = BROAD, shape: Shape = SHAPE
) -> Others | None:
    """Return other families, ready for use.

    Args:
        families: Points of families on the same type of GPU and network.
        prior: What is expected of a theta.
        shape: How smooth the functions are.

    Returns:
        None without any.
    """
    each = min(POOL_POINTS_MAX, max(POOL_ALL_MAX // max(len(families), 1), 1))
    data = [rows(one, middle(one)) for one in (thin(points, each) for points in families) if one]
    if not data:
        return None
    places = np.concatenate([features_of(one) for one in data])
    logs = np.concatenate([one.logs - curve(mean_of(one, prior), one)[0] for one in data])
    family = np.concatenate([np.full(len(one.logs), at) for at, one in enumerate(data)])
    matrix = _shared(places, places, shape)
    matrix += (family[:, None] == family[None]) * _own(places, places, shape)
    matrix[np.diag_indices(len(logs))] += shape.noise**2
    factor = np.asarray(np.linalg.cholesky(matrix), np.float64)
    answer = np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, logs)), np.float64)
    return Others(places, factor, answer, shape, prior)


class Learned(NamedTuple):
    """A process, and logarithms of measured over predicted of each point left out."""

    kernel: Kernel
    left_out: Array


def fit_kernel(points: Sequence[Point], others: Others | None, base: float = 0.0) -> Learned | None:
    """Return the process of a family, given other families.

    Args:
        points: Of the family.
        others: Other families; None: none.
        base: Its reference batch size; 0: of the first point.

    Returns:
        None without points.
    """
    points = clean(points)
    if not points:
        return None
    data = rows(points, base)
    places, shape = features_of(data), others.shape if others else SHAPE
    matrix = _shared(places, places, shape) + _own(places, places, shape)
    matrix[np.diag_indices(len(points))] += shape.noise**2
    mean = mean_of(data, others.prior if others else BROAD)
    left = data.logs - curve(mean, data)[0]
    half: Array = np.zeros((0, len(points)))
    if others:
        between = _shared(others.places, places, shape)
        half = np.asarray(np.linalg.solve(others.factor, between), np.float64)
        matrix -= half.T @ half
        left -= between.T @ others.answer
    inverse = np.linalg.inv(matrix)
    answer = inverse @ left
    left_out = answer / np.diag(inverse)
    weights, at = answer, places
    slopes = np.square(np.array(shape.slope_own)) * (answer @ places)
    slope_all = np.square(np.array(shape.slope_shared))
    smooth = np.array([shape.own**2 + shape.shared**2]) * answer
    slopes = slopes + slope_all * (answer @ places)
    if others:
        rest = others.answer - np.linalg.solve(others.factor.T, half @ answer)
        slopes = slopes + slope_all * (rest @ others.places)
        at = np.concatenate([places, others.places])
        smooth = np.concatenate([smooth, shape.shared**2 * rest])
    at, weights = _reduced(at, smooth, len(places), shape)
    scale = SCALE_VAR * float(np.sum(answer))
    lengths = 1 / np.array(shape.lengths)
    anchors = tuple(
        (*(float(value) for value in place * lengths), float(weight))
        for place, weight in zip(at, weights, strict=True)
    )
    kernel = Kernel(
        as_theta(mean[0], data.base),
        scale,
        tuple(float(each) for each in slopes),  # type: ignore[arg-type]
        anchors,  # type: ignore[arg-type]
        tuple(float(each) for each in lengths),  # type: ignore[arg-type]
        data.base,
    )
    return Learned(kernel, left_out)


def _reduced(at: Array, weights: Array, own: int, shape: Shape) -> tuple[Array, Array]:
    """Return fewer anchors with the same function at them: first the family's own places."""
    unique, index = np.unique(np.round(at, 6), axis=0, return_inverse=True)
    summed = np.zeros(len(unique))
    np.add.at(summed, index.reshape(-1), weights)
    if len(unique) <= ANCHORS_MAX:
        return unique, summed
    wanted = _smooth(unique, unique, shape) @ summed
    first = list(dict.fromkeys(int(each) for each in index.reshape(-1)[:own]))[:ANCHORS_MAX]
    lengths = 1 / np.array(shape.lengths)
    places = unique * lengths
    far = np.min([np.sum((places - places[each]) ** 2, axis=1) for each in first], axis=0)
    taken = first
    while len(taken) < ANCHORS_MAX:
        best = int(np.argmax(far))
        taken.append(best)
        far = np.minimum(far, np.sum((places - places[best]) ** 2, axis=1))
    part = unique[taken]
    cross = _smooth(unique, part, shape)
    # The best weights for all places at once; the ridge keeps them small where anchors are close.
    normal = cross.T @ cross
    normal[np.diag_indices(len(taken))] += 1e-6
    return part, np.asarray(np.linalg.solve(normal, cross.T @ wanted), np.float64)
