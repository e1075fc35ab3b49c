"""Intervals that do not hold widen by themselves: adaptive conformal intervals, bounded.

After each outcome the factor on a stratum's errors grows if the outcome lay outside, and falls a
little if it lay within, in the ratio in which that should happen (Gibbs and Candès, 2021, with the
factor on the width in place of the level). As long as no bound is met, four outcomes of five lie
within in the long run, whatever the predictions are: their errors need not be those of others.
"""

from __future__ import annotations

import math

import msgspec

from skep.perf.model.placement import Span, Stratum
from skep.units import Duration

OUTSIDE = 0.2
"""What should lie outside of P10 to P90."""
STEP = 0.25
"""How fast it learns: one outcome outside widens by a fifth, a fourth one within undoes it."""
LEAST, MOST = 1.0, 8.0
"""Never narrower than errors of others say; and no wider than is of any use."""


class Widening(msgspec.Struct, frozen=True):
    """The factors on errors by stratum, and how many outcomes there were and lay within."""

    near: float = LEAST
    more_gpus: float = LEAST
    more_nodes: float = LEAST
    outcomes: int = 0
    held: int = 0


AS_LEARNED = Widening()


def factor_of(widening: Widening, stratum: Stratum) -> float:
    """Return the factor on the errors of a stratum.

    Args:
        widening: What outcomes have taught.
        stratum: How far a placement is from what was measured.
    """
    match stratum:
        case Stratum.NEAR:
            return widening.near
        case Stratum.MORE_GPUS:
            return widening.more_gpus
        case Stratum.MORE_NODES:
            return widening.more_nodes


def corrected(widening: Widening, span: Span, step_ns: Duration) -> Widening:
    """Return the factors after an outcome.

    Args:
        widening: What earlier outcomes have taught.
        span: What was predicted with it. One without any basis (all 0) teaches nothing.
        step_ns: What a mini-batch took.
    """
    if span.p50 <= 0:
        return widening
    within = span.p10 <= step_ns <= span.p90
    change = math.exp(STEP * (-OUTSIDE if within else 1 - OUTSIDE))
    factor = min(max(factor_of(widening, span.stratum) * change, LEAST), MOST)
    near, more_gpus, more_nodes = (
        factor if stratum is span.stratum else factor_of(widening, stratum) for stratum in Stratum
    )
    return Widening(near, more_gpus, more_nodes, widening.outcomes + 1, widening.held + int(within))
