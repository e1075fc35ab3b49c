"""The picture of a search: every trial's learning curve, and how far each of them came."""

from __future__ import annotations

import math
from typing import Any

from skep_services import svg

WIDTH, LEFT, RIGHT = 980, 80, 700
TOP, CURVES = 64, 360
"""Where the curves begin, and how high they are."""
BAR, GAP = 11, 4
BEST, OVER, STANDS, RUNS, LOST = "#e76f51", "#90a4ac", "#6f9fd0", "#2a9d8f", "#d5b3aa"
TRIALS_SHOWN = 200
"""Bars: of more trials those that came furthest are shown."""
WORDS_MAX = 34


def picture(found: dict[str, Any]) -> str:
    """Return curves above, and below a bar for each trial's mini-batches, with the rungs.

    Args:
        found: The search as the gateway shows it, with its trials in `rows`.
    """
    rows = found["rows"]
    shown = sorted(rows, key=lambda row: (-row["step"], row["trial"]))[:TRIALS_SHOWN]
    bars = TOP + CURVES + 80
    height = bars + (BAR + GAP) * len(shown) + 40
    best = found["best"]["trial"] if found["best"] else 0
    title = f"{found['search']} {found['name']}: {found['trials']} trials, {found['state']}"
    if found["best"]:
        title += f", best {found['metric']} {found['best']['value']:.4g}"
    last = max([1, *(row["step"] for row in rows)])
    parts = _curves(found, best, last)
    parts += _bars(shown, best, last, bars)
    parts += [
        svg.text(LEFT, bars - 14, "mini-batches of each trial, the furthest first", fill=svg.FAINT)
    ]
    parts += _legend(RIGHT + 40)
    return svg.page(WIDTH, height, title, parts)


def _legend(left: float) -> list[str]:
    names = {
        "the best": BEST,
        "running": RUNS,
        "suspended, waiting": STANDS,
        "done": OVER,
        "failed, given up, cancelled": LOST,
    }
    parts = []
    for row, (name, colour) in enumerate(names.items()):
        parts += [
            svg.box(left, TOP + 20 * row, 14, 12, colour),
            svg.text(left + 22, TOP + 20 * row + 11, name),
        ]
    return parts


def colour_of(row: dict[str, Any], best: int) -> str:
    """Return a trial's colour: how it stands, or how it ended.

    Args:
        row: The trial.
        best: The number of the best trial, which has a colour of its own; 0: none is.
    """
    if row["trial"] == best:
        return BEST
    if row["end"] is not None:
        return OVER if row["end"] == "done" else LOST
    return RUNS if row["stand"] in ("running", "outside") else STANDS


def _curves(found: dict[str, Any], best: int, last: int) -> list[str]:
    bottom = TOP + CURVES
    told = [
        [(step, value) for step, value in row["points"] if math.isfinite(value)]
        for row in found["rows"]
    ]
    values = [value for points in told for _, value in points]
    target = found["target"]
    if target is not None:
        values.append(target)
    parts = [
        svg.line(LEFT, bottom, RIGHT, bottom, svg.FAINT),
        svg.text(LEFT, TOP - 8, found["metric"], fill=svg.FAINT),
    ]
    if not values:
        return [*parts, svg.text(LEFT + 20, TOP + 40, "no trial has told a value yet")]
    low, high = min(values), max(values)
    span = (high - low) or max(abs(high), 1.0) * 1e-9

    def across(step: float) -> float:
        return float(LEFT + step / last * (RIGHT - LEFT))

    def up(value: float) -> float:
        return float(bottom - (value - low) / span * (CURVES - 10))

    parts += [
        svg.text(LEFT - 8, up(value) + 4, f"{value:.3g}", anchor="end") for value in (low, high)
    ]
    if target is not None:
        parts += [
            svg.line(LEFT, up(target), RIGHT, up(target), svg.TEXT, ' stroke-dasharray="4"'),
            svg.text(RIGHT + 6, up(target) + 4, f"target {target:g}"),
        ]
    for rung in sorted({rung for row in found["rows"] for rung in row["rungs"] if rung <= last}):
        parts.append(
            svg.line(across(rung), TOP, across(rung), bottom, svg.FAINT, ' stroke-dasharray="2"')
        )
        parts.append(
            svg.text(across(rung), bottom + 16, str(rung), fill=svg.FAINT, anchor="middle")
        )
    parts.append(svg.text(RIGHT, bottom + 32, f"mini-batch {last}", fill=svg.FAINT, anchor="end"))
    order = sorted(zip(found["rows"], told, strict=True), key=lambda one: one[0]["trial"] == best)
    for row, points in order:  # The best is drawn last, above all others.
        line = " ".join(f"{across(step):.1f},{up(value):.1f}" for step, value in points)
        colour, wide = colour_of(row, best), 2.5 if row["trial"] == best else 1.2
        if len(points) > 1:
            parts.append(
                f'<polyline fill="none" stroke="{colour}" stroke-width="{wide}" points="{line}"/>'
            )
        elif points:
            x, y = line.split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"/>')
    return parts


def _bars(rows: list[dict[str, Any]], best: int, last: int, top: float) -> list[str]:
    parts = []
    for index, row in enumerate(rows):
        y = top + (BAR + GAP) * index
        width = max(2.0, row["step"] / last * (RIGHT - LEFT))
        words = " ".join(
            f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in row["params"].items()
        )
        state = row["end"] or row["stand"]
        hint = f"trial {row['trial']} {row['job']}: {state}, {words}"
        parts += [
            svg.text(LEFT - 8, y + BAR - 1, str(row["trial"]), size=10, anchor="end"),
            svg.box(LEFT, y, width, BAR, colour_of(row, best), hint=hint),
            svg.text(RIGHT + 40, y + BAR - 1, svg.cut(words, WORDS_MAX), size=10),
        ]
        for rung in row["rungs"][: len(row["reached"])]:
            x = LEFT + rung / last * (RIGHT - LEFT)
            parts.append(svg.line(x, y, x, y + BAR, svg.TEXT))
    return parts
