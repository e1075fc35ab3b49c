"""Rates over time with what was decided: panels one above the other, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from skep_services import svg
from tests.system.introspect.rates import Mark

WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 1080, 70, 150, 118, 150, 30
COLOURS = ("#2f6fb0", "#d9822b", "#3a9a5b", "#8a63b8", "#c0504d", "#5f6b7a", "#b8963a", "#3aa0a8")


class Line(NamedTuple):
    """A curve: its name, and (ns, value) in order."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = ""


class Panel(NamedTuple):
    """Curves over the same time; `least` is how high it reaches at least."""

    label: str
    lines: Sequence[Line]
    least: float = 0.0
    height: int = PANEL


def draw(
    title: str,
    span: tuple[int, int],
    panels: Sequence[Panel],
    marks: Sequence[Mark],
    ticks: Sequence[Mark] = (),
) -> str:
    """Return the picture. `marks` have a line and their words, `ticks` a short line each."""
    begin, end = span
    x = svg.Scale(begin, end, LEFT, WIDTH - RIGHT)
    bottom = TOP + sum(panel.height for panel in panels) + GAP * len(panels) - GAP
    parts = svg.axis(x, begin, end, TOP, bottom)
    y = TOP
    for panel in panels:
        parts += _panel(panel, y, x)
        y += panel.height + GAP
    parts += _marks(marks, x, bottom)
    parts += [svg.line(x(each.at), TOP - 9, x(each.at), TOP - 2, each.colour) for each in ticks]
    return svg.page(WIDTH, round(bottom) + 40, title, parts)


def _panel(panel: Panel, top: float, x: svg.Scale) -> list[str]:
    most = max([panel.least, *(value for each in panel.lines for _, value in each.points)]) or 1.0
    most *= 1.05
    low, above = top + panel.height, 6 if top > TOP else 14
    parts = [
        svg.line(LEFT, low, WIDTH - RIGHT, low, svg.FAINT),
        svg.line(LEFT, top, LEFT, low, svg.FAINT),
        svg.text(LEFT, top - above, panel.label, fill=svg.FAINT, size=11),
    ]
    for part in (0.0, 0.5, 1.0) if panel.height >= 50 else (0.0, 1.0):
        value = panel.least * part if panel.least else most / 1.05 * part
        at = low - value / most * panel.height
        parts.append(svg.text(LEFT - 8, at + 4, f"{value:.3g}", fill=svg.FAINT, anchor="end"))
        parts.append(svg.line(LEFT, at, WIDTH - RIGHT, at, svg.GRID))
    for index, each in enumerate(panel.lines):
        colour = each.colour or COLOURS[index % len(COLOURS)]
        points = " ".join(
            f"{x(round(at)):.1f},{low - value / most * panel.height:.1f}"
            for at, value in _bends(each.points, most / panel.height)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
        if each.name:
            at = top + 17 * index
            parts += [
                svg.box(WIDTH - RIGHT + 12, at, 11, 11, colour),
                svg.text(WIDTH - RIGHT + 29, at + 10, each.name, size=12),
            ]
    return parts


def _bends(points: Sequence[tuple[float, float]], pixel: float) -> Iterator[tuple[float, float]]:
    """Yield the points of a curve, but of a level stretch only its ends."""
    for index, point in enumerate(points):
        near = points[max(index - 1, 0) : index + 2]
        inside = len(near) == 3
        if not (inside and all(abs(value - point[1]) < pixel / 2 for _, value in near)):
            yield point


def _marks(marks: Sequence[Mark], x: svg.Scale, bottom: float) -> list[str]:
    """Draw marks with their words in rows, so that those close together do not meet."""
    parts, ends = [], [0.0] * 3
    for each in sorted(marks):
        at = x(each.at)
        row = min(range(len(ends)), key=lambda index: (ends[index] > at, index))
        ends[row] = at + 7 * len(each.words) + 12
        parts.append(
            svg.line(at, 46 + 17 * row, at, bottom, each.colour, ' stroke-dasharray="3 3"')
        )
        parts.append(svg.text(at + 4, 56 + 17 * row, each.words, fill=each.colour, size=12))
    return parts
