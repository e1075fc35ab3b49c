"""The picture of a search both ways: accuracy of every trial over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skep_services.svg import page, text

Points = Sequence[tuple[float, int, float]]
WIDTH, HEIGHT, LEFT, ROW = 900, 150, 70, 170
WAYS = {"sliced": "one search, all trials by turns", "queued": "queued, first in first out"}


def picture(curves: Mapping[str, Mapping[int, Points]], target: float) -> str:
    """Return a row for each run; the dot is the first accuracy at the target."""
    longest = max(
        (point[0] for run in curves.values() for mine in run.values() for point in mine), default=1
    )
    parts = []
    for at, (name, run) in enumerate(sorted(curves.items(), key=_order)):
        parts += _row(name, run, target, 50 + at * ROW, longest)
    title = "Accuracy over time (s): the same sixty trials both ways"
    return page(WIDTH, 60 + ROW * len(curves), title, parts)


def _order(one: tuple[str, object]) -> tuple[int, str]:
    way, _, seed = one[0].partition("-")
    return int(seed), way


def _row(
    name: str, run: Mapping[int, Points], target: float, top: float, longest: float
) -> list[str]:
    def x(at: float) -> float:
        return LEFT + at / longest * (WIDTH - LEFT - 30)

    def y(value: float) -> float:
        return top + HEIGHT - value * (HEIGHT - 20)

    way, _, seed = name.partition("-")
    colour = "#1f77b4" if way == "sliced" else "#d62728"
    parts = [text(LEFT, top + 8, f"{WAYS[way]}; seed {seed}", size=12)]
    parts.append(
        f'<path d="M{LEFT} {y(target):.1f}H{WIDTH - 30}" stroke="#999" stroke-dasharray="4 3"/>'
    )
    parts.append(f'<path d="M{LEFT} {y(0):.1f}H{WIDTH - 30}" stroke="#222"/>')
    parts.append(text(12, y(target) + 4, f"{target:.2f}", size=11))
    parts += [
        text(x(second), y(0) + 14, str(second), size=10)
        for second in range(0, int(longest) + 1, 20)
    ]
    for mine in run.values():
        if mine:
            line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, _, value in mine)
            parts.append(
                f'<polyline points="{line}" fill="none" stroke="{colour}" '
                'stroke-width="0.8" opacity="0.6"/>'
            )
            parts.append(
                f'<circle cx="{x(mine[0][0]):.1f}" cy="{y(mine[0][2]):.1f}" r="1.5" '
                f'fill="{colour}"/>'
            )
    hits = [(at, value) for mine in run.values() for at, _, value in mine if value >= target]
    if hits:
        at, value = min(hits)
        parts.append(f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="5" fill="{colour}"/>')
        parts.append(text(x(at) - 8, y(value) + 14, f"{at:.0f} s", size=12, anchor="end"))
    return parts
