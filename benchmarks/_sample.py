"""What benchmarks tell of a sample, and how they show their progress."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence


def say(text: str) -> None:
    """Show progress on standard error: standard output is one JSON document."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def percentiles(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Return count, mean, percentiles and maximum; zeros for an empty sample.

    Args:
        values: The sample, in any order.
        digits: Decimals that figures are rounded to.
    """
    ordered = sorted(values) or [0.0]

    def at(percent: int) -> float:
        return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]

    figures = {
        "mean": sum(ordered) / len(ordered),
        **{f"p{percent}": at(percent) for percent in (50, 90, 99)},
        "max": ordered[-1],
    }
    return {"n": len(values), **{name: round(value, digits) for name, value in figures.items()}}


def extremes(values: Sequence[float], digits: int | None = 1) -> dict[str, float]:
    """Return median, minimum and maximum.

    Args:
        values: The sample, in any order.
        digits: Decimals that figures are rounded to; None for whole numbers.
    """
    figures = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in figures.items()}
