"""The table of jobs: its columns by name, those of `ps`, and those that `-o` asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.render import Column

Rows = list[dict[str, Any]]
SECOND_NS = 1_000_000_000
TEXT_BY_SECOND_NS = 10 * SECOND_NS
"""From this age on, `render.duration` tells nothing of the parts of a second."""
ALL = "wide"
"""What stands for every column."""


class Kind(NamedTuple):
    """One column: what is in it, and how it is drawn (see `Column`).

    `narrow` and `drop` say what happens to it on a narrow terminal in the usual table.
    """

    cells: Callable[[Rows, int], list[str]]
    meaning: str
    right: bool = False
    narrow: int = 0
    drop: int = 0
    coloured: bool = False


def _text(key: str) -> Callable[[Rows, int], list[str]]:
    return lambda rows, _: [str(row.get(key) or "-") for row in rows]


def _plain(key: str) -> Callable[[Rows, int], list[str]]:
    return lambda rows, _: [row[key] for row in rows]


def _number(key: str) -> Callable[[Rows, int], list[str]]:
    return lambda rows, _: [str(row[key]) for row in rows]


def _gpus(rows: Rows, _: int) -> list[str]:
    return [f"{share:g}" if (share := row.get("gpu_share")) else f"{row['gpus']}" for row in rows]


def _clock(key: str) -> Callable[[Rows, int], list[str]]:
    return lambda rows, _: [render.clock_time(row[key], date=True) for row in rows]


def _ages(rows: Rows, now_ns: int) -> list[str]:
    duration = render.duration
    # A call costs more than everything else here, so what most rows lack is not asked for, and
    # what many rows have is asked for once: from ten seconds on a whole second has one text.
    ages = [now_ns - at if (at := row["submitted_at"]) else None for row in rows]
    seconds = {age // SECOND_NS for age in ages if age and age >= TEXT_BY_SECOND_NS}
    texts = {second: duration(second * SECOND_NS) for second in seconds}
    return ["-" if age is None else texts.get(age // SECOND_NS) or duration(age) for age in ages]


def _runs(rows: Rows, now_ns: int) -> list[str]:
    duration = render.duration
    return [
        duration((row["ended_at"] or now_ns) - at) if (at := row["started_at"]) else "-"
        for row in rows
    ]


def _rates(rows: Rows, _: int) -> list[str]:
    rate = render.rate
    return [rate(speed) if (speed := row["rate_milli"]) else "-" for row in rows]


def _steps(rows: Rows, _: int) -> list[str]:
    progress = render.progress
    return [
        progress(row["steps"], total) if (total := row["total_steps"]) else str(row["steps"] or "-")
        for row in rows
    ]


def _etas(rows: Rows, _: int) -> list[str]:
    return ["-" if (left := row["eta_s"]) is None else eta(left) for row in rows]


def _ends(rows: Rows, now_ns: int) -> list[str]:
    between = render.between
    return [between(one["end"], now_ns) if (one := row.get("estimate")) else "-" for row in rows]


def _starts(rows: Rows, now_ns: int) -> list[str]:
    between = render.between
    return [between(one["start"], now_ns) if (one := row.get("estimate")) else "-" for row in rows]


def _places(rows: Rows, _: int) -> list[str]:
    return [place(row) if row.get("beside") else row["place"] or "-" for row in rows]


def _whys(rows: Rows, _: int) -> list[str]:
    return [
        array_text(row)
        if row.get("tasks")
        else why(row["state"], row["why"], row["needs"])
        if row["needs"] or row["state"] == row["why"]
        else row["why"] or ""
        for row in rows
    ]


def _ids(rows: Rows, _: int) -> list[str]:
    return [row.get("task") or row["job"] for row in rows]


def _labels(rows: Rows, _: int) -> list[str]:
    return [
        ",".join([f"{key}={value}" for key, value in labels.items()])
        if (labels := row.get("labels"))
        else "-"
        for row in rows
    ]


def _percents(rows: Rows, _: int) -> list[str]:
    return [
        f"{min(100, 100 * row['steps'] // total)}%" if (total := row["total_steps"]) else "-"
        for row in rows
    ]


COLUMNS: dict[str, Kind] = {
    "job": Kind(_ids, "its id, or that of its task"),
    "name": Kind(_plain("name"), "its name", narrow=8),
    "vc": Kind(_plain("vc"), "its virtual cluster", narrow=4, drop=3),
    "owner": Kind(_text("owner"), "the person that submitted it", narrow=6, drop=4),
    "state": Kind(_plain("state"), "its state", coloured=True),
    "gpus": Kind(_gpus, "GPUs of all its workers", right=True, drop=4),
    "priority": Kind(_number("priority"), "its priority", right=True, drop=8),
    "age": Kind(_ages, "time since its submission", right=True, drop=6),
    "run": Kind(_runs, "time since its start", right=True, drop=5),
    "try": Kind(_text("attempt"), "the number of its attempt", right=True, drop=9),
    "rate": Kind(_rates, "mini-batches a second", right=True, drop=2),
    "steps": Kind(_steps, "mini-batches done, of how many", right=True, drop=7),
    "eta": Kind(_etas, "time to its end", right=True, drop=1),
    "ends": Kind(_ends, "when it ends, and the range", drop=5),
    "place": Kind(_places, "where it runs, and beside which jobs", narrow=12, drop=10),
    "why": Kind(_whys, "the reason behind its state", narrow=14, drop=11),
    "labels": Kind(_labels, "its labels", narrow=10, drop=12),
    "class": Kind(_plain("service_class"), "its service class", drop=12),
    "workers": Kind(_number("workers"), "its workers", right=True, drop=12),
    "type": Kind(_text("gpu_type"), "the type of GPU that it asks for", drop=12),
    "done": Kind(_percents, "the part of its mini-batches that is done", right=True, drop=12),
    "starts": Kind(_starts, "when it starts, and the range", drop=12),
    "submitted": Kind(_clock("submitted_at"), "when it was submitted", drop=12),
    "started": Kind(_clock("started_at"), "when it started", drop=12),
    "ended": Kind(_clock("ended_at"), "when it ended", drop=12),
}
"""Every column by its name."""

TITLES = {"priority": "PRI"}
"""What stands above columns whose name is too long for that."""

STATES = (
    "active",
    "ended",
    "all",
    "submitted",
    "queued",
    "bound",
    "running",
    "suspended",
    "stopping",
    "succeeded",
    "failed",
    "cancelled",
    "refused",
)
"""What `--state` takes."""

USUAL = tuple(COLUMNS)[: tuple(COLUMNS).index("labels")]


def job_columns(rows: Rows, now_ns: int) -> list[Column]:
    """Return the usual table of jobs, one list per column.

    Args:
        rows: The jobs as the gateway lists them.
        now_ns: The time (ns since 1970), to which jobs that have not ended are counted.
    """
    # A cluster without people has no such column.
    owned = any(row.get("owner") for row in rows)
    names = [name for name in USUAL if name != "owner" or owned]
    return [_column(name, rows, now_ns, kept=False) for name in names]


def chosen(text: str) -> list[str]:
    """Return the columns that `-o` names: `job,state`, `+labels` beside the usual ones, `wide`.

    Args:
        text: What follows `-o`.

    Raises:
        CommandError: There is no such column.
    """
    if text == ALL:
        return list(COLUMNS)
    names = [*USUAL, *text[1:].split(",")] if text.startswith("+") else text.split(",")
    for name in names:
        if name not in COLUMNS:
            raise CommandError(exits.USAGE, f"-o: no column {name[:40]!r}: {_hint(name)}")
    return list(dict.fromkeys(names))


def _hint(name: str) -> str:
    import difflib

    if name in {"json", "yaml", "jsonpath"}:
        return "`--json` prints everything as JSON"
    known = [*COLUMNS, ALL]
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def chosen_columns(names: list[str], rows: Rows, now_ns: int) -> list[Column]:
    """Return columns that were asked for: on a narrow terminal they may be cut, not left out.

    Args:
        names: Their names.
        rows: The jobs as the gateway lists them.
        now_ns: The time (ns since 1970).
    """
    return [_column(name, rows, now_ns, kept=True) for name in names]


def _column(name: str, rows: Rows, now_ns: int, *, kept: bool) -> Column:
    kind = COLUMNS[name]
    return Column(
        TITLES.get(name, name.upper()),
        kind.cells(rows, now_ns),
        right=kind.right,
        narrow=kind.narrow,
        drop=0 if kept else kind.drop,
        coloured=kind.coloured,
    )


def place(row: dict[str, Any]) -> str:
    """Return where a job runs, and with which jobs it shares its GPUs: `node-1:0 with j5`."""
    others = " ".join(row.get("beside") or ())
    return (row["place"] or "-") + (f" with {others}" if others else "")


def eta(left_s: float | None) -> str:
    """Return the predicted time to the end, if there is a prediction.

    Args:
        left_s: The time that is left (seconds); None: no prediction.
    """
    return "-" if left_s is None else render.duration(int(left_s * 1_000_000_000))


def ends_of(row: dict[str, Any], now_ns: int) -> str:
    """Return when a job ends, five times in ten and from one to nine times in ten.

    Args:
        row: The job as the gateway lists it.
        now_ns: The time (ns since 1970).
    """
    estimate = row.get("estimate")
    return render.between(estimate["end"], now_ns) if estimate else "-"


def why(state: str, reason: str | None, needs: str) -> str:
    """Return the reason behind a job's state, and what it waits for.

    Args:
        state: The state.
        reason: The code of the reason; None: there is none.
        needs: What the job waits for; empty: nothing that has a name.

    Returns:
        One line; empty: the state says it all.
    """
    if not reason or state == reason:
        return ""
    return f"{reason}: {needs}" if needs else reason


def why_of(row: dict[str, Any]) -> str:
    """Return the same for a job's row."""
    return why(row["state"], row["why"], row["needs"])


def id_of(row: dict[str, Any]) -> str:
    """Return what a job is called: a task by its array and index, such as `j7[3]`."""
    return str(row.get("task") or row["job"])


AS_USUAL = ("waits-behind", "running", "succeeded", "failed", "cancelled")
"""Reasons of arrays that the counts of their tasks tell better."""


def array_text(row: dict[str, Any]) -> str:
    """Return how the tasks of an array stand, and what it waits for if that is not its turn."""
    said = why_of(row) if row["why"] not in AS_USUAL else ""
    return f"{said}; {tasks_text(row['tasks'])}" if said else tasks_text(row["tasks"])


def tasks_text(counts: dict[str, int]) -> str:
    """Return how the tasks of an array stand: `100 tasks: 8 running, 92 to come`.

    Args:
        counts: The counts as the gateway has them.
    """
    kinds = ("running", "queued", "succeeded", "failed", "cancelled")
    parts = [f"{counts[kind]} {kind}" for kind in kinds if counts[kind] > 0]
    left = counts["total"] - sum(counts[kind] for kind in kinds)
    if left > 0:
        parts.append(f"{left} to come")
    return f"{counts['total']} tasks: {', '.join(parts)}"
