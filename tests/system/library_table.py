"""The table of `tests.system.libraries` in Markdown: made from rows, and merged into a page.

Rows that are not played again stay in the page as they are, with what was said below of each cell
that is not `yes`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

CELLS = ("seen", "suspend", "release", "checkpoint", "migrate", "resize", "recover")
HEAD = "| script | library | "
NUMBERED = re.compile(r"no \((\d+)\)")
NOTE = re.compile(r"(\d+)\. (.+)")

Row = dict[str, Any]
Key = tuple[str, str]
"""The name of a library without its version, and that of a script."""


def key_of(row: Row) -> Key:
    """Return what tells a row from all others."""
    return row["library"].partition(" ")[0], row["script"]


def table(rows: Sequence[Row]) -> str:
    """Return the rows in Markdown; what is `no` is said below."""
    lines = [f"{HEAD}{' | '.join(CELLS)} |", "|---" * (2 + len(CELLS)) + "|"]
    notes: list[str] = []
    for row in rows:
        words = []
        for name in CELLS:
            told = row.get(name, "no")
            if told != "yes":
                reason = told.removeprefix("no: ")
                if reason not in notes:
                    notes.append(reason)
                told = f"no ({notes.index(reason) + 1})"
            words.append(told)
        lines.append(f"| {row['script']} | {row['library']} | {' | '.join(words)} |")
    return "\n".join([*lines, "", *(f"{n}. {note}" for n, note in enumerate(notes, 1))])


def merged(page: str, rows: Sequence[Row], order: Sequence[Key]) -> str:
    """Return a page whose table has `rows` in place of its own of the same scripts.

    Args:
        page: It has one such table, with its numbered notes below.
        rows: What was played.
        order: The scripts in the order of the table; rows of others are left out.

    Raises:
        ValueError: The page has no table, or a cell whose note is missing.
    """
    lines = page.splitlines()
    begin = next((n for n, line in enumerate(lines) if line.startswith(HEAD)), None)
    if begin is None:
        reason = f"the page has no line that begins with {HEAD!r}"
        raise ValueError(reason)
    end = begin
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    after = end
    notes: dict[str, str] = {}
    while after < len(lines):
        note = NOTE.fullmatch(lines[after])
        if note is None and lines[after]:
            break
        if note is not None:
            notes[note[1]] = note[2]
        after += 1
    kept = [_row(line, notes) for line in lines[begin + 2 : end]]
    found = {key_of(row): row for row in [*kept, *rows]}
    text = table([found[key] for key in order if key in found])
    return "\n".join([*lines[:begin], text, "", *lines[after:], ""])


def _row(line: str, notes: dict[str, str]) -> Row:
    script, library, *cells = (each.strip() for each in line.strip("|").split("|"))
    row: Row = {"script": script, "library": library}
    for name, cell in zip(CELLS, cells, strict=True):
        number = NUMBERED.fullmatch(cell)
        if number is not None and number[1] not in notes:
            reason = f"{script}: the page has no note {number[1]}"
            raise ValueError(reason)
        row[name] = cell if number is None else f"no: {notes[number[1]]}"
    return row
