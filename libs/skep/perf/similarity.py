"""From which model an unknown one borrows its speed until it is measured.

The same parameters come first, then the same family, then the nearest in how many bytes of
gradients it has, what its first mini-batch took, and how large its tensors are. All of it comes
from jobs that may lie, so what is borrowed is only where a prior is centred: measurements decide.
Bytes of gradients say what has to be synchronised, and not how long that takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from skep.wire.profile import Fingerprint
from skep.wire.reasons import Reason

FAR = 3.0
"""Nothing is borrowed from farther away: that is a factor of 20 in one of the quantities."""
OCTAVE = math.log(2.0)


class Looks(NamedTuple):
    """What a model is compared by; `step_ns` is its first measured mini-batch (0: none)."""

    name: str
    gpu_type: str
    fingerprint: Fingerprint | None
    step_ns: int = 0


class Borrowed(NamedTuple):
    """From which model and on which type of GPU, why, and how far it is away."""

    name: str
    gpu_type: str
    why: Reason
    distance: float = 0.0


WHY = (Reason.SAME_FINGERPRINT, Reason.SAME_FAMILY, Reason.NEAREST_MODEL)
"""The best first."""


def borrow(wanted: Looks, known: Sequence[Looks]) -> Borrowed | None:
    """Return the model that is most similar to an unknown one; None if none is similar.

    Of another type of GPU only the same model counts, and only if it is unknown on this type.

    Args:
        wanted: What is known of the unknown one.
        known: Models that were measured, each under another name or on another type of GPU.
    """
    best: tuple[int, bool, float, str, str] | None = None
    for other in known:
        rank, far = _rank(wanted, other)
        foreign = other.gpu_type != wanted.gpu_type
        if far > FAR or (foreign and WHY[rank] is Reason.NEAREST_MODEL):
            continue
        found = rank, foreign, far, other.name, other.gpu_type
        if best is None or found < best:
            best = found
    if best is None:
        return None
    rank, _, far, name, gpu_type = best
    return Borrowed(name, gpu_type, WHY[rank], far)


def _rank(wanted: Looks, other: Looks) -> tuple[int, float]:
    """Return which of the reasons holds, and how far two models are apart."""
    one, two = wanted.fingerprint, other.fingerprint
    if one is not None and two is not None and one.shapes and one.shapes == two.shapes:
        return 0, 0.0
    if wanted.name and wanted.name == other.name:
        return 1, 0.0
    return 2, distance(wanted, other)


def distance(one: Looks, other: Looks) -> float:
    """Return how far two models are apart; infinite if they cannot be compared.

    Args:
        one: A model.
        other: Another.

    Returns:
        The root of the sum of squares of differences in natural logarithms: of the bytes of
        gradients, of the first mini-batch where both were measured, and of the sizes of tensors
        (the mean by which one's have to be moved to become the other's).
    """
    mine, theirs = one.fingerprint, other.fingerprint
    if mine is None or theirs is None or not mine.gradient_bytes or not theirs.gradient_bytes:
        return math.inf
    parts = [
        math.log(mine.gradient_bytes / theirs.gradient_bytes),
        OCTAVE * _moved(mine.sizes, theirs.sizes),
    ]
    if one.step_ns > 0 and other.step_ns > 0:
        parts.append(math.log(one.step_ns / other.step_ns))
    return math.hypot(*parts)


def _moved(one: Sequence[int], other: Sequence[int]) -> float:
    """Return by how many octaves the tensors of one histogram are moved to make the other."""
    total, others = sum(one), sum(other)
    if not total or not others:
        return 0.0
    moved = before = 0.0
    for at in range(max(len(one), len(other))):
        share = one[at] / total if at < len(one) else 0.0
        theirs = other[at] / others if at < len(other) else 0.0
        before += share - theirs
        moved += abs(before)
    return moved
