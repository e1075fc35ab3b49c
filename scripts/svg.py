"""The few pieces of SVG that pictures over time are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

TEXT, FAINT, GRID = "#222", "#999", "#eee"
NS = 1_000_000_000
MARKS_MAX = 14
STEPS_S = (1, 2, 5, 10, 20, 60, 600, 6000, 60_000)


class Scale:
    """Where a moment (ns) lies: `begin` at x = `left`, `end` at x = `right`."""

    def __init__(self, begin: int, end: int, left: float, right: float) -> None:
        """Take the bounds."""
        self.begin, self.end, self.left = begin, end, left
        self._per_ns = (right - left) / max(end - begin, 1)

    def __call__(self, at: int) -> float:
        """Return the x of a moment."""
        return float(self.left + (at - self.begin) * self._per_ns)


def page(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """Return a whole picture with a title."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="13" fill="{TEXT}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(16, 28, title, size=18),
        *parts,
        "</svg>",
    ])  # fmt: skip


def axis(x: Callable[[int], float], begin: int, end: int, top: float, bottom: float) -> list[str]:
    """Return lines and labels for round seconds since `begin`, over all of the height."""
    parts = []
    length_s = (end - begin) / NS
    step = next((s for s in STEPS_S if length_s / s <= MARKS_MAX), STEPS_S[-1])
    for second in range(0, int(length_s) + 1, step):
        at = x(begin + second * NS)
        parts.append(f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{bottom}" '
                     f'stroke="{GRID}"/>')  # fmt: skip
        parts.append(text(at, bottom + 20, f"{second} s", fill=FAINT, anchor="middle"))
    return parts


def box(
    x: float, y: float, width: float, height: float, fill: str, radius: int = 0, opacity: float = 1
) -> str:
    """Return a rectangle."""
    more = (f' rx="{radius}"' if radius else "") + (f' opacity="{opacity}"' if opacity < 1 else "")
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{fill}"{more}/>')  # fmt: skip


def text(
    x: float, y: float, words: str, *, fill: str = TEXT, size: int = 13, anchor: str = "start"
) -> str:
    """Return a line of text."""
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" '
            f'text-anchor="{anchor}">{escape(words)}</text>')  # fmt: skip


def legend(right: int, entries: Sequence[tuple[str, str]]) -> list[str]:
    """Return names with their colours, ending at x = `right`."""
    parts = []
    for index, (name, colour) in enumerate(entries):
        at = right - 80 * (len(entries) - index)
        parts += [box(at, 16, 14, 14, colour), text(at + 19, 28, name)]
    return parts
