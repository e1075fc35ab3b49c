"""Pollux' form of a mini-batch's time, theta, and its logarithms that a prior is about.

Qiao et al., Pollux, section 3.2: T = (T_grad^g + T_sync^g)^(1/g). T_grad is linear in the batch
size of a GPU. T_sync is 0 on one GPU, and else a constant and a term for each GPU beyond the second
one, both on one node and both, larger ones, on more nodes. g from 1 on says how much of the two
overlaps.

Skep's own addition is a term for each node beyond the second one (`node`): where models are as
sensitive to the number of nodes as DeepShare's, nothing else in the form can say so. Pollux' own
form has 0 there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from skep.perf.model.placement import LIMIT_NS

POWER_MAX = 10.0
"""Pollux' bound: there the longer of the two is all that counts."""


class Theta(msgspec.Struct, frozen=True, tag="theta"):
    """The parameters, in nanoseconds; `power` is g, and `batch` stands for an unknown one."""

    fixed: float
    """Of a mini-batch without samples."""
    sample: float
    """Of each sample on a GPU."""
    near: float
    """Of synchronising two GPUs of one node."""
    near_gpu: float
    """Of each GPU more."""
    far: float
    """Of synchronising two GPUs of two nodes."""
    far_gpu: float
    """Of each GPU more."""
    node: float
    """Of each node beyond the second one."""
    power: float
    batch: float = 1.0


def sync_ns(theta: Theta, gpus: int, nodes: int) -> float:
    """Return nanoseconds of synchronisation alone.

    Args:
        theta: The parameters.
        gpus: GPUs of the gang.
        nodes: Nodes that they are on.
    """
    if gpus <= 1:
        return 0.0
    if nodes <= 1:
        return theta.near + theta.near_gpu * (gpus - 2)
    return theta.far + theta.far_gpu * (gpus - 2) + theta.node * (nodes - 2)


def step_ns(theta: Theta, gpus: int, nodes: int, batch: float) -> float:
    """Return nanoseconds of a mini-batch.

    Args:
        theta: The parameters.
        gpus: GPUs of the gang.
        nodes: Nodes that they are on.
        batch: Samples per GPU; 0: unknown.
    """
    grad = theta.fixed + theta.sample * (batch or theta.batch)
    sync = sync_ns(theta, gpus, nodes)
    longer = max(grad, sync)
    if not 0 < longer < LIMIT_NS:
        return min(max(longer, 0.0), LIMIT_NS)
    # Scaled by the longer one, so that no power leaves the range of floats.
    power = theta.power
    short = min(grad, sync) / longer
    return float(longer * math.exp(math.log1p(short**power) / power))


def steps_ns(theta: Theta, gpus: int, counts: Sequence[int], batch: float) -> list[float]:
    """Return nanoseconds of a mini-batch on several numbers of nodes: what `step_ns` returns.

    Args:
        theta: The parameters.
        gpus: GPUs of the gang.
        counts: Nodes that they are on.
        batch: Samples per GPU; 0: unknown.
    """
    one = step_ns(theta, gpus, 1, batch)
    if gpus <= 1:
        return [one] * len(counts)
    grad = theta.fixed + theta.sample * (batch or theta.batch)
    far, node, power = theta.far + theta.far_gpu * (gpus - 2), theta.node, theta.power
    found = []
    exp, log1p = math.exp, math.log1p
    for nodes in counts:
        sync = far + node * (nodes - 2)
        longer, shorter = (grad, sync) if grad > sync else (sync, grad)
        if nodes <= 1:
            found.append(one)
        elif 0 < longer < LIMIT_NS:
            found.append(longer * exp(log1p((shorter / longer) ** power) / power))
        else:
            found.append(step_ns(theta, gpus, nodes, batch))
    return found
