"""What stands on the screen of `skep top`, as text made of the gateway's answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from skep_services.cli import render
from skep_services.cli.job_table import job_columns
from skep_services.cli.render import Column, duration, printable

Rows = list[dict[str, Any]]

VIEWS = {"jobs": "Jobs", "nodes": "Nodes", "vcs": "Virtual clusters"}
PANES = {"why": "why", "output": "output of rank 0", "details": "details"}

NAME_COLUMNS = {"NAME": 20, "VC": 10}
"""Down to this a name is not cut before other columns are left out."""

BARS = " ▁▂▃▄▅▆▇█"
FULL, HALF, EMPTY = "█", "▌", "░"

KEYS = (
    ("1", "jobs"),
    ("2", "nodes"),
    ("3", "VCs"),
    ("w", "why"),
    ("l", "logs"),
    ("d", "details"),
    ("s", "sort"),
    ("a", "ended"),
    ("/", "find"),
    ("p", "pane"),
    ("q", "quit"),
    ("r", "turn the order round"),
    ("j k", "down, up"),
)
"""The keys that one line names, as many as it has room for: 80 columns hold all but two."""

ORDERS = ("queue", "newest", "name", "owner", "vc", "gpus", "priority", "rate", "eta", "run")
"""What `s` goes through."""


def matching(rows: Rows, text: str) -> Rows:
    """Return the jobs whose id, name, VC or owner has a text in it."""
    if not text:
        return rows
    wanted = text.casefold()
    keys = ("job", "name", "vc", "owner")
    return [row for row in rows if any(wanted in (row.get(key) or "").casefold() for key in keys)]


def head(rows: Rows, total: int, chosen: str, at: float, error: str, width: int) -> str:
    """Return the first line: how many jobs there are in which state, and how old that is.

    Args:
        rows: The jobs that are listed.
        chosen: How they are chosen and ordered.
        total: How many there are in all.
        at: When they were asked for (seconds since 1970).
        error: Why they may be out of date; empty: they are not.
        width: Columns of the terminal.
    """
    states = Counter(row["state"] for row in rows)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    gpus = sum(_held(row) for row in rows)
    left = f"skep top   {counts or 'no jobs'}   {gpus:g} GPU{'s' * (gpus != 1)} held"
    if total > len(rows):
        left += f"   first {len(rows)} of {total}"
    left += f"   {chosen}" if chosen else ""
    clock = time.strftime("%H:%M:%S", time.localtime(at)) if at else "--:--:--"
    right = f"{clock} live" if not error else f"{clock} out of date"
    if render.columns_of(left) > width - len(right) - 2:
        left = left[: max(0, width - len(right) - 3)] + render.ELLIPSIS
    return left + " " * max(2, width - render.columns_of(left) - len(right)) + right


def _held(row: dict[str, Any]) -> float:
    """Return how many GPUs a job holds, or the tasks of an array."""
    each: float = row.get("gpu_share") or row["gpus"]
    if row["ended_at"]:
        return 0
    if row.get("tasks"):
        return each * int(row["tasks"].get("running", 0))
    return each if row["place"] else 0


def columns(view: str, rows: Rows, now_ns: int, width: int) -> list[Column]:
    """Return the table of a view as wide as the terminal at most.

    Args:
        view: jobs, nodes or vcs.
        rows: What is in it.
        now_ns: The time (ns since 1970).
        width: Columns of the terminal, without what surrounds the table.
    """
    made = {"nodes": _nodes, "vcs": _vcs}.get(view, _jobs)(rows, now_ns)
    if not made:
        return made
    found = render.fit(made, width)
    for column in found:
        column.cells = render.cut(column)
        column.natural = column.width
    return found


def _jobs(rows: Rows, now_ns: int) -> list[Column]:
    """Return the table of `ps`; a name is worth more here than the range of an end."""
    made = job_columns(rows, now_ns)
    for column in made:
        if column.title in {"NAME", "VC"}:
            column.narrow = NAME_COLUMNS[column.title]
        elif column.title == "ENDS":
            column.drop = max(one.drop for one in made) + 1
    return made


def _nodes(rows: Rows, now_ns: int) -> list[Column]:
    heard = [
        "never" if (at := row["last_heard_at"]) is None else duration(max(0, now_ns - at))
        for row in rows
    ]
    return [
        Column("NODE", [row["node"] for row in rows], narrow=10),
        Column("STATE", [row["state"] for row in rows], coloured=True),
        Column("GPUS", [f"{row['gpus'] - row['free']}/{row['gpus']}" for row in rows], right=True),
        Column("HELD", [bar(row["gpus"] - row["free"], row["gpus"], 12) for row in rows], drop=2),
        Column("TYPE", [row["gpu_type"] or "-" for row in rows], drop=3),
        Column("CPUS", [str(row["cpus"]) for row in rows], right=True, drop=5),
        Column("MEMORY", [render.size(row["memory"]) for row in rows], right=True, drop=6),
        Column("HEARD", heard, right=True, drop=4),
        Column("ADDRESS", [row["address"] or "-" for row in rows], drop=8),
        Column("JOBS", [" ".join(row["jobs"]) or "-" for row in rows], narrow=10, drop=1),
    ]


def _vcs(rows: Rows, _: int) -> list[Column]:
    return [
        Column("VC", [row["vc"] for row in rows], narrow=10),
        Column("USED", [f"{row['used']}/{row['gpus']}" for row in rows], right=True),
        Column("OF ITS OWN", [bar(row["used"], row["gpus"], 16) for row in rows], drop=3),
        Column("BORROWED", [str(row["borrowed"]) for row in rows], right=True),
        Column("RUNNING", [str(row["running"]) for row in rows], right=True),
        Column("QUEUED", [str(row["queued"]) for row in rows], right=True),
        Column("SUSPENDED", [str(row["suspended"]) for row in rows], right=True, drop=4),
        Column("POLICY", [row["policy"] for row in rows], drop=2),
        Column("CELLS IN USE", [_cells(row) for row in rows], narrow=12, drop=5),
    ]


def _cells(row: dict[str, Any]) -> str:
    return ", ".join(
        f"{one['bound']}/{one['owned']} {one['chain']}/{one['level']}"
        + (f" ({one['bad']} bad)" if one["bad"] else "")
        for one in row.get("cells") or ()
    )


def bar(part: float, whole: float, width: int) -> str:
    """Return a bar of a width that is filled up to a part of the whole."""
    if whole <= 0:
        return EMPTY * width
    filled = max(0.0, min(1.0, part / whole)) * width
    text = FULL * int(filled) + (HALF if filled % 1 >= 0.5 else "")
    return text + EMPTY * (width - len(text))


def line(values: Iterable[int], width: int) -> str:
    """Return the latest values as a line of small bars, the largest one full."""
    shown = list(values)[-width:]
    top = max(shown, default=0)
    if top <= 0:
        return ""
    return "".join(BARS[max(1, round(value * 8 / top))] for value in shown)


# --- the lower pane -------------------------------------------------------------------------------


def pane(
    kind: str, row: dict[str, Any] | None, about: dict[str, Any], rates: Iterable[int], width: int
) -> list[str]:
    """Return the lines of the lower pane, but for output.

    Args:
        kind: why or details.
        row: The chosen job as it is listed.
        about: What the gateway says of it.
        rates: Its latest rates, in thousandths of a mini-batch per second.
        width: Columns of the pane.
    """
    if row is None:
        return []
    if "error" in about:
        return [printable(str(about["error"]))]
    told = _why(about) if kind == "why" else _details(row, about, time.time_ns())
    return [*_speed(row, rates, width), *told]


def _speed(row: dict[str, Any], rates: Iterable[int], width: int) -> list[str]:
    if not row["rate_milli"]:
        return []
    parts = [f"{render.rate(row['rate_milli'])} mini-batches"]
    if row["total_steps"]:
        parts.append(bar(row["steps"], row["total_steps"], 20))
        parts.append(render.progress(row["steps"], row["total_steps"]))
        if row["eta_s"] is not None:
            parts.append(f"{duration(int(row['eta_s'] * 1_000_000_000))} left")
    told = "  ".join(parts)
    drawn = line(rates, max(10, min(60, width - render.columns_of(told) - 3)))
    return [f"{told}  {drawn}"]


def _why(about: dict[str, Any]) -> list[str]:
    lines = []
    for one in about.get("reasons") or ():
        needs = f": {one['needs']}" if one.get("needs") else ""
        lines.append(printable(f"because {one['text']}{needs} ({one['reason']})"))
    if about.get("would_change"):
        lines.append("what would change it:")
        lines += [printable(f"  {text}") for text in about["would_change"]]
    return lines


def _details(row: dict[str, Any], about: dict[str, Any], now_ns: int) -> list[str]:
    from skep_services.cli.show import details

    told = {**row, **about}
    return [
        printable(f"{label:11} {text}")
        for label, text in details(told, now_ns)
        if text and "spec" in told
    ]
