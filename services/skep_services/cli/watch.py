"""`skep ps -w`: the table kept up to date on a terminal, or a line for each change."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import Client, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.news import News
from skep_services.cli.render import Column

ASK_EVERY_S = 1.0
"""The list is asked for at most so often, however much happens."""
RATES_EVERY_S = 10.0
"""Rates and progress make no events: the list is asked for at least so often."""
TICK_S = 1.0
"""How often ages and run times go on."""

HOME, TO_LINE_END, TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"
NEW_SCREEN, OLD_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The other screen of the terminal, without a cursor; and back to what was there."""

CHANGES = ("state", "attempt", "place", "why", "needs", "gpus", "priority")
"""What makes a line of its own where output is no terminal."""

Rows = list[dict[str, Any]]


def watch(
    client: Client,
    news: News,
    path: str,
    columns: Callable[[Rows, int], list[Column]],
    told: Callable[[Rows], None] | None = None,
) -> None:
    """Show jobs until the process is interrupted.

    Args:
        client: The gateway.
        news: Says when something happened.
        path: The listing.
        columns: The table of rows at a time (ns since 1970).
        told: Takes the rows that changed, instead of printing them; None: they are printed.
    """
    if told is None and render.is_terminal(sys.stdout):
        _on_screen(client, news, path, columns)
    else:
        _line_by_line(client, news, path, told or Printed(columns))


def _on_screen(
    client: Client, news: News, path: str, columns: Callable[[Rows, int], list[Column]]
) -> None:
    sys.stdout.write(NEW_SCREEN)
    try:
        answer: dict[str, Any] = {"jobs": []}
        asked_at, stale = -RATES_EVERY_S, True
        while True:
            now = time.monotonic()
            since_s = now - asked_at
            if (stale and since_s >= ASK_EVERY_S) or since_s >= RATES_EVERY_S:
                answer, asked_at, stale = client.get(path), now, False
            sys.stdout.write(_screen(answer, columns))
            sys.stdout.flush()
            stale = news.wait(TICK_S) or stale
            if stale and (left_s := ASK_EVERY_S - (time.monotonic() - asked_at)) > 0:
                time.sleep(left_s)
    finally:
        sys.stdout.write(OLD_SCREEN)
        sys.stdout.flush()


def _screen(answer: dict[str, Any], columns: Callable[[Rows, int], list[Column]]) -> str:
    rows, height, colour = answer["jobs"], _height(), render.colour_wanted()
    head = f"{time.strftime('%H:%M:%S')}  {_counts(rows)}"
    lines = [render.paint(head, "1", colour=colour)]
    room = max(1, height - 3)
    if rows:
        table = render.table(
            columns(rows[:room], time.time_ns()), render.terminal_width(), colour=colour
        )
        lines += table.split("\n")
    if len(rows) > room:
        lines.append(f"... and {len(rows) - room} more")
    body = "\n".join(line + TO_LINE_END for line in lines[:height])
    return HOME + body + TO_SCREEN_END


def _counts(rows: Rows) -> str:
    from collections import Counter

    states = Counter(row["state"] for row in rows)
    return ", ".join(f"{count} {state}" for state, count in states.most_common()) or "no jobs"


def _height() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or 24
    except (OSError, ValueError):
        return 24


class Printed:
    """Prints rows that changed, the title before the first ones."""

    def __init__(self, columns: Callable[[Rows, int], list[Column]]) -> None:
        self._columns = columns
        self._first = True

    def __call__(self, rows: Rows) -> None:
        text = render.table(self._columns(rows, time.time_ns()), render.UNLIMITED, colour=False)
        sys.stdout.write((text if self._first else text.partition("\n")[2]) + "\n")
        sys.stdout.flush()
        self._first = False


def _line_by_line(client: Client, news: News, path: str, told: Callable[[Rows], None]) -> None:
    known: dict[str, tuple[Any, ...]] = {}
    while True:
        if not news.wait(RATES_EVERY_S):
            continue  # Nothing happened, and what makes no event makes no line.
        rows: Rows = client.get(path)["jobs"]
        there = {row["job"] for row in rows}
        for job in [job for job in known if job not in there]:
            del known[job]
            if (row := _left(client, job)) is not None:
                rows.append(row)
        changed = [row for row in rows if known.get(row["job"]) != _what(row)]
        known |= {row["job"]: _what(row) for row in changed if row["job"] in there}
        if changed:
            told(changed)
        time.sleep(ASK_EVERY_S)


def _what(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in CHANGES)


def _left(client: Client, job: str) -> dict[str, Any] | None:
    """Return a job that is in the list no more: it has ended, most likely.

    Raises:
        CommandError: The gateway cannot be reached.
    """
    try:
        found: dict[str, Any] = client.get(f"/v1/jobs/{quote(job)}")
    except CommandError as error:
        if error.code == exits.NOT_FOUND:
            return None
        raise
    return found
