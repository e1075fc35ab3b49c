"""Plots as SVG that stands by itself: lines over an axis, and bars or marks by name.

A run has a colour, a stroke and a mark, the same ones in every plot, so that it is found without
colours too. Colours of text are CSS variables with fallbacks, so that a page can change them for
the dark; all text is escaped, and nothing is loaded from anywhere. A plot is as wide as a phone
shows with letters that can be read; a page puts several beside one another.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from skep_services import svg

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d3b", "#6a51a3")
"""Okabe and Ito's, which the colour-blind can tell apart, and two more."""
DASHES = ("", "7 3", "2 2.5", "9 3 2 3")
MARKS = ("circle", "square", "triangle", "diamond")
"""A run's stroke and mark go by its place; a mark is hollow from the fifth run on."""
MARK = 4.2
"""Half the size of a mark (pixels)."""
MARKS_ON_LINE = 5
TEXT, FAINT, GRID = "var(--text,#222)", "var(--faint,#666)", "var(--grid,#ddd)"
BACK = "var(--panel,#fff)"
WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 48, 54
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
BAR, BAR_GAP, NAME_WIDTH = 13, 9, 120
DOT_STEP, DOT_GAP = 7, 12
"""Between the marks of two runs, and between two names (pixels)."""
ZERO_ROOM = 26
"""Between 0 and the first value of a logarithmic axis (pixels)."""
CHARACTER = 6.7
"""Pixels of a character of a label, about."""
NAME_CHARACTERS = int((NAME_WIDTH - 10) / CHARACTER)
LABEL_CHARACTERS = 44
TITLE_CHARACTERS = 62

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
    y_min: float = 0.0,
    x_title: str = "",
    y_title: str = "",
) -> str:
    """Return a plot of lines, or a plot that says that there is nothing to draw.

    Args:
        title: What stands above.
        drawn: The lines; those without points are left out.
        x_text: Returns what a value along the bottom is called; with `seconds_text` the marks are
            at whole seconds, minutes, hours and days.
        y_text: Returns what a value along the side is called.
        x_log: The axis at the bottom is logarithmic; what is 0 has a place of its own before it.
        y_max: The value at the top; None: a little above the largest there is.
        y_min: The value at the bottom.
        x_title: What is along the bottom; the marks say its unit.
        y_title: What is along the side.
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

    begin = LEFT + (ZERO_ROOM if x_log and min(xs) <= 0 else 0)

    def x_at(value: float) -> float:
        if x_log and value <= 0:
            return LEFT
        if x_log:
            part = math.log(max(value, low) / low) / math.log(high / low)
        else:
            part = (value - low) / ((high - low) or 1.0)
        return begin + part * (WIDTH - begin - RIGHT)

    def y_at(value: float) -> float:
        part = (value - y_min) / ((top - y_min) or 1.0)
        return floor - min(max(part, 0.0), 1.05) * (floor - TOP)

    parts = _axis_titles(x_title + (" (log scale)" if x_log and x_title else ""), y_title)
    times = x_text is seconds_text
    marks = _decades(low, high, times=times) if x_log else _round(low, high, times=times)
    at = [(x_at(value), x_text(value)) for value in marks]
    parts += _ticks([(float(LEFT), "0"), *at] if begin > LEFT else at, TOP, floor)
    for value in _round(y_min, top):
        y = y_at(value)
        parts.append(svg.line(LEFT, y, WIDTH - RIGHT, y, GRID))
        parts.append(svg.text(LEFT - 6, y + 4, y_text(value), anchor="end", fill=FAINT))
    for place, line in enumerate(drawn):
        parts.append(_path(line, place, x_at, y_at))
        if len(drawn) > 1:
            parts += _marks_on(line, place, len(drawn), x_at, y_at)
    return _svg(title, height, [*parts, *legend])


def _ticks(at: Sequence[tuple[float, str]], top: float, floor: float) -> list[str]:
    """Return lines across a plot with words below them, without words that would overlap.

    Args:
        at: Where, ascending, and the words.
        top: Where lines begin.
        floor: Where they end.
    """
    parts, free = [], 0.0
    for x, words in at:
        parts.append(svg.line(x, top, x, floor, GRID))
        wide = len(words) * CHARACTER
        middle = min(x, WIDTH - 4 - wide / 2)  # The last one is not cut off by the edge.
        if middle - wide / 2 >= free:
            parts.append(svg.text(middle, floor + 16, words, anchor="middle", fill=FAINT))
            free = middle + wide / 2 + 5
    return parts


def _axis_titles(x_title: str, y_title: str) -> list[str]:
    found = []
    if y_title:
        found.append(svg.text(LEFT - 6, TOP - 10, y_title, fill=FAINT, size=12))
    if x_title:
        middle = (LEFT + WIDTH - RIGHT) / 2
        at = HEIGHT - BOTTOM + 34
        found.append(svg.text(middle, at, x_title, anchor="middle", fill=FAINT, size=12))
    return found


def _marks_on(
    line: Line,
    place: int,
    count: int,
    x_at: Callable[[float], float],
    y_at: Callable[[float], float],
) -> list[str]:
    """Return marks along a line, each run's at other places: lines may lie on one another.

    A line of few points has its marks there.
    """
    if len(line.points) <= 2 * MARKS_ON_LINE:
        return [mark(place, x_at(x), y_at(y)) for x, y in line.points]
    xs = [x_at(x) for x, _ in line.points]
    low, high = xs[0], xs[-1]
    found = []
    for number in range(MARKS_ON_LINE):
        part = (number + (place + 0.5) / count) / MARKS_ON_LINE
        x = low + part * (high - low)
        behind = max(bisect_right(xs, x) - 1, 0)
        y = y_at(line.points[behind][1])
        if not line.stepped and behind + 1 < len(xs) and xs[behind + 1] > xs[behind]:
            further = y_at(line.points[behind + 1][1])
            y += (further - y) * (x - xs[behind]) / (xs[behind + 1] - xs[behind])
        found.append(mark(place, x, y))
    return found


def mark(place: int, x: float, y: float, hint: str = "") -> str:
    """Return the mark of the n-th run.

    Args:
        place: The place of the run, from 0.
        x: Its middle.
        y: Its middle.
        hint: What is shown when it is pointed at; empty: nothing.
    """
    hollow = place // len(MARKS) % 2
    paint = (
        f'fill="{BACK if hollow else colour(place)}" stroke="{colour(place)}" stroke-width="1.5"'
    )
    kind, shape = _shape(MARKS[place % len(MARKS)], x, y)
    end = f"><title>{escape(hint)}</title></{kind}>" if hint else "/>"
    return f"<{kind} {shape} {paint}{end}"


def _shape(mark_name: str, x: float, y: float) -> tuple[str, str]:
    """Return the element of a mark, and its attributes."""
    if mark_name == "circle":
        return "circle", f'cx="{x:.1f}" cy="{y:.1f}" r="{MARK}"'
    corners = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "triangle": ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),
        "diamond": ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    }[mark_name]
    points = " ".join(f"{x + dx * MARK:.1f},{y + dy * MARK:.1f}" for dx, dy in corners)
    return "polygon", f'points="{points}"'


def _dash(place: int) -> str:
    dash = DASHES[place % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


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
    return (
        f'<path d="{"".join(words)}" fill="none" stroke="{colour(place)}" '
        f'stroke-width="1.7"{_dash(place)}><title>{escape(line.name)}</title></path>'
    )


def bars(
    title: str,
    names: Sequence[str],
    runs: Sequence[Bars],
    value_text: Callable[[float], str],
    *,
    x_title: str = "",
) -> str:
    """Return a bar for each name and run, with its value beside it.

    Args:
        title: What stands above.
        names: The names, from above.
        runs: For each run its values in the order of the names; None: there is no value.
        value_text: Returns what a value is called.
        x_title: What the lengths are.
    """
    known = [value for run in runs for value in run.values if value is not None]
    most = max(known, default=0.0) or 1.0
    legend, legend_height = _legend([run.name for run in runs])
    step = BAR * len(runs) + BAR_GAP
    height = TOP + step * len(names) + 12
    room = WIDTH - NAME_WIDTH - RIGHT - 70
    parts = [svg.text(NAME_WIDTH, TOP - 10, x_title, fill=FAINT, size=12)] if x_title else []
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
            beside = NAME_WIDTH + long + 5
            if len(runs) > 1:
                parts.append(mark(place, beside + MARK, top + (BAR - 2) / 2))
                beside += 3 * MARK
            parts.append(svg.text(beside, top + 10, value_text(value), fill=FAINT, size=11))
    moved = [f'<g transform="translate(0 {height - HEIGHT:.0f})">{"".join(legend)}</g>']
    return _svg(title, height + legend_height, [*parts, *moved] if legend else parts)


def dots(
    title: str,
    names: Sequence[str],
    runs: Sequence[Bars],
    value_text: Callable[[float], str],
    *,
    x_title: str = "",
) -> str:
    """Return a row for each name, with a mark for each run along a logarithmic axis.

    Many runs fit that would be too many bars.

    Args:
        title: What stands above.
        names: The names, from above.
        runs: For each run its values in the order of the names; None: there is no value.
        value_text: Returns what a value is called; with `seconds_text` the marks of the axis are
            at whole seconds, minutes, hours and days.
        x_title: What is along the axis.
    """
    known = [value for run in runs for value in run.values if value is not None and value > 0]
    low, high = min(known, default=1.0), max(known, default=10.0)
    decades = [1, *_decades(low / 10, high * 10, times=value_text is seconds_text)]
    low = max((each for each in decades if each <= low), default=low)
    high = min((each for each in decades if each >= high), default=high)
    high = max(high, low * 10)
    step = DOT_STEP * len(runs) + DOT_GAP
    floor = TOP + step * len(names)
    zero = any(value == 0 for run in runs for value in run.values)
    begin = NAME_WIDTH + (ZERO_ROOM if zero else 6)

    def x_at(value: float) -> float:
        if value <= 0:
            return NAME_WIDTH + 6
        return begin + math.log(value / low) / math.log(high / low) * (WIDTH - RIGHT - begin)

    parts = []
    for at, name in enumerate(names):
        top = TOP + at * step
        if at % 2 == 0:
            parts.append(svg.box(0, top, WIDTH, step, GRID, opacity=0.35))
        middle = top + step / 2 + 4
        label = svg.cut(name, NAME_CHARACTERS)
        parts.append(svg.text(NAME_WIDTH - 8, middle, label, anchor="end"))
    marks = _decades(low, high, times=value_text is seconds_text)
    ticks = [(x_at(value), value_text(value)) for value in marks]
    parts += _ticks([(x_at(0), "0"), *ticks] if zero else ticks, TOP, floor)
    for at, name in enumerate(names):
        for place, run in enumerate(runs):
            if (known_value := run.values[at]) is not None:
                y = TOP + at * step + DOT_GAP / 2 + DOT_STEP * (place + 0.5)
                words = f"{name}, {run.name}: {value_text(known_value)}"
                parts.append(mark(place, x_at(known_value), y, words))
    if x_title:
        middle = (NAME_WIDTH + WIDTH - RIGHT) / 2
        words = f"{x_title} (log scale)"
        parts.append(svg.text(middle, floor + 34, words, anchor="middle", fill=FAINT, size=12))
    legend, legend_height = _legend([run.name for run in runs])
    moved = [f'<g transform="translate(0 {floor + BOTTOM - HEIGHT:.0f})">{"".join(legend)}</g>']
    height = floor + BOTTOM + legend_height
    return _svg(title, height, [*parts, *moved] if legend else parts)


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
    x, y = 16.0, float(HEIGHT)
    for place, name in enumerate(names):
        shown = svg.cut(name, LABEL_CHARACTERS)
        wide = 52 + len(shown) * CHARACTER
        if x > 16 and x + wide > WIDTH:
            x, y = 16.0, y + 18
        stroke = f' stroke-width="2"{_dash(place)}'
        parts.append(svg.line(x, y, x + 32, y, colour(place), stroke))
        parts.append(mark(place, x + 16, y))
        parts.append(svg.text(x + 37, y + 4, shown))
        x += wide
    return parts, y - HEIGHT + 14


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = svg.text(16, 18, svg.cut(title, TITLE_CHARACTERS), size=14)
    return svg.document(WIDTH, height, title, [head, *parts], fill=TEXT)


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
