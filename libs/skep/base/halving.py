"""What is left of an amount that halves again and again, in integers: the same bits everywhere.

`math.exp2` is the C library's, whose last bits differ between machines. A log that is replayed on
another one is to come to the same state, so powers of two are multiplied from square roots here.
"""

from __future__ import annotations

from math import isqrt

BITS = 62
"""Binary places of a factor."""
ONE = 1 << BITS
FINE = 48
"""Binary places of the part of a half-life: half a year in steps of 56 ns."""


def _roots() -> tuple[int, ...]:
    """Return 2^-(2^-1), 2^-(2^-2), and so on, each the square root of the one before it."""
    found, root = [], ONE >> 1
    for _ in range(FINE):
        root = isqrt(root << BITS)
        found.append(root)
    return tuple(found)


def _mean_life() -> int:
    """Return 1 / ln 2: the mean life of what halves in a unit of time (ln 2 = sum of 1 / k 2^k)."""
    more = BITS + 8
    log = sum((1 << more) // (k << k) for k in range(1, more))
    return (1 << (more + BITS)) // log


ROOTS = _roots()
MEAN_LIFE = _mean_life()


def factor(elapsed: int, half_life: int) -> int:
    """Return 2^-(elapsed / half_life), as a multiple of 2^-BITS.

    Args:
        elapsed: How long it decays; not negative.
        half_life: In the same unit; 1 or more.
    """
    halves, rest = divmod(elapsed, half_life)
    if halves >= BITS:
        return 0
    left, part = ONE >> halves, (rest << FINE) // half_life
    for place, root in enumerate(ROOTS, 1):
        if part >> (FINE - place) & 1:
            left = left * root >> BITS
    return left


def decayed(amount: int, rate: int, elapsed: int, half_life: int) -> int:
    """Return an amount after it has decayed, and grown by a steady rate that decays likewise.

    amount 2^-(t/h) + rate h / ln 2 (1 - 2^-(t/h)): the integral of rate 2^-((t-s)/h) ds.

    Args:
        amount: What there was.
        rate: What came in each unit of time since.
        elapsed: How much time has passed since then; not negative.
        half_life: In the same unit; 1 or more.
    """
    left = factor(elapsed, half_life)
    kept = amount * left >> BITS
    return kept + (rate * half_life * MEAN_LIFE * (ONE - left) >> 2 * BITS)
