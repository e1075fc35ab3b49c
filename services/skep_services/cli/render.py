"""Text for people: tables that fit the terminal, times, rates, colours.

Written for tables of ten thousand rows: work is done per column, not per cell, where it can be.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

GAP = "  "
ELLIPSIS = "…"
UNLIMITED = 1 << 30

COLOURS = {
    "running": "32",
    "succeeded": "32",
    "up": "32",
    "ok": "32",
    "ready": "32",
    "bound": "36",
    "suspended": "36",
    "stopping": "33",
    "starting": "33",
    "silent": "33",
    "drained": "33",
    "warn": "33",
    "backoff": "33",
    "queued": "33",
    "failed": "31",
    "refused": "31",
    "lost": "31",
    "fail": "31",
    "stopped": "31",
    "cancelled": "35",
}
"""A state's colour as an ANSI code. States that are not here keep the terminal's own colour."""


class Column:
    """One column, and what may happen to it when the terminal is narrow.

    Args:
        title: What stands above the cells.
        cells: One text for each row.
        right: The cells are numbers made by this program, and stand on the right.
        narrow: The width down to which cells may be cut (terminal columns); 0: never.
        drop: Columns are left out by descending `drop`; 0: never.
        coloured: The cells are states.
    """

    def __init__(
        self,
        title: str,
        cells: list[str],
        *,
        right: bool = False,
        narrow: int = 0,
        drop: int = 0,
        coloured: bool = False,
    ) -> None:
        self.title = title
        self.cells = cells
        self.right = right
        self.narrow = narrow
        self.drop = drop
        self.coloured = coloured
        self.ascii = True
        # Columns on the right are numbers, made by this program.
        if not right and not (text := "".join(cells)).isprintable():
            self.cells = cells = [printable(cell) for cell in cells]
            self.ascii = False
        elif not right:
            self.ascii = text.isascii()
        wide = max(map(len if self.ascii else columns_of, cells), default=0)
        self.width = self.natural = max(wide, len(title))


def table(columns: Sequence[Column], width: int, *, colour: bool) -> str:
    """Return the columns as text of at most `width` columns, with a title line.

    Args:
        columns: The columns; their `width` becomes what they get.
        width: Columns of the terminal. The text is wider where columns can neither be cut nor left
            out.
        colour: Cells that are states get their colours.
    """
    shown = fit(list(columns), width)
    padded: list[list[str]] = []
    formats: list[str] = []
    for position, column in enumerate(shown):
        last = position == len(shown) - 1
        cells = [column.title, *cut(column)]
        if column.coloured and colour:
            cells = _painted(cells, column.width)
            formats.append("%s")
        elif not column.ascii and not (last and not column.right):
            cells = [_pad(cell, column.width, right=column.right) for cell in cells]
            formats.append("%s")
        elif last and not column.right:
            formats.append("%s")
        else:
            formats.append(f"%{'' if column.right else '-'}{column.width}s")
        padded.append(cells)
    line = GAP.join(formats)
    return "\n".join([(line % row).rstrip() for row in zip(*padded, strict=True)])


def fit(columns: list[Column], width: int) -> list[Column]:
    """Return the columns that a width has room for; their `width` becomes what they get.

    Args:
        columns: The columns.
        width: Columns of the terminal.
    """

    def excess() -> int:
        used = sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)
        return used - width

    # What says nothing makes room first.
    vacant = [column for column in columns if column.drop and set(column.cells) <= {"", "-"}]
    for column in sorted(vacant, key=lambda one: -one.drop):
        if excess() > 0:
            columns.remove(column)
    while (over := excess()) > 0:
        shrinkable = [
            column for column in columns if column.narrow and column.width > column.narrow
        ]
        if shrinkable:
            widest = max(shrinkable, key=lambda column: column.width)
            # Down to the next widest at most, so that several long columns share the loss.
            others = sorted({c.width for c in shrinkable if c.width < widest.width})
            floor = max([widest.narrow, *others[-1:]])
            widest.width = max(floor, widest.width - over)
            continue
        droppable = [column for column in columns if column.drop]
        if not droppable:
            break
        columns.remove(max(droppable, key=lambda column: column.drop))
    # What was cut before another column was left out has room again.
    for column in columns:
        if column.width < column.natural and (spare := -excess()) > 0:
            column.width = min(column.natural, column.width + spare)
    return columns


def cut(column: Column) -> list[str]:
    """Return the cells of a column, cut to its width."""
    width = column.width
    if width == column.natural:
        return column.cells
    if not column.ascii:
        return [_cut_wide(cell, width) for cell in column.cells]
    return [cell if len(cell) <= width else cell[: width - 1] + ELLIPSIS for cell in column.cells]


def _cut_wide(cell: str, width: int) -> str:
    if columns_of(cell) <= width:
        return cell
    used = 0
    for position, character in enumerate(cell):
        used += columns_of(character)
        if used > width - 1:
            return cell[:position] + ELLIPSIS
    return cell


def _pad(cell: str, width: int, *, right: bool) -> str:
    space = " " * (width - columns_of(cell))
    return space + cell if right else cell + space


def _painted(cells: list[str], width: int) -> list[str]:
    done: dict[str, str] = {}
    for cell in dict.fromkeys(cells):
        code = COLOURS.get(cell.split(" ", 1)[0])
        text = cell.ljust(width)
        done[cell] = f"\x1b[{code}m{text}\x1b[0m" if code else text
    return [done[cell] for cell in cells]


def columns_of(text: str) -> int:
    """Return how many terminal columns a text takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def printable(text: str) -> str:
    """Return `text` on one line, without characters that would steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\n\t" else "�" for c in text)


def terminal_width(stream: Any = None) -> int:
    """Return the columns of the terminal behind standard output; UNLIMITED when there is none.

    Args:
        stream: Another stream in place of standard output; None: that one.
    """
    given = os.environ.get("COLUMNS", "")
    stream = stream or sys.stdout
    if not is_terminal(stream):
        return UNLIMITED
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def is_terminal(stream: Any) -> bool:
    """Return whether a person looks at `stream`."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def colour_wanted(stream: Any = None) -> bool:
    """Return whether to colour what goes to `stream` (see no-color.org).

    Args:
        stream: Where it goes; None: standard output.
    """
    stream = stream or sys.stdout
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal(stream)


def paint(text: str, code: str, *, colour: bool) -> str:
    """Return `text` in an ANSI colour, if colours are wanted.

    Args:
        text: The text.
        code: The number of the colour, such as `31`.
        colour: Colours are wanted.
    """
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def state_text(state: str, *, colour: bool) -> str:
    """Return a state in its colour."""
    code = COLOURS.get(state)
    return paint(state, code, colour=colour) if code else state


def show_table(columns: Sequence[Column]) -> None:
    """Print a table to standard output as wide as it is."""
    print(table(columns, terminal_width(), colour=colour_wanted()))


# --- quantities -----------------------------------------------------------------------------------


def duration(length_ns: int | None) -> str:
    """Return a length of time in two units at most: `340ms`, `8.2s`, `3m12s`, `2h05m`, `3d04h`.

    Args:
        length_ns: The length (ns); None: it is not known, and `-` is returned.
    """
    if length_ns is None:
        return "-"
    if length_ns < 60_000_000_000:
        if length_ns < 0:
            return "0s"
        if length_ns < 1_000_000:
            return f"{length_ns / 1_000_000:.1f}ms" if length_ns else "0s"
        if length_ns < 1_000_000_000:
            return f"{length_ns // 1_000_000}ms"
        if length_ns < 10_000_000_000:
            return f"{length_ns // 100_000_000 / 10}s"
        return f"{length_ns // 1_000_000_000}s"
    length_s = length_ns // 1_000_000_000
    if length_s < 3600:
        return f"{length_s // 60}m{length_s % 60:02d}s"
    if length_s < 86400:
        return f"{length_s // 3600}h{length_s % 3600 // 60:02d}m"
    return f"{length_s // 86400}d{length_s % 86400 // 3600:02d}h"


def clock_time(at_ns: int | None, *, date: bool = False) -> str:
    """Return a wall-clock instant in local time: `14:03:07.250`, or with its date.

    Args:
        at_ns: The instant (ns since 1970); None: it is not known, and `-` is returned.
        date: With its date.
    """
    if at_ns is None:
        return "-"
    parts = time.localtime(at_ns // 1_000_000_000)
    text = f"{time.strftime('%H:%M:%S', parts)}.{at_ns // 1_000_000 % 1000:03d}"
    return f"{time.strftime('%Y-%m-%d', parts)} {text}" if date else text


def instant(at_ns: int, now_ns: int) -> str:
    """Return when something will be, as exactly as its distance is worth: `18:40`, `Thu 18:40`.

    Args:
        at_ns: The instant (ns since 1970).
        now_ns: The time.
    """
    parts, away_s = time.localtime(at_ns // 1_000_000_000), (at_ns - now_ns) / 1_000_000_000
    if abs(away_s) < 600:
        return time.strftime("%H:%M:%S", parts)
    today = parts[:3] == time.localtime(now_ns // 1_000_000_000)[:3]
    if today or abs(away_s) < 12 * 3600:
        return time.strftime("%H:%M", parts)
    if abs(away_s) < 6 * 86_400:
        return time.strftime("%a %H:%M", parts)
    return time.strftime("%b %d" if abs(away_s) < 300 * 86_400 else "%Y-%m", parts)


def between(times: dict[str, int] | None, now_ns: int) -> str:
    """Return an estimated instant with its range: `18:40 (18:31-19:02)`.

    Ends of the range without a day are of the day of the instant, if that has one.

    Args:
        times: P10, P50 and P90 (ns since 1970); None: not known, and `-` is returned.
        now_ns: The time.
    """
    if times is None:
        return "-"
    low, middle, high = (instant(times[name], now_ns) for name in ("p10", "p50", "p90"))
    day = middle.split(" ")[:-1]
    if day and ":" in low and " " not in low:
        low = time.strftime("%a ", time.localtime(times["p10"] // 1_000_000_000)) + low
    low, high = (
        each.split(" ")[-1] if each.split(" ")[:-1] == day else each for each in (low, high)
    )
    return f"{middle} ({low}-{high})"


def rate(rate_milli: int | None) -> str:
    """Return mini-batches per second from thousandths of them.

    Args:
        rate_milli: Thousandths of a mini-batch per second; None and 0: not known.
    """
    if not rate_milli:
        return "-"
    if rate_milli >= 100_000:
        return f"{rate_milli // 1000}/s"
    if rate_milli >= 1_000:
        return f"{rate_milli // 100 / 10}/s"
    return f"{rate_milli / 1000:.2f}/s"


def progress(steps: int | None, total: int | None) -> str:
    """Return the mini-batches done, of how many if that is known.

    Args:
        steps: Mini-batches that are done; None and 0: none.
        total: Mini-batches of the whole job; None and 0: not known.
    """
    if not steps and not total:
        return "-"
    if not total:
        return str(steps or 0)
    return f"{steps or 0}/{total}"


def size(count: int | None) -> str:
    """Return an amount of memory: `512MiB`, `15.5GiB`.

    Args:
        count: Bytes; None and 0: not known.
    """
    if not count:
        return "-"
    for unit, step in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= step:
            amount = count * 10 // step / 10
            return f"{amount:.0f}{unit}" if amount >= 100 or amount % 1 == 0 else f"{amount}{unit}"
    return f"{count}B"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 job`, `3 jobs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
