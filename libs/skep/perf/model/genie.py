"""GENIE's prediction, cost and deadlines, equations 4 to 11, in the readings that they allow.

Chen et al., GENIE, sections 5.1 and 5.2. Rates are samples per second of the whole gang, batch
sizes are those of the whole gang too (the paper fixes them), and times are seconds.

What the paper leaves open is an option with the reading in `AS_PRINTED` as its default:

- Equation 8 is given for one GPU and for more than one node with more than one GPU each. It is
  defined for <1, g> and <d, 1> as well, and gives lambda gamma and gamma there; the profile of
  section 5.1.5 needs both. `alone="none"` is the other reading: no penalty on those.
- "A quadratic polynomial, i.e. i = 2" (7) may have a constant or not (`constant`), and falls again
  for large batches, against Observation 1: `plateau` holds it at its top.
- Equation 9 is a length of time and equation 12 compares it with the clock: `ect_s` returns the
  length, and `deadline_s` adds the arrival.
- `d < N` and `g < G` (5.3) leave out the 4N4G of Figure 6: `strict` keeps to the letter.
- Equation 8 costs a constant number of GPUs, which may be more than there are: `EFFECTIVE_MIN`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

EFFECTIVE_MIN = 0.05
"""At least this part of the GPUs counts, whatever the penalty: else rates would be negative."""
THETA = 0.4
"""The weight of nodes in Figure 10's cost."""


class Qos(StrEnum):
    """The three classes of equation 9."""

    URGENT = "urgent"
    PRIOR = "prior"
    NORMAL = "normal"


class Reading(msgspec.Struct, frozen=True):
    """How the equations are read where the paper leaves it open."""

    alone: Literal["continued", "none"] = "continued"
    """The penalty on one node, and with one GPU on each node."""
    constant: bool = True
    """Whether equation 7 has a term for i = 0."""
    plateau: bool = False
    """Whether equation 7 stays at its top for larger batches."""
    strict: bool = False
    """Whether placements have fewer nodes and GPUs per node than the platform."""


AS_PRINTED = Reading()


class Genie(msgspec.Struct, frozen=True, tag="genie"):
    """The coefficients of a task type on a platform: k (7), gamma and lambda (8)."""

    k0: float
    k1: float
    k2: float
    gamma: float = 0.0
    lambda_: float = 0.0
    reading: Reading = AS_PRINTED


class Split(msgspec.Struct, frozen=True, gc=False):
    """A symmetric placement <d_node, d_g/n> (3)."""

    nodes: int
    each: int

    @property
    def gpus(self) -> int:
        """Return the GPUs of all nodes."""
        return self.nodes * self.each


def single_rate(genie: Genie, local_batch: float) -> float:
    """Return sPR, samples per second of one GPU (equations 6 and 7).

    Args:
        genie: The coefficients.
        local_batch: Samples per GPU and mini-batch.

    Returns:
        At least a positive number: a fitted polynomial may fall below zero.
    """
    batch = local_batch
    if genie.reading.plateau and genie.k2 < 0:
        batch = min(batch, -genie.k1 / (2 * genie.k2)) if genie.k1 > 0 else 0.0
    rate = genie.k0 + genie.k1 * batch + genie.k2 * batch * batch
    return max(rate, _TINY)


_TINY = 1e-9


def penalty(genie: Genie, nodes: float, each: float, *, training: bool = True) -> float:
    """Return Comm, the GPUs that synchronisation costs (equation 8).

    Args:
        genie: The coefficients.
        nodes: Nodes of the placement.
        each: GPUs on each of them; a mean where they differ.
        training: Inference synchronises nothing.
    """
    gpus = nodes * each
    if gpus <= 1 or not training:
        return 0.0
    if genie.reading.alone == "none" and (nodes <= 1 or each <= 1):
        return 0.0
    far, near = (nodes - 1) * each, each - 1
    return (far + genie.lambda_ * near) * genie.gamma / (gpus - 1)


def rate(genie: Genie, batch: float, nodes: float, each: float, *, training: bool = True) -> float:
    """Return PR, samples per second of the gang (equation 5).

    Args:
        genie: The coefficients.
        batch: Samples of a mini-batch of the whole gang.
        nodes: Nodes of the placement.
        each: GPUs on each of them.
        training: False for inference.
    """
    gpus = nodes * each
    effective = gpus - penalty(genie, nodes, each, training=training)
    return max(effective, EFFECTIVE_MIN * gpus) * single_rate(genie, batch / gpus)


def step_s(
    genie: Genie, batch: float, nodes: float, each: float, *, training: bool = True
) -> float:
    """Return the seconds of a mini-batch of the whole gang.

    Args:
        genie: The coefficients.
        batch: Samples of a mini-batch of the whole gang.
        nodes: Nodes of the placement.
        each: GPUs on each of them.
        training: False for inference.
    """
    return batch / rate(genie, batch, nodes, each, training=training)


def latency_s(
    genie: Genie,
    batch: float,
    steps: float,
    split: Split,
    *,
    start_s: float = 0.0,
    training: bool = True,
) -> float:
    """Return Lat, the seconds from start to end (equation 4).

    Args:
        genie: The coefficients.
        batch: Samples of a mini-batch of the whole gang.
        steps: Mini-batches.
        split: The placement.
        start_s: Nu, what starting takes.
        training: False for inference.
    """
    return batch * steps / rate(genie, batch, split.nodes, split.each, training=training) + start_s


def ect_s(qos: Qos, alone_s: float) -> float:
    """Return the expected completion time as a length (equation 9).

    Args:
        qos: The class.
        alone_s: The latency on one GPU, Lat(t, <1, 1>).
    """
    return {Qos.URGENT: 0.0, Qos.PRIOR: alone_s, Qos.NORMAL: 2 * alone_s}[qos]


def deadline_s(qos: Qos, arrived_s: float, alone_s: float) -> float:
    """Return the moment that equations 12 and 13 compare with the clock: arrival and length.

    Args:
        qos: The class.
        arrived_s: When it was submitted.
        alone_s: The latency on one GPU.
    """
    return arrived_s + ect_s(qos, alone_s)


def cost(split: Split, nodes_max: int, each_max: int, theta: float = THETA) -> float:
    """Return the cost of a placement (equation 10).

    Args:
        split: The placement.
        nodes_max: N, nodes of the platform.
        each_max: G, GPUs of a node.
        theta: The weight of nodes.
    """
    return split.gpus / (nodes_max * each_max) + theta * split.nodes / nodes_max


def cost_effective(rate_of_gang: float, cost_of_it: float) -> float:
    """Return CER: the rate for what it costs (equation 11)."""
    return rate_of_gang / cost_of_it


def splits(nodes_max: int, each_max: int, *, strict: bool = False) -> tuple[Split, ...]:
    """Return every symmetric placement on a platform, fewest nodes first.

    Args:
        nodes_max: N, nodes of the platform.
        each_max: G, GPUs of a node.
        strict: As section 5.3 has it: fewer than N and fewer than G.
    """
    less = 1 if strict else 0
    return tuple(
        Split(nodes, each)
        for nodes in range(1, max(nodes_max - less, 1) + 1)
        for each in range(1, max(each_max - less, 1) + 1)
    )


def step_ns(genie: Genie, gpus: int, nodes: int, local_batch: float) -> float:
    """Return nanoseconds of a mini-batch, as the other forms do.

    Args:
        genie: The coefficients.
        gpus: GPUs of the gang.
        nodes: Nodes that they are on; where they are not split evenly, GPUs per node is a mean.
        local_batch: Samples per GPU; 0: unknown, and taken as one.
    """
    batch = (local_batch or 1.0) * gpus
    return step_s(genie, batch, nodes, gpus / nodes) * 1e9
