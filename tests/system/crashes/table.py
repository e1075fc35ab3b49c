"""The matrix as people read it: a table in Markdown, and a picture. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skep_services.svg import FAINT, box, page, text
from tests.system.crashes.cells import CANCEL, EVERYTHING, MECHANISMS, WARM

Row = Mapping[str, Any]

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "job": ("job", "source", "survivor"),
    "2nd rank": ("successor", "newcomer", "leaver"),
    "agent": ("agent", "source-agent"),
    "2nd agent": ("successor-agent",),
    "runner": ("runner",),
    "allocator": ("allocator",),
    "bus": ("nats",),
    "admission": ("admission",),
    "gateway": ("gateway",),
    "warm process": (WARM,),
    "all at once": (EVERYTHING,),
    "cancelled": (CANCEL,),
}
"""Who dies. In a migration the job is its source and the second rank its successor; of a gang, the
job is a rank that stays, and the second rank the newcomer or the one that leaves."""

COLOURS = {
    "undone": "#cfe0f3",
    "same attempt": "#bfe3c4",
    "moved": "#bfe3c4",
    "restarted": "#f6e2ae",
    "ended": "#e2e2e2",
    "FAILED": "#e9908a",
}
"""By a word in what came of a cell: the first that is there."""
LEFT, TOP, WIDE, HIGH = 190, 92, 106, 21


def short(row: Row) -> str:
    """Return what came of a cell, in a few words."""
    return str(row["came"]) if row["ok"] else f"FAILED: {row['came'] or 'no answer'}"


def markdown(rows: Sequence[Row]) -> str:
    """Return a table: a line for each phase, a column for each kind of victim."""
    known = {(row["mechanism"], row["phase"], row["victim"]): row for row in rows}
    lines = [f"| mechanism | phase | {' | '.join(COLUMNS)} |", f"|{'---|' * (2 + len(COLUMNS))}"]
    for mechanism, phase in _places(rows):
        found = (
            next(
                (known[mechanism, phase, one] for one in some if (mechanism, phase, one) in known),
                None,
            )
            for some in COLUMNS.values()
        )
        words = (short(row) if row is not None else "" for row in found)
        lines.append(f"| {mechanism} | {phase} | {' | '.join(words)} |")
    return "\n".join(lines)


def _places(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return mechanism and phase of each line, in the order of the matrix."""
    there = {(row["mechanism"], row["phase"]) for row in rows}
    return [
        (mechanism, phase)
        for mechanism, about in MECHANISMS.items()
        for phase in about.phases
        if (mechanism, phase) in there
    ]


def svg(rows: Sequence[Row], title: str) -> str:
    """Return the same as a picture."""
    known = {(row["mechanism"], row["phase"], row["victim"]): row for row in rows}
    places = _places(rows)
    parts = _legend()
    for number, column in enumerate(COLUMNS):
        parts.append(text(LEFT + WIDE * (number + 0.5), TOP - 8, column, anchor="middle"))
    before = ""
    for line, (mechanism, phase) in enumerate(places):
        y = TOP + HIGH * line
        if mechanism != before:
            parts.append(box(8, y - 1, LEFT + WIDE * len(COLUMNS) - 8, 1, FAINT))
            parts.append(text(8, y + 15, mechanism, size=12))
        before = mechanism
        parts.append(text(LEFT - 8, y + 15, phase, size=12, anchor="end"))
        for number, some in enumerate(COLUMNS.values()):
            for victim in some:
                row = known.get((mechanism, phase, victim))
                if row is not None:
                    parts += _cell(row, LEFT + WIDE * number, y)
    return page(LEFT + WIDE * len(COLUMNS) + 10, TOP + HIGH * len(places) + 14, title, parts)


def _cell(row: Row, x: float, y: float) -> list[str]:
    words = short(row).replace("same attempt", "same").replace("FAILED: ", "")
    return [
        box(x + 1, y + 1, WIDE - 2, HIGH - 2, _colour(row), radius=3),
        text(x + WIDE / 2, y + 15, words, size=10, anchor="middle"),
    ]


def _colour(row: Row) -> str:
    words = short(row)
    return next((colour for name, colour in COLOURS.items() if name in words), COLOURS["FAILED"])


def _legend() -> list[str]:
    parts, x = [], 16.0
    meanings = {
        "same attempt": "done, the job goes on",
        "undone": "undone, the job goes on",
        "restarted": "goes on from its checkpoint",
        "ended": "cancelled, nothing left",
        "FAILED": "not as stated",
    }
    for name, meaning in meanings.items():
        parts += [box(x, 46, 14, 14, COLOURS[name]), text(x + 20, 58, meaning, size=12)]
        x += 50 + 7 * len(meaning)
    return parts
