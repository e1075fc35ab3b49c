"""The page of the lives of jobs and changes: tables and diagrams of the transitions in the code."""

from __future__ import annotations

from math import hypot

from skep.ledger.job_state import CHANGE_TRANSITIONS, TRANSITIONS
from tools.reference.markdown import code, page, table

LONG = 300
"""From this length on (pixels) the label of an arrow stands nearer to its start."""
BOX_W, BOX_H, BEND, HEAD = 110.0, 34.0, 26.0, 7.0
JOB_PLACES = {
    "queued": (140, 210),
    "deferred": (140, 330),
    "reserved": (140, 50),
    "bound": (380, 50),
    "running": (620, 50),
    "suspended": (860, 50),
    "stopping": (620, 300),
}
CHANGE_PLACES = {"none": (90, 120), "open": (350, 50), "undoing": (350, 190)}
"""Where the middle of each state is drawn, in pixels."""

Edges = dict[tuple[str, str], list[str]]


def text() -> str:
    """Return the page, with its diagrams in it."""
    changes = [
        [code(before), code(fact), " or ".join(map(code, after))]
        for (before, fact), after in CHANGE_TRANSITIONS.items()
    ]
    jobs = [
        [code(before), code(fact), code(after)] for (before, fact), after in TRANSITIONS.items()
    ]
    head = ["state", "fact", "state after it"]
    return page(
        "Lives of jobs and changes",
        "A fact that is in no row cannot follow. It is an error, with the latest facts about the"
        " job.",
        "## A job",
        "`JobEnded` ends a job from any state. `JobChanged` is in the table where it suspends or"
        " resumes the job.",
        "![States of a job, and the facts between them](job-life.svg)",
        table(head, jobs),
        "## A change of a running job",
        "One change of an attempt is open at a time."
        " [Changes of running jobs](../explanation/changes.md) explains its rounds.",
        "![States of a change, and the facts between them](change-life.svg)",
        table(head, changes),
    )


def job_picture() -> str:
    """Return the picture of a job's states."""
    edges: Edges = {}
    for (before, fact), after in TRANSITIONS.items():
        edges.setdefault((before, after), []).append(fact)
    return _svg(edges, JOB_PLACES, 930, 370)


def change_picture() -> str:
    """Return the picture of a change's states."""
    edges: Edges = {}
    for (before, fact), afters in CHANGE_TRANSITIONS.items():
        for after in afters:
            edges.setdefault((before, after), []).append(fact)
    return _svg(edges, CHANGE_PLACES, 500, 240)


def _svg(edges: Edges, places: dict[str, tuple[int, int]], width: int, height: int) -> str:
    """Return a picture of states and of what leads from one to another, on white."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' font-size="12" font-family="sans-serif" fill="#223">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    arrows = [
        _arrow(places[before], places[after], ", ".join(facts))
        for (before, after), facts in edges.items()
        if before != after
    ]
    parts += [arrow for arrow, _ in arrows]
    parts += [label for _, label in arrows]
    for name, (x, y) in places.items():
        parts.append(
            f'<rect x="{x - BOX_W / 2}" y="{y - BOX_H / 2}" width="{BOX_W}" height="{BOX_H}" rx="6"'
            ' fill="none" stroke="#223"/>'
            f'<text x="{x}" y="{y + 4}" text-anchor="middle">{name}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _arrow(start: tuple[int, int], end: tuple[int, int], label: str) -> tuple[str, str]:
    """Return a bent arrow from the edge of one box to that of another, and its label."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    away = hypot(dx, dy)
    ux, uy = dx / away, dy / away
    gap = min(BOX_W / 2 / max(abs(ux), 1e-9), BOX_H / 2 / max(abs(uy), 1e-9)) + 4
    ax, ay = start[0] + ux * gap, start[1] + uy * gap
    bx, by = end[0] - ux * gap, end[1] - uy * gap
    # To the left of its way: so an arrow and the one back do not lie on each other.
    cx, cy = (ax + bx) / 2 + uy * BEND, (ay + by) / 2 - ux * BEND
    vx, vy = bx - cx, by - cy
    length = hypot(vx, vy)
    vx, vy = vx / length, vy / length
    wings = [
        (bx - HEAD * vx + side * HEAD / 2 * vy, by - HEAD * vy - side * HEAD / 2 * vx)
        for side in (1, -1)
    ]
    tip = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(bx, by), *wings])
    # The normal points to the side of the bend: the label stands there, off the line.
    nx, ny = uy, -ux
    # Long arrows cross others in the middle.
    at = 0.5 if away < LONG else 0.35
    parts = (1 - at) ** 2, 2 * at * (1 - at), at**2
    tx = sum(part * x for part, x in zip(parts, (ax, cx, bx), strict=True)) + nx * 6
    ty = sum(part * y for part, y in zip(parts, (ay, cy, by), strict=True)) + ny * 9 + 3
    anchor = "start" if nx > 0.7 else "end" if nx < -0.7 else "middle"
    return (
        f'<path d="M{ax:.1f},{ay:.1f} Q{cx:.1f},{cy:.1f} {bx:.1f},{by:.1f}" fill="none"'
        f' stroke="#223"/><polygon points="{tip}"/>',
        f'<text x="{tx:.1f}" y="{ty:.1f}" text-anchor="{anchor}" font-size="10" stroke="#fff"'
        f' stroke-width="4" paint-order="stroke">{label}</text>',
    )
