"""What `skep run --array` shows while it waits: how the tasks stand."""

from __future__ import annotations

import sys
import time
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import Client, query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.job_table import array_text, id_of, why_of
from skep_services.cli.jobs import ENDED, POLL_MARGIN_S
from skep_services.cli.options import say
from skep_services.cli.render import Column

LOOK_EVERY_S = 1
SHOWN_MAX = 10
"""Tasks in the table: with its other lines they fit half of a small terminal."""
FAILED_MAX = 20
"""Tasks that failed which are named at the end."""


def check(array: str | None, rank: str) -> None:
    """Refuse what cannot be had of an array as a whole.

    Raises:
        CommandError: The output of a rank is wanted.
    """
    if array is not None and rank != "all":
        text = "--rank chooses the output of one job; `skep logs 'j7[3]'` prints that of a task"
        raise CommandError(exits.USAGE, text)


def watched(client: Client, array: str) -> dict[str, Any]:
    """Show how the tasks of an array stand until all have ended; return its row.

    A terminal gets a table that is drawn again in its place, anything else a line for each change.
    """
    lines, told = 0, ""
    while True:
        path = query(f"/v1/jobs/{quote(array)}", wait="ended", timeout_s=LOOK_EVERY_S)
        row: dict[str, Any] = client.get(path, LOOK_EVERY_S + POLL_MARGIN_S)
        over = row["state"] in ENDED
        if render.is_terminal(sys.stderr):
            text = "" if over else _table(client, row)
            _draw(text, lines)
            lines = text.count("\n")
        elif (line := _line(row)) != told and not over:
            say(line)
            told = line
        if over:
            _failed(client, row)
            return row


def _line(row: dict[str, Any]) -> str:
    """Return how an array stands, in one line."""
    return render.printable(f"{row['job']} {array_text(row)}")


def _table(client: Client, row: dict[str, Any]) -> str:
    """Return what a terminal shows: the counts, and the tasks that are unfinished jobs."""
    path = query("/v1/jobs", array=row["job"], state="active", order="queue", limit=SHOWN_MAX)
    answer = client.get(path)
    rows, now = answer["jobs"], time.time_ns()
    width = render.terminal_width(sys.stderr)
    text = _line(row)[: width - 1] + "\n"
    if rows:
        since = [one["started_at"] or one["submitted_at"] or now for one in rows]
        columns = [
            Column("TASK", [id_of(one) for one in rows]),
            Column("JOB", [str(one["job"]) for one in rows], drop=1),
            Column("STATE", [str(one["state"]) for one in rows], coloured=True),
            Column("SINCE", [render.duration(now - at) for at in since], right=True),
            Column("WHERE", [one["place"] or why_of(one) for one in rows], narrow=8),
        ]
        colour = render.colour_wanted(sys.stderr)
        text += render.table(columns, width - 1, colour=colour) + "\n"
    if (more := answer["total"] - len(rows)) > 0:
        text += f"and {more} more: `skep ps --array {row['job']}`\n"
    return text


def _draw(text: str, lines: int) -> None:
    """Put a text in the place of the one of so many lines that was drawn before."""
    back = f"\x1b[{lines}A\x1b[J" if lines else ""
    sys.stderr.write(back + text)
    sys.stderr.flush()


def _failed(client: Client, row: dict[str, Any]) -> None:
    """Name the tasks that failed."""
    count = row["tasks"]["failed"]
    if count <= 0:
        return
    path = query("/v1/jobs", array=row["job"], state="failed", limit=FAILED_MAX)
    for one in client.get(path)["jobs"]:
        say(render.printable(f"{id_of(one)} failed ({why_of(one) or 'see its log'})"))
    if count > FAILED_MAX:
        say(f"and {count - FAILED_MAX} more")
    say(f"`skep retry {row['job']}` begins the failed tasks anew")
