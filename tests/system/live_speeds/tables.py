"""The report: tables for people, and the same as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.system.live_speeds.bench import Outcome, Predicted


class Judged(NamedTuple):
    """A prediction with what came of it."""

    predicted: Predicted
    outcome: Outcome

    @property
    def error(self) -> float:
        """Return the error of P50, as a part of what was measured."""
        return self.predicted.p50_ms / self.outcome.p50_ms - 1

    @property
    def held(self) -> bool:
        """Return whether what was measured lies within P10 to P90."""
        return self.predicted.p10_ms <= self.outcome.p50_ms <= self.predicted.p90_ms


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as Markdown; what are no words stands to the right."""
    sides = ["---" if isinstance(each, str) else "---:" for each in (rows[0] if rows else head)]
    lines = [head, sides, *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def measurements(outcomes: Sequence[Outcome]) -> str:
    """Return what was measured."""
    return table(
        ("model", "GPUs", "nodes", "batch", "P50 (ms)", "P10 to P90", "timed", "load"),
        [
            (
                each.model,
                each.place.gpus,
                each.place.nodes,
                each.batch,
                round(each.p50_ms),
                f"{each.p10_ms:.0f} to {each.p90_ms:.0f}",
                each.samples,
                round(each.load, 1),
            )
            for each in outcomes
        ],
    )


def errors(rows: Sequence[Judged]) -> str:
    """Return the error table."""
    return table(
        (
            "model",
            "GPUs",
            "nodes",
            "batch",
            "predicted (ms)",
            "P10 to P90",
            "measured",
            "error",
            "held",
            "stratum",
        ),
        [
            (
                told.model,
                told.place.gpus,
                told.place.nodes,
                told.batch,
                round(told.p50_ms),
                f"{told.p10_ms:.0f} to {told.p90_ms:.0f}",
                round(each.outcome.p50_ms),
                f"{each.error:+.1%}",
                "yes" if each.held else "no",
                told.stratum,
            )
            for each in rows
            for told in [each.predicted]
        ],
    )


def summary(rows: Sequence[Judged]) -> dict[str, Any]:
    """Return how wrong predictions were and how often intervals held, by model and stratum."""
    return {
        "all": _of(rows),
        "by_model": {
            name: _of([each for each in rows if each.predicted.model == name])
            for name in dict.fromkeys(each.predicted.model for each in rows)
        },
        "by_stratum": {
            name: _of([each for each in rows if each.predicted.stratum == name])
            for name in dict.fromkeys(each.predicted.stratum for each in rows)
        },
    }


def _of(rows: Sequence[Judged]) -> dict[str, Any]:
    wrong = sorted(abs(each.error) for each in rows)
    return {
        "outcomes": len(rows),
        "error_mean_percent": round(100 * statistics.fmean(wrong), 1),
        "error_median_percent": round(100 * statistics.median(wrong), 1),
        "error_max_percent": round(100 * wrong[-1], 1),
        "held_percent": round(100 * sum(each.held for each in rows) / len(rows), 1),
        "width_median": round(
            statistics.median(each.predicted.p90_ms / each.predicted.p10_ms for each in rows), 2
        ),
    }
