"""Plots as SVG that stands by itself: lines over an axis, and bars by name.

Colours are CSS variables with fallbacks, so that a page can change them for the dark; all text is
escaped, and nothing is loaded from anywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from skep_services import svg

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d3b", "#6a51a3")
"""Okabe and Ito's, which the colour-blind can tell apart, and two more."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""Beyond eight lines the stroke tells them apart."""
TEXT, FAINT, GRID = "var(--text,#222)", "var(--faint,#777)", "var(--grid,#ddd)"
WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 44
TICKS = 6
HEADROOM = 1.05
TIMES_S = (
    1,
    2,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    7200,
    14_400,
    43_200,
    86_400,
    172_800,
    432_000,
    864_000,
    1_728_000,
    4_320_000,
    8_640_000,
)
"""Round steps of time: whole seconds, minutes, hours and days."""
DECADES_S = (1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000, 86_400_000)
FALLBACK = re.compile(r"var\(--\w+,(#\w+)\)")
BAR, BAR_GAP, NAME_WIDTH = 13, 9, 150
CHARACTER = 6.4
"""Pixels of a character of a label, about."""
NAME_CHARACTERS = int((NAME_WIDTH - 10) / CHARACTER)

Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """One line of a plot. A stepped one keeps its value until the next point."""

    name: str
    points: Points
    stepped: bool = False


class Bars(NamedTuple):
    """One bar for each name, of one run."""

    name: str
    values: Sequence[float | None]


def colour(place: int) -> str:
    """Return the colour of the n-th run.

    Args:
        place: Its place, from 0.
    """
    return COLOURS[place % len(COLOURS)]


def seconds_text(value: float) -> str:
    """Return a number of seconds in the largest unit that keeps it above 1: `90s`, `2.5h`."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}s"


def number_text(value: float) -> str:
    """Return a number with three digits."""
    if abs(value) >= 10_000:
        return f"{value / 1000:.3g}k"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def part_text(value: float) -> str:
    """Return a part of 1 in per cent."""
    return f"{value * 100:.3g} %"


def lines(
    title: str,
    drawn: Sequence[Line],
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    *,
    x_log: bool = False,
    y_max: float | None = None,
) -> str:
    """Return a plot of lines, or a plot that says that there is nothing to draw.

    Args:
        title: What stands above.
        drawn: The lines; those without points are left out.
        x_text: Returns what a value along the bottom is called; with `seconds_text` the marks are
            at whole seconds, minutes, hours and days.
        y_text: Returns what a value along the side is called.
        x_log: The axis at the bottom is logarithmic.
        y_max: The value at the top; None: a little above the largest there is.
    """
    drawn = [line for line in drawn if line.points]
    xs = [x for line in drawn for x, _ in line.points]
    if not xs:
        return _svg(title, 80, [svg.text(WIDTH / 2, 54, "nothing to draw", anchor="middle")])
    low, high = min(xs), max(xs)
    if x_log:
        low = max(low, min((x for x in xs if x > 0), default=1.0))
        high = max(high, low * 10)
    top = y_max if y_max is not None else max(y for line in drawn for _, y in line.points)
    top = (top if y_max is not None else top * HEADROOM) or 1.0
    legend, legend_height = _legend([line.name for line in drawn])
    height = HEIGHT + legend_height
    floor = HEIGHT - BOTTOM

    def x_at(value: float) -> float:
        if x_log:
            part = math.log(max(value, low) / low) / math.log(high / low)
        else:
            part = (value - low) / ((high - low) or 1.0)
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y_at(value: float) -> float:
        return floor - min(value / top, 1.05) * (floor - TOP)

    parts = []
    times = x_text is seconds_text
    for value in _decades(low, high, times=times) if x_log else _round(low, high, times=times):
        x = x_at(value)
        parts.append(svg.line(x, TOP, x, floor, GRID))
        parts.append(svg.text(x, floor + 16, x_text(value), anchor="middle", fill=FAINT))
    for value in _round(0.0, top):
        y = y_at(value)
        parts.append(svg.line(LEFT, y, WIDTH - RIGHT, y, GRID))
        parts.append(svg.text(LEFT - 6, y + 4, y_text(value), anchor="end", fill=FAINT))
    for place, line in enumerate(drawn):
        parts.append(_path(line, place, x_at, y_at))
    return _svg(title, height, [*parts, *legend])


def _path(
    line: Line, place: int, x_at: Callable[[float], float], y_at: Callable[[float], float]
) -> str:
    words = []
    before = 0.0
    for number, (x, y) in enumerate(line.points):
        if number and line.stepped:
            words.append(f"L{x_at(x):.1f} {before:.1f}")
        before = y_at(y)
        words.append(f"{'L' if number else 'M'}{x_at(x):.1f} {before:.1f}")
    dash = DASHES[place // len(COLOURS) % len(DASHES)]
    more = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path d="{"".join(words)}" fill="none" stroke="{colour(place)}" '
        f'stroke-width="1.7"{more}><title>{escape(line.name)}</title></path>'
    )


def bars(
    title: str, names: Sequence[str], runs: Sequence[Bars], value_text: Callable[[float], str]
) -> str:
    """Return a bar for each name and run, with its value beside it.

    Args:
        title: What stands above.
        names: The names, from above.
        runs: For each run its values in the order of the names; None: there is no value.
        value_text: Returns what a value is called.
    """
    known = [value for run in runs for value in run.values if value is not None]
    most = max(known, default=0.0) or 1.0
    legend, legend_height = _legend([run.name for run in runs])
    step = BAR * len(runs) + BAR_GAP
    height = TOP + step * len(names) + 12
    room = WIDTH - NAME_WIDTH - RIGHT - 70
    parts = []
    for at, name in enumerate(names):
        y = TOP + at * step
        parts.append(
            svg.text(
                NAME_WIDTH - 8,
                y + BAR * len(runs) / 2 + 4,
                svg.cut(name, NAME_CHARACTERS),
                anchor="end",
            )
        )
        for place, run in enumerate(runs):
            value = run.values[at]
            top = y + place * BAR
            if value is None:
                parts.append(svg.text(NAME_WIDTH + 4, top + 10, "-", fill=FAINT))
                continue
            long = max(value, 0.0) / most * room
            words = f"{name}, {run.name}: {value_text(value)}"
            parts.append(svg.box(NAME_WIDTH, top, long, BAR - 2, colour(place), hint=words))
            parts.append(
                svg.text(NAME_WIDTH + long + 5, top + 10, value_text(value), fill=FAINT, size=11)
            )
    moved = [f'<g transform="translate(0 {height - HEIGHT:.0f})">{"".join(legend)}</g>']
    return _svg(title, height + legend_height, [*parts, *moved] if legend else parts)


def stacked(title: str, pictures: Sequence[str]) -> str:
    """Return one picture of several, one below the other, on white: to send to somebody.

    Without variables, which not everything that shows SVG knows.

    Args:
        title: What stands above all.
        pictures: What `lines` and `bars` return.
    """
    parts, top = [], 48.0
    for picture in pictures:
        height = float(picture.partition('height="')[2].partition('"')[0])
        plain = FALLBACK.sub(r"\1", picture)
        parts.append(plain.replace("<svg ", f'<svg x="0" y="{top:.0f}" ', 1))
        top += height + 14
    head = [svg.box(0, 0, WIDTH, top, "#fff"), svg.text(16, 30, title, size=17)]
    return svg.document(WIDTH, top, title, [*head, *parts])


def _legend(names: Sequence[str]) -> tuple[list[str], float]:
    """Return the lines' names in their colours below a plot, and the height they need."""
    if len(names) < 2:
        return [], 0.0
    parts = []
    x, y = float(LEFT), float(HEIGHT)
    for place, name in enumerate(names):
        wide = 30 + len(name) * CHARACTER
        if x > LEFT and x + wide > WIDTH:
            x, y = float(LEFT), y + 18
        dash = DASHES[place // len(COLOURS) % len(DASHES)]
        more = f' stroke-dasharray="{dash}"' if dash else ""
        stroke = f' stroke-width="3"{more}'
        parts.append(svg.line(x, y, x + 16, y, colour(place), stroke))
        parts.append(svg.text(x + 21, y + 4, name))
        x += wide
    return parts, y - HEIGHT + 14


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return svg.document(WIDTH, height, title, [svg.text(16, 18, title, size=14), *parts], fill=TEXT)


def _round(low: float, high: float, *, times: bool = False) -> list[float]:
    """Return round values between two, about TICKS of them."""
    span = (high - low) or 1.0
    if times and TIMES_S[0] <= span / TICKS <= TIMES_S[-1]:
        step = next(each for each in TIMES_S if span / each <= TICKS)
        return [
            float(number * step) for number in range(math.ceil(low / step), int(high / step) + 1)
        ]
    size = 10 ** math.floor(math.log10(span / TICKS))
    step = next(size * each for each in (1, 2, 2.5, 5, 10) if span / (size * each) <= TICKS)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _decades(low: float, high: float, *, times: bool) -> list[float]:
    if times:
        return [float(each) for each in DECADES_S if low <= each <= high]
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]
