"""The picture of a run: faults above, what clients and jobs got through meanwhile below."""

from __future__ import annotations

from collections.abc import Sequence

from skep_services.svg import FAINT, Scale, axis, box, legend, page, text
from tests.system.chaos.evidence import NS, Evidence
from tests.system.chaos.faults import KINDS, Injected

WIDTH, LEFT, RIGHT, TOP, ROW, PLOT = 1180, 140, 20, 60, 18, 90
FAULT, NOTHING, ACKS, STARTS, WAITING = "#a02020", "#d9b0b0", "#3f7fbf", "#4f9f5f", "#d9a27a"
LEGEND = (("faults", FAULT), ("acks/s", ACKS), ("starts/s", STARTS), ("waits", WAITING))
WIDTH_MIN = 2.0


def svg(
    evidence: Evidence, injected: Sequence[Injected], begin: int, healed: int, title: str
) -> str:
    """Return the picture; `begin` and `healed` (the last fault undone) are monotonic ns."""
    acks = [told.acks[0].at for told in evidence.told if told.acks]
    waits = [(told.sent_at, told.acks[0].at) for told in evidence.told if told.acks]
    starts = [run.began for run in evidence.runs]
    end = max([healed, *acks, *(run.last for run in evidence.runs)])
    x = Scale(begin, end, LEFT, WIDTH - RIGHT)
    kinds = [kind for kind in KINDS if any(each.kind == kind for each in injected)]
    plots = TOP + ROW * len(kinds) + 10
    height = plots + 3 * PLOT + 40
    parts = [*legend(WIDTH - RIGHT, LEGEND), *axis(x, begin, end, TOP - 10, height - 34)]
    parts.append(
        box(x(healed), TOP - 10, max(x(end) - x(healed), 1), height - TOP - 24, ACKS, opacity=0.08)
    )
    parts.append(text(x(healed) + 4, TOP - 14, "healed", fill=FAINT, size=11))
    for index, kind in enumerate(kinds):
        y = TOP + ROW * index
        parts.append(text(8, y + 13, kind, size=12))
        for each in injected:
            if each.kind == kind:
                width = max(x(each.ended or healed) - x(each.began), WIDTH_MIN)
                colour = FAULT if each.done else NOTHING
                parts.append(box(x(each.began), y + 2, width, ROW - 5, colour, opacity=0.8))
    rows = (("acknowledged", acks, ACKS), ("started", starts, STARTS))
    for index, (name, moments, colour) in enumerate(rows):
        parts += _rate(name, moments, x, plots + PLOT * index, colour)
    parts += _waits(waits, x, plots + PLOT * 2)
    return page(WIDTH, height, title, parts)


def _rate(name: str, moments: Sequence[int], x: Scale, y: float, colour: str) -> list[str]:
    """Return one bar per second."""
    seconds = int((x.end - x.begin) / NS) + 1
    counts = [0] * seconds
    for at in moments:
        counts[min(max((at - x.begin) // NS, 0), seconds - 1)] += 1
    most = max([*counts, 1])
    parts = [
        text(8, y + 40, name),
        text(8, y + 56, f"{most} a second at most", size=10, fill=FAINT),
    ]
    for second, count in enumerate(counts):
        high = count / most * (PLOT - 16)
        left, right = x(x.begin + second * NS), x(x.begin + (second + 1) * NS)
        if count:
            parts.append(box(left, y + PLOT - 6 - high, max(right - left - 0.5, 1), high, colour))
    return parts


def _waits(waits: Sequence[tuple[int, int]], x: Scale, y: float) -> list[str]:
    """Return one bar per submission: how long it waited for its acknowledgement."""
    longest = max([until - since for since, until in waits] or [0])
    parts = [
        text(8, y + 40, "ack after"),
        text(8, y + 56, f"{longest / NS:.1f} s at most", size=10, fill=FAINT),
    ]
    for since, until in waits:
        high = max((until - since) / max(longest, 1) * (PLOT - 16), 1)
        parts.append(box(x(since), y + PLOT - 6 - high, WIDTH_MIN, high, WAITING))
    return parts
