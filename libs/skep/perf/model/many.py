"""Predicts many placements of one job at once. For the advisor and the laboratory: it uses numpy.

It says what `predict` says, placement by placement, up to the last bits. On 1,000 nodes of 8 GPUs a
job that may have any size has 8,000 even placements; one by one they would take 150 ms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skep.perf.model.fit import Array
from skep.perf.model.genie import Genie
from skep.perf.model.kernel import LOG_LIMIT, Kernel
from skep.perf.model.optimus import Optimus
from skep.perf.model.placement import LIMIT_NS, Placement, Stratum
from skep.perf.model.predict import GPUS_NEAR, Form, Parameters, errors_of, form_ns
from skep.perf.model.theta import Theta
from skep.perf.model.widening import AS_LEARNED, Widening, factor_of

Whole = NDArray[np.int64]


class Spans(NamedTuple):
    """P10, P50 and P90 of each placement, in nanoseconds; strata as indices into `Stratum`."""

    p10: Array
    p50: Array
    p90: Array
    strata: Whole


STRATA = tuple(Stratum)


def predict_many(
    parameters: Parameters, gpus: Whole, nodes: Whole, batch: float, widening: Widening = AS_LEARNED
) -> Spans:
    """Return spans of placements of a job without parameter servers.

    Args:
        parameters: What was fitted; at least one form.
        gpus: GPUs of each placement, from 1 on.
        nodes: The nodes that they are on, from 1 on.
        batch: Samples per GPU of all of them; 0: unknown.
        widening: By how much errors are wider than they were for others.
    """
    seen = parameters.seen
    strata = np.where(
        nodes > seen.nodes,
        STRATA.index(Stratum.MORE_NODES),
        np.where(
            gpus > GPUS_NEAR * seen.gpus,
            STRATA.index(Stratum.MORE_GPUS),
            STRATA.index(Stratum.NEAR),
        ),
    ).astype(np.int64)
    far = np.array(parameters.far_weights or parameters.weights)
    near = np.array(parameters.weights)
    logs, total = np.zeros(len(gpus)), np.zeros(len(gpus))
    for at, form in enumerate(parameters.forms):
        if near[at] > 0 or far[at] > 0:
            weight = np.where(strata == STRATA.index(Stratum.NEAR), near[at], far[at])
            logs += weight * np.clip(_form(form, gpus, nodes, batch), 0.0, LOG_LIMIT)
            total += weight
    middle = np.exp(logs / total)
    low, high = np.zeros(len(STRATA)), np.zeros(len(STRATA))
    for at, stratum in enumerate(STRATA):
        errors, wider = errors_of(parameters, stratum), factor_of(widening, stratum)
        low[at] = max(min(errors.low * wider, 0.0), -40.0)
        high[at] = min(max(errors.high * wider, 0.0), 40.0)
    return Spans(
        middle * np.exp(low)[strata],
        middle,
        np.minimum(middle * np.exp(high)[strata], LIMIT_NS),
        strata,
    )


def _form(form: Form, gpus: Whole, nodes: Whole, batch: float) -> Array:
    """Return logarithms of nanoseconds."""
    told: Array
    match form:
        case Theta():
            return _theta(form, gpus, nodes, batch)
        case Kernel():
            return _kernel(form, gpus, nodes, batch)
        case Optimus() if not form.servers:
            local, one, many, each, apart = form.terms
            fixed = local * (batch or form.batch) + one
            told = np.asarray(
                fixed + many * (gpus > 1) + each * (gpus - 1) + apart * (nodes - 1), np.float64
            )
        case Optimus() | Genie():
            told = np.array(
                [
                    form_ns(form, Placement("", int(one), int(two), batch))
                    for one, two in zip(gpus, nodes, strict=True)
                ]
            )
    return np.asarray(np.log(np.maximum(told, 1.0)), np.float64)


def _theta(theta: Theta, gpus: Whole, nodes: Whole, batch: float) -> Array:
    grad = math.log(max(theta.fixed + theta.sample * (batch or theta.batch), LEAST))
    near = theta.near + theta.near_gpu * (gpus - 2)
    far = theta.far + theta.far_gpu * (gpus - 2) + theta.node * (nodes - 2)
    sync = np.log(np.maximum(np.where(gpus > 1, np.where(nodes > 1, far, near), 0.0), LEAST))
    longer = np.maximum(sync, grad)
    shorter = np.minimum(sync, grad)
    both = np.log1p(np.exp(theta.power * (shorter - longer))) / theta.power
    return np.asarray(longer + both, np.float64)


LEAST = 1e-300
"""Logarithms are of at least this."""


def _kernel(kernel: Kernel, gpus: Whole, nodes: Whole, batch: float) -> Array:
    total = np.clip(_theta(kernel.mean, gpus, nodes, batch), 0.0, LOG_LIMIT) + kernel.scale
    relative = float(np.log2((batch or kernel.batch) / kernel.batch))
    sb, sg, sn, sm, sa = kernel.slopes
    lb, lg, ln, lm, la = kernel.lengths
    anchors = np.array(kernel.anchors)
    # The kernel is a product of one factor for GPUs and one for nodes. Placements have few sizes
    # and numbers of nodes, and anchors are at few of them.
    sizes, of_gpus = np.unique(gpus, return_inverse=True)
    counts, of_nodes = np.unique(nodes, return_inverse=True)
    of_gpus, of_nodes = of_gpus.reshape(-1), of_nodes.reshape(-1)
    more: Array = (sizes > 1).astype(np.float64)
    apart: Array = (counts > 1).astype(np.float64)
    log_sizes, log_counts = np.log2(sizes), np.log2(counts)
    at_gpus, to_gpus = np.unique(anchors[:, (1, 3)], axis=0, return_inverse=True)
    at_nodes, to_nodes = np.unique(anchors[:, (2, 4)], axis=0, return_inverse=True)
    weights = np.zeros((len(at_gpus), len(at_nodes)))
    own = anchors[:, 5] * np.exp(-0.5 * (anchors[:, 0] - lb * relative) ** 2)
    np.add.at(weights, (to_gpus.reshape(-1), to_nodes.reshape(-1)), own)
    by_gpus = (
        _near(at_gpus, np.asarray(lg * log_sizes), np.asarray(lm * more, np.float64)) @ weights
    )
    by_nodes = _near(at_nodes, np.asarray(ln * log_counts), np.asarray(la * apart, np.float64))
    total += np.einsum("pa,pa->p", by_gpus[of_gpus], by_nodes[of_nodes]) + sb * relative
    total += (sg * log_sizes + sm * more)[of_gpus] + (sn * log_counts + sa * apart)[of_nodes]
    return np.asarray(total, np.float64)


def _near(anchors: Array, logs: Array, many: Array) -> Array:
    """Return the factors of two features: [values, anchors]."""
    far = (logs[:, None] - anchors[:, 0]) ** 2 + (many[:, None] - anchors[:, 1]) ** 2
    return np.asarray(np.exp(-0.5 * far), np.float64)
