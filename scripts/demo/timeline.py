"""The demo's picture: one line per job, from its submission to its end, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT, ROW, TOP = 1080, 150, 30, 46, 76
WAIT, START, RUN, BAD, KILL, TEXT, FAINT = (
    "#d9c27a", "#9db8d9", "#3f7fbf", "#c0504d", "#a02020", "#222", "#999",
)  # fmt: skip
LEGEND = (("waits", WAIT), ("starts", START), ("trains", RUN), ("failed", BAD))


def svg(jobs: Sequence[Any], kills: Sequence[tuple[int, int]], title: str) -> str:
    """Return the picture.

    `jobs` are the gateway's job documents; `kills` are (killed, scheduling again) in wall-clock
    ns, drawn as a band over all jobs.
    """
    begin = min(job["submitted_at"] for job in jobs)
    end = max(job["ended_at"] or job["submitted_at"] for job in jobs)
    scale = (WIDTH - LEFT - RIGHT) / max(end - begin, 1)

    def x(at: int) -> float:
        return float(LEFT + (at - begin) * scale)

    height = TOP + ROW * len(jobs) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="13" fill="{TEXT}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="16" y="28" font-size="18">{escape(title)}</text>',
        *_legend(),
        *_axis(begin, end, x, height),
    ]
    for killed, again in kills:
        width = max(x(again) - x(killed), 2)
        parts.append(f'<rect x="{x(killed):.1f}" y="{TOP - 14}" width="{width:.1f}" '
                     f'height="{height - TOP - 10}" fill="{KILL}" opacity="0.35"/>')  # fmt: skip
        parts.append(f'<text x="{x(again) + 5:.1f}" y="{TOP - 4}" fill="{KILL}">allocator killed, '
                     f"scheduling again after {(again - killed) / 1e9:.2f} s</text>")  # fmt: skip
    for index, job in enumerate(jobs):
        parts += _row(job, TOP + index * ROW + 8, x)
    return "\n".join([*parts, "</svg>"])


def _legend() -> list[str]:
    parts = []
    for index, (name, colour) in enumerate(LEGEND):
        at = WIDTH - 330 + index * 80
        parts.append(f'<rect x="{at}" y="16" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{at + 19}" y="28">{name}</text>')
    return parts


def _axis(begin: int, end: int, x: Any, height: int) -> list[str]:
    parts = []
    step = next(s for s in (1, 2, 5, 10, 20, 60, 600, 6000) if (end - begin) / 1e9 / s <= 14)
    for second in range(0, int((end - begin) / 1e9) + 1, step):
        at = x(begin + second * 1_000_000_000)
        parts.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{height - 34}" '
                     f'stroke="#eee"/>')  # fmt: skip
        parts.append(f'<text x="{at:.1f}" y="{height - 14}" fill="{FAINT}" '
                     f'text-anchor="middle">{second} s</text>')  # fmt: skip
    return parts


def _row(job: Any, y: int, x: Any) -> list[str]:
    parts = [f'<text x="16" y="{y + 17}">{escape(job["name"])}</text>']
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
    parts.append(f'<text x="{at:.1f}" y="{y + 37}" font-size="11" '
                 f'fill="{FAINT}">{escape(label)}</text>')  # fmt: skip
    return parts


def _bar(start: float, end: float, y: int, colour: str) -> str:
    width = max(end - start, 1.5)
    return (f'<rect x="{start:.1f}" y="{y}" width="{width:.1f}" height="24" rx="2" '
            f'fill="{colour}"/>')  # fmt: skip
