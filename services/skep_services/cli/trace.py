"""`skep trace`: a job's spans as a waterfall in text.

The axis is linear while that shows every span, and logarithmic otherwise: a scheduler's work takes
milliseconds at the beginning of something that takes hours.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, NamedTuple

from skep_services.cli import exits, render
from skep_services.cli.client import quote
from skep_services.cli.options import Command, client_of, job_argument, print_raw, say

BAR_COLUMNS_MIN = 16
BAR_COLUMNS_MAX = 60
NAME_COLUMNS_MAX = 44
WIDTH_WITHOUT_TERMINAL = 120

GAP_SHARE = 0.02
GAP_NS_MIN = 1_000_000
"""A stretch that no span covers is shown if it is 2 % of the whole and at least 1 ms."""

SMALL_SHARE = 0.5
"""The axis becomes logarithmic when this share of the spans is narrower than one column."""

LOG_UNIT_NS = 100_000
"""The first column of a logarithmic axis is about a tenth of a millisecond."""

SERVICE_COLOURS = ("36", "33", "32", "35", "34", "31")


class Line(NamedTuple):
    """One line of the waterfall. A gap has no service."""

    name: str
    service: str
    start_ns: int
    end_ns: int


def options_trace(parser: ArgumentParser) -> None:
    """Add what `trace` takes."""
    job_argument(parser)
    parser.add_argument(
        "--scale", choices=("auto", "linear", "log"), default="auto", help="the time axis"
    )


def run_trace(arguments: Namespace) -> int:
    """Print where a job's time went.

    Returns:
        The exit code: always 0.
    """
    client = client_of(arguments)
    path = f"/v1/jobs/{quote(arguments.job)}/trace"
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    answer = client.get(path)
    spans = answer["spans"]
    if not spans:
        say(f"no spans of {arguments.job} yet (trace {answer['trace_id']})")
        return exits.OK
    width = render.terminal_width()
    width = WIDTH_WITHOUT_TERMINAL if width == render.UNLIMITED else width
    begin, end = bounds(spans)
    total = render.duration(end - begin)
    print(
        f"trace {answer['trace_id']}  {total}  {render.plural(len(spans), 'span')}"
        f"  from {render.clock_time(begin, date=True)}"
    )
    print(waterfall(spans, width, arguments.scale, colour=render.colour_wanted()))
    return exits.OK


def bounds(spans: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the first start and the last end of spans (ns since 1970).

    Args:
        spans: The spans, one at least.
    """
    return min(one["start_ns"] for one in spans), max(one["end_ns"] for one in spans)


def waterfall(spans: list[dict[str, Any]], width: int, scale: str, *, colour: bool) -> str:
    """Return the waterfall of spans, at most `width` columns wide where that is possible.

    Args:
        spans: The spans, one at least.
        width: Columns of the terminal.
        scale: The axis: `linear`, `log`, or `auto` for the one that shows more.
        colour: Each service's bars have a colour.
    """
    begin, end = bounds(spans)
    lines = with_gaps(in_tree_order(spans), end - begin)
    service_columns = max([len(line.service) for line in lines] + [len("SERVICE")])
    name_columns = min(max([len(line.name) for line in lines] + [len("SPAN")]), NAME_COLUMNS_MAX)
    fixed = service_columns + name_columns + 2 * 9 + 8
    columns = min(max(width - fixed, BAR_COLUMNS_MIN), BAR_COLUMNS_MAX)
    position, log = axis(lines, begin, end, columns, scale)
    palette: dict[str, str] = {}
    for line in lines:
        if line.service:
            palette.setdefault(line.service, SERVICE_COLOURS[len(palette) % len(SERVICE_COLOURS)])
    head = f"{'SERVICE':{service_columns}}  {'SPAN':{name_columns}}  {'START':>9}  {'TOOK':>9}  "
    text = [head + ruler(begin, end, columns, position, log=log)]
    for line in lines:
        name = line.name
        if len(name) > name_columns:
            name = name[: name_columns - 1] + render.ELLIPSIS
        left = position(line.start_ns)
        right = max(position(line.end_ns), left + 1)
        mark = "█" if line.service else "·"
        bar = " " * left + render.paint(
            mark * (right - left), palette.get(line.service, "2"), colour=colour
        )
        text.append(
            f"{line.service:{service_columns}}  {name:{name_columns}}"
            f"  {'+' + render.duration(line.start_ns - begin):>9}"
            f"  {render.duration(line.end_ns - line.start_ns):>9}  {bar}"
        )
    return "\n".join(text)


def in_tree_order(spans: list[dict[str, Any]]) -> list[Line]:
    """Return the spans with children under their parents, each level by start.

    A span whose parent is unknown, or that is its own ancestor, stands at the top.
    """
    ordered = sorted(spans, key=lambda one: (one["start_ns"], -one["end_ns"]))
    known = {one["span_id"] for one in ordered}
    children: dict[str, list[dict[str, Any]]] = {}
    tops = []
    for one in ordered:
        parent = one.get("parent_id") or ""
        if parent in known and parent != one["span_id"]:
            children.setdefault(parent, []).append(one)
        else:
            tops.append(one)
    lines: list[Line] = []
    seen: set[str] = set()
    # Spans in a circle hang under no top: they follow as tops of their own.
    for top in [*tops, *ordered]:
        waiting = [(top, 0)]
        while waiting:
            one, depth = waiting.pop()
            if one["span_id"] in seen:
                continue
            seen.add(one["span_id"])
            name = "  " * min(depth, 8) + render.printable(str(one["name"]))
            service = render.printable(str(one["service"]))
            lines.append(Line(name, service, one["start_ns"], max(one["end_ns"], one["start_ns"])))
            waiting += [(child, depth + 1) for child in reversed(children.get(one["span_id"], []))]
    return lines


def with_gaps(lines: list[Line], total_ns: int) -> list[Line]:
    """Return the lines with one more before each span that begins after nothing was going on.

    Args:
        lines: The lines, one at least.
        total_ns: The time from the first start to the last end, of which a gap is a part (ns).
    """
    gaps: dict[int, Line] = {}
    covered = min(line.start_ns for line in lines)
    threshold = max(GAP_NS_MIN, int(total_ns * GAP_SHARE))
    for index in sorted(range(len(lines)), key=lambda index: lines[index].start_ns):
        line = lines[index]
        if line.start_ns - covered >= threshold:
            gaps[index] = Line("(nothing recorded)", "", covered, line.start_ns)
        covered = max(covered, line.end_ns)
    result = []
    for index, line in enumerate(lines):
        if index in gaps:
            result.append(gaps[index])
        result.append(line)
    return result


def axis(
    lines: list[Line], begin: int, end: int, columns: int, scale: str
) -> tuple[Callable[[int], int], bool]:
    """Return what turns an instant into a column, and whether the axis is logarithmic.

    Args:
        lines: The lines, by whose lengths `auto` decides.
        begin: The first instant (ns since 1970).
        end: The last instant (ns since 1970).
        columns: Columns of the longest bar.
        scale: `linear`, `log` or `auto`.
    """
    total = max(end - begin, 1)
    narrow = sum(1 for line in lines if line.end_ns - line.start_ns < total / columns)
    log = scale == "log" or (scale == "auto" and narrow > SMALL_SHARE * len(lines))

    def linear(at: int) -> int:
        return min((at - begin) * columns // total, columns - 1)

    def logarithmic(at: int) -> int:
        whole = math.log1p(total / LOG_UNIT_NS)
        part = math.log1p((at - begin) / LOG_UNIT_NS)
        return min(int(part / whole * columns), columns - 1)

    return (logarithmic if log else linear), log


def ruler(begin: int, end: int, columns: int, position: Callable[[int], int], *, log: bool) -> str:
    """Return marks of time above the bars.

    Args:
        begin: The first instant (ns since 1970).
        end: The last instant (ns since 1970).
        columns: Columns of the longest bar.
        position: Turns an instant into a column.
        log: The axis is logarithmic.
    """
    total = end - begin
    step = 10**6
    marks = [0]
    if log:
        while step < total:
            marks.append(step)
            step *= 10
    else:
        marks += [total // 4, total // 2, total * 3 // 4]
    text = ""
    for mark in marks:
        column = position(begin + mark)
        if column >= len(text) + bool(text) and column < columns:
            text = text.ljust(column) + "|" + render.duration(mark)
    return text


COMMANDS = {"trace": Command(options_trace, run_trace)}
