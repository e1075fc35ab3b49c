"""The demo's picture: one line per job, from its submission to its end, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from skep_services.svg import FAINT, Scale, axis, box, legend, page, text

WIDTH, LEFT, RIGHT, ROW, TOP = 1080, 150, 30, 46, 76
WAIT, START, RUN, BAD, KILL = "#d9c27a", "#9db8d9", "#3f7fbf", "#c0504d", "#a02020"
LEGEND = (("waits", WAIT), ("starts", START), ("trains", RUN), ("failed", BAD))


def svg(jobs: Sequence[Any], kills: Sequence[tuple[int, int]], title: str) -> str:
    """Return the picture.

    `jobs` are the gateway's job documents; `kills` are (killed, scheduling again) in wall-clock
    ns, drawn as a band over all jobs.
    """
    begin = min(job["submitted_at"] for job in jobs)
    end = max(job["ended_at"] or job["submitted_at"] for job in jobs)
    x = Scale(begin, end, LEFT, WIDTH - RIGHT)
    height = TOP + ROW * len(jobs) + 40
    parts = [*legend(WIDTH - 10, LEGEND), *axis(x, begin, end, TOP, height - 34)]
    for killed, again in kills:
        width = max(x(again) - x(killed), 2)
        parts.append(box(x(killed), TOP - 14, width, height - TOP - 10, KILL, opacity=0.35))
        parts.append(
            text(
                x(again) + 5,
                TOP - 4,
                f"allocator killed, scheduling again after {(again - killed) / 1e9:.2f} s",
                fill=KILL,
            )
        )
    for index, job in enumerate(jobs):
        parts += _row(job, TOP + index * ROW + 8, x)
    return page(WIDTH, height, title, parts)


def _row(job: Any, y: int, x: Callable[[int], float]) -> list[str]:
    parts = [text(16, y + 17, job["name"])]
    waits_from = job["submitted_at"]
    for attempt in job["attempts"]:
        bound, ran, over = attempt["bound_at"], attempt["started_at"], attempt["ended_at"]
        first = attempt["first_step_at"] or ran
        parts.append(_bar(x(waits_from), x(bound), y, WAIT))
        parts.append(_bar(x(bound), x(first or over), y, START))
        if first and over:
            good = attempt["outcome"] == "succeeded"
            parts.append(_bar(x(first), x(over), y, RUN if good else BAD))
        waits_from = over or waits_from
    label = f"{job['state']}, {len(job['attempts'])} attempt(s) on {job['place'] or 'no node'}"
    at = min(x(job["submitted_at"]), WIDTH - 260)
    if job["state"] == "refused":
        label = "refused"
        parts.append(_bar(x(job["submitted_at"]), x(job["submitted_at"]) + 4, y, BAD))
    parts.append(text(at, y + 37, label, fill=FAINT, size=11))
    return parts


def _bar(start: float, end: float, y: int, colour: str) -> str:
    return box(start, y, max(end - start, 1.5), 24, colour, radius=2)
