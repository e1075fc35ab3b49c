"""What another policy would have come to, estimated from what one did, with intervals.

Every decision of a log has a reward, the probability with which it was taken (propensity), and the
probability with which the judged policy would have taken it. Where the logging policy always takes
the same decision on the same sight, nothing tells what another one would have led to. Then only two
things can be said: how often both agree, and what a model of rewards predicts, as far as one
believes it. Decisions shortly after one another share their fate, so intervals count blocks of time
and not decisions.

Sources: Horvitz and Thompson (1952), inverse propensities; Swaminathan and Joachims (2015),
self-normalised; Dudik, Langford and Li (2011), doubly robust; Ionides (2008), clipped weights.
"""

from __future__ import annotations

from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

CLIP = 10.0
"""A weight counts at most so much: beyond it one decision would speak for too many."""
BLOCKS_MIN = 8
"""With fewer blocks an interval says nothing: its own width is a guess."""
EFFECTIVE_MIN = 30.0
"""Decisions that weights must be worth: with fewer, a few of them decide."""
LEVEL = 0.95


class Method(StrEnum):
    """How an estimate was made."""

    AGREEMENT = "agreement"
    """The share of decisions that the judged policy would have taken too; no reward."""
    WEIGHTED = "weighted"
    """Inverse propensities, clipped."""
    SELF_NORMALISED = "self-normalised"
    DOUBLY_ROBUST = "doubly-robust"
    MODEL = "model"
    """What a model of rewards predicts: no better than the model."""


class Refusal(StrEnum):
    """Why there is no estimate."""

    DETERMINISTIC = "deterministic"
    """The log always does the same on the same sight: only agreement can be estimated."""
    UNKNOWN = "unknown-propensities"
    TOO_FEW = "too-few"
    """Too few decisions, or blocks of them, for an interval."""
    NO_OVERLAP = "no-overlap"
    """The judged policy hardly ever does what was done."""


class Decisions(NamedTuple):
    """Decisions of a log, one of each in a row of every array."""

    reward: Floats
    """Of what was done; more is better."""
    propensity: Floats
    """With which probability it was done; not a number: unknown."""
    wanted: Floats
    """With which probability the judged policy would have done it."""
    block: Integers
    """Decisions of the same block depend on one another: those of an hour, or of a period."""
    overwritten: Flags
    """Somebody else decided: these are left out."""
    predicted: Floats | None = None
    """What a model of rewards predicts for what was done."""
    predicted_wanted: Floats | None = None
    """What it predicts for what the judged policy would have done."""

    def only(self, which: Flags | slice) -> Decisions:
        """Return some of the decisions."""
        guessed, wanted = self.predicted, self.predicted_wanted
        return Decisions(
            self.reward[which],
            self.propensity[which],
            self.wanted[which],
            self.block[which],
            self.overwritten[which],
            None if guessed is None else guessed[which],
            None if wanted is None else wanted[which],
        )


class Estimate(NamedTuple):
    """What is known of a policy by one method. Without a value, `why` says why there is none."""

    method: Method
    decisions: int
    blocks: int
    effective: float
    """So many decisions of the judged policy itself would tell as much."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    why: Refusal | None = None


def estimates(log: Decisions, clip: float = CLIP) -> list[Estimate]:
    """Return all that can be said of the judged policy, agreement first.

    Args:
        log: The decisions.
        clip: The largest weight.

    Returns:
        One estimate a method; the last ones only with predictions of rewards.
    """
    used = _kept(log)
    found = [agreement(used)]
    found += [_by_weights(used, method, clip) for method in _WEIGHTED]
    if log.predicted is not None and log.predicted_wanted is not None:
        found.append(_by_weights(used, Method.DOUBLY_ROBUST, clip))
        found.append(_mean(Method.MODEL, used, _some(used.predicted_wanted)))
    return found


def agreement(log: Decisions) -> Estimate:
    """Return how often the judged policy would have done what was done, as a share of 1.

    Args:
        log: The decisions. No propensity is needed.
    """
    used = _kept(log)
    count, blocks = len(used.wanted), len(np.unique(used.block))
    if blocks < BLOCKS_MIN:
        return Estimate(Method.AGREEMENT, count, blocks, float(count), why=Refusal.TOO_FEW)
    share = float(used.wanted.mean())
    spread = _variance(used.wanted - share, used.block)
    alone = share * (1 - share) / count
    worth = (
        min(float(count), max(share * (1 - share) / spread, 1.0)) if alone and spread else blocks
    )
    z = _quantile(blocks - 1)
    centre = (share + z * z / (2 * worth)) / (1 + z * z / worth)
    half = z * np.sqrt(share * (1 - share) / worth + (z / (2 * worth)) ** 2) / (1 + z * z / worth)
    low, high = max(0.0, float(centre - half)), min(1.0, float(centre + half))
    return Estimate(Method.AGREEMENT, count, blocks, float(worth), share, low, high)


_WEIGHTED = (Method.WEIGHTED, Method.SELF_NORMALISED)


def _by_weights(used: Decisions, method: Method, clip: float) -> Estimate:
    """Return an estimate that goes by propensities, or why there is none."""
    count, blocks = len(used.reward), len(np.unique(used.block))
    if not np.isfinite(used.propensity).all() or (used.propensity <= 0).any():
        return Estimate(method, count, blocks, 0.0, why=Refusal.UNKNOWN)
    if count and (used.propensity >= 1.0).all():
        return Estimate(method, count, blocks, 0.0, why=Refusal.DETERMINISTIC)
    weight = np.minimum(used.wanted / used.propensity, clip)
    total = float(weight.sum())
    if count and not total:
        return Estimate(method, count, blocks, 0.0, why=Refusal.NO_OVERLAP)
    worth = total**2 / float((weight**2).sum()) if count else 0.0
    if blocks < BLOCKS_MIN or worth < EFFECTIVE_MIN:
        return Estimate(method, count, blocks, worth, why=Refusal.TOO_FEW)
    if method is Method.WEIGHTED:
        return _mean(method, used, weight * used.reward, worth)
    if method is Method.DOUBLY_ROBUST:
        missed = used.reward - _some(used.predicted)
        return _mean(method, used, _some(used.predicted_wanted) + weight * missed, worth)
    value = float((weight * used.reward).sum() / total)
    left = weight * (used.reward - value) / (total / count)
    return _around(method, used, value, _variance(left, used.block), worth)


def _mean(method: Method, used: Decisions, parts: Floats, worth: float | None = None) -> Estimate:
    """Return the mean of parts as an estimate."""
    count, blocks = len(parts), len(np.unique(used.block))
    if blocks < BLOCKS_MIN:
        return Estimate(method, count, blocks, float(count), why=Refusal.TOO_FEW)
    value = float(parts.mean())
    spread = _variance(parts - value, used.block)
    return _around(method, used, value, spread, float(count) if worth is None else worth)


def _around(
    method: Method, used: Decisions, value: float, variance: float, worth: float
) -> Estimate:
    blocks = len(np.unique(used.block))
    half = float(_quantile(blocks - 1) * np.sqrt(variance))
    return Estimate(method, len(used.reward), blocks, worth, value, value - half, value + half)


def _variance(residuals: Floats, block: Integers) -> float:
    """Return the variance of a mean whose terms depend on one another within blocks."""
    _, place = np.unique(block, return_inverse=True)
    sums = np.bincount(place, weights=residuals)
    count = len(sums)
    return float((sums**2).sum() / len(residuals) ** 2 * count / max(count - 1, 1))


def _kept(log: Decisions) -> Decisions:
    """Return the decisions that were not overwritten."""
    return log.only(~log.overwritten) if log.overwritten.any() else log


def _some(array: Floats | None) -> Floats:
    assert array is not None
    return array


def _quantile(degrees: int) -> float:
    """Return the quantile of Student's t for an interval of LEVEL, to 1 in 1,000 from 7 degrees on.

    Source: Abramowitz and Stegun, 26.7.5 (Cornish and Fisher).
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
