"""A Gaussian process over similar families, reduced to a sum of a few kernels.

The logarithm of a mini-batch's time is that of a theta which other families lead to expect, and a
scale, some slopes and a smooth function of five features: the logarithms of batch size, GPUs and
nodes, and whether there is more than one GPU and more than one node. Slopes and function have a
part that all families on a type of GPU share and a part of the family's own (`similar` fits them).
What was learned of both is reduced to weights at `anchors`, so that a prediction is a short sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from skep.perf.model import theta
from skep.perf.model.placement import LIMIT_NS
from skep.perf.model.theta import Theta

Features = tuple[float, float, float, float, float]
Anchor = tuple[float, float, float, float, float, float]
"""Scaled features, and a weight."""
LOG_LIMIT = math.log(LIMIT_NS)


class Kernel(msgspec.Struct, frozen=True, tag="kernel"):
    """The process of a family."""

    mean: Theta
    scale: float
    """Logarithm of a factor where all features are 0."""
    slopes: Features
    anchors: tuple[Anchor, ...]
    lengths: Features
    """One over the length over which the function changes, by feature."""
    batch: float = 1.0
    """The reference batch size, which an unknown one is taken as."""


def features(gpus: int, nodes: int, relative: float) -> Features:
    """Return the features of a placement.

    Args:
        gpus: GPUs of the gang.
        nodes: Nodes that they are on.
        relative: Samples per GPU, relative to the family's reference.
    """
    return (
        math.log2(relative),
        math.log2(gpus),
        math.log2(nodes),
        1.0 if gpus > 1 else 0.0,
        1.0 if nodes > 1 else 0.0,
    )


def step_ns(kernel: Kernel, gpus: int, nodes: int, batch: float) -> float:
    """Return nanoseconds of a mini-batch.

    Args:
        kernel: The process.
        gpus: GPUs of the gang.
        nodes: Nodes that they are on.
        batch: Samples per GPU; 0: unknown.
    """
    b, g, n, many, apart = features(gpus, nodes, (batch or kernel.batch) / kernel.batch)
    sb, sg, sn, sm, sa = kernel.slopes
    total = math.log(max(theta.step_ns(kernel.mean, gpus, nodes, batch), 1.0))
    total += kernel.scale + sb * b + sg * g + sn * n + sm * many + sa * apart
    lb, lg, ln, lm, la = kernel.lengths
    b, g, n, many, apart = b * lb, g * lg, n * ln, many * lm, apart * la
    exp = math.exp
    for zb, zg, zn, zm, za, weight in kernel.anchors:
        zb, zg, zn, zm, za = zb - b, zg - g, zn - n, zm - many, za - apart  # noqa: PLW2901
        total += weight * exp(-0.5 * (zb * zb + zg * zg + zn * zn + zm * zm + za * za))
    return min(exp(min(max(total, 0.0), LOG_LIMIT)), LIMIT_NS)


def steps_ns(kernel: Kernel, gpus: int, counts: Sequence[int], batch: float) -> list[float]:
    """Return nanoseconds of a mini-batch on several numbers of nodes: `step_ns`, to the last bits.

    Anchors are at few numbers of nodes. What those at one of them come to is summed up once.

    Args:
        kernel: The process.
        gpus: GPUs of the gang.
        counts: Nodes that they are on.
        batch: Samples per GPU; 0: unknown.
    """
    b, g, _, many, _ = features(gpus, 1, (batch or kernel.batch) / kernel.batch)
    sb, sg, sn, sm, sa = kernel.slopes
    lb, lg, ln, lm, la = kernel.lengths
    fixed = kernel.scale + sb * b + sg * g + sm * many
    b, g, many = b * lb, g * lg, many * lm
    exp, log, log2 = math.exp, math.log, math.log2
    sums: dict[tuple[float, float], float] = {}
    for zb, zg, zn, zm, za, weight in kernel.anchors:
        far = (zb - b) ** 2 + (zg - g) ** 2 + (zm - many) ** 2
        sums[zn, za] = sums.get((zn, za), 0.0) + weight * exp(-0.5 * far)
    groups = [(zn, za, total) for (zn, za), total in sums.items()]
    means = theta.steps_ns(kernel.mean, gpus, counts, batch)
    found = []
    for nodes, mean in zip(counts, means, strict=True):
        n, apart = log2(nodes), 1.0 if nodes > 1 else 0.0
        total = log(max(mean, 1.0)) + fixed + sn * n + sa * apart
        n, apart = n * ln, apart * la
        for zn, za, weight in groups:
            total += weight * exp(-0.5 * ((zn - n) * (zn - n) + (za - apart) * (za - apart)))
        found.append(min(exp(min(max(total, 0.0), LOG_LIMIT)), LIMIT_NS))
    return found
