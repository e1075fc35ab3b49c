"""The picture of a report: a bar for each line, divided into what became of its GPU hours."""

from __future__ import annotations

from typing import Any

from skep_services import svg

WIDTH, LEFT, RIGHT, TOP = 980, 190, 120, 70
ROW, GAP = 18, 6
COLUMNS_HEIGHT = 320
LINES_SHOWN = 60
"""Bars; of more lines those with the most GPU hours are shown, and the others are one."""
DAYS_SHOWN = 400
PARTS = (("useful", "#2a9d8f"), ("idle", "#d7dde0"), ("cancelled", "#e9c46a"), ("lost", "#e76f51"))
HOUR_NS = 3600 * 1_000_000_000
NAME_MAX = 26
TICKS = 5
LABELS_MAX = 16


def picture(found: dict[str, Any]) -> str:
    """Return the picture.

    Args:
        found: The report as the gateway answers it.
    """
    total = found["total"]
    title = (
        f"{found['first_day']} to {found['last_day']}: {_hours(total['held_gpu_ns'])} GPU hours, "
        f"{_percent(total)} useful"
    )
    if found["by"] == "day":
        return _columns(title, found["lines"][-DAYS_SHOWN:])
    return _rows(title, found)


def _rows(title: str, found: dict[str, Any]) -> str:
    lines = sorted(found["lines"], key=lambda line: -line["held_gpu_ns"])
    shown = [(_name(line), line) for line in lines[:LINES_SHOWN]]
    if len(lines) > LINES_SHOWN:
        rest = lines[LINES_SHOWN:]
        keys = ["held_gpu_ns", *(f"{part}_gpu_ns" for part, _ in PARTS)]
        shown.append(
            (f"{len(rest)} others", {key: sum(each[key] for each in rest) for key in keys})
        )
    most = max([1, *(line["held_gpu_ns"] for _, line in shown)])
    height = TOP + (ROW + GAP) * len(shown) + 24
    width = WIDTH - LEFT - RIGHT
    parts = _legend()
    for number, (name, line) in enumerate(shown):
        top = TOP + number * (ROW + GAP)
        parts.append(svg.text(LEFT - 8, top + 14, svg.cut(name, NAME_MAX), anchor="end"))
        at = float(LEFT)
        for part, colour in PARTS:
            long = width * line[f"{part}_gpu_ns"] / most
            if long:
                hint = f"{name}: {_hours(line[f'{part}_gpu_ns'])} GPU hours {part}"
                parts.append(svg.box(at, top, long, ROW, colour, hint=hint))
            at += long
        words = f"{_hours(line['held_gpu_ns'])} h, {_percent(line)}"
        parts.append(svg.text(at + 6, top + 14, words, fill=svg.FAINT))
    return svg.page(WIDTH, height, title, parts)


def _columns(title: str, lines: list[dict[str, Any]]) -> str:
    most = max([1, *(line["held_gpu_ns"] for line in lines)])
    left, width = 80, WIDTH - 110
    bottom, wide = TOP + COLUMNS_HEIGHT, width / max(1, len(lines))
    parts = _legend()
    for tick in range(TICKS + 1):
        y = bottom - COLUMNS_HEIGHT * tick / TICKS
        parts.append(svg.line(left, y, left + width, y, svg.GRID))
        words = _hours(most * tick // TICKS)
        parts.append(svg.text(left - 6, y + 4, words, fill=svg.FAINT, anchor="end"))
    every = -(-len(lines) // LABELS_MAX)
    for number, line in enumerate(lines):
        x, y = left + number * wide, float(bottom)
        for part, colour in PARTS:
            high = COLUMNS_HEIGHT * line[f"{part}_gpu_ns"] / most
            y -= high
            if high:
                hint = f"{line['name']}: {_hours(line[f'{part}_gpu_ns'])} GPU hours {part}"
                parts.append(svg.box(x, y, max(1.0, wide - 2), high, colour, hint=hint))
        if number % every == 0:
            parts.append(
                svg.text(
                    x + wide / 2, bottom + 18, line["name"][5:], fill=svg.FAINT, anchor="middle"
                )
            )
    return svg.page(WIDTH, bottom + 36, title, parts)


def _legend() -> list[str]:
    parts, at = [], LEFT
    for name, colour in PARTS:
        parts += [svg.box(at, 42, 14, 12, colour), svg.text(at + 20, 53, name)]
        at += 110
    return parts


def _name(line: dict[str, Any]) -> str:
    return f"{line['vc']} {line['name'] or '-'}".strip()


def _hours(ns: int) -> str:
    return f"{ns / HOUR_NS:,.0f}" if ns >= 10 * HOUR_NS or not ns else f"{ns / HOUR_NS:.2f}"


def _percent(line: dict[str, Any]) -> str:
    held = line["held_gpu_ns"]
    return f"{100 * line['useful_gpu_ns'] / held:.0f} %" if held else "-"
