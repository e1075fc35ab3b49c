"""The few pieces of SVG that every picture here is made of.

Pictures are SVG and nothing else: text that compresses, scales and is compared byte by byte. All
words are escaped, and nothing is loaded from anywhere.
"""

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


def document(
    width: float,
    height: float,
    title: str,
    parts: Sequence[str],
    *,
    size: int = 12,
    fill: str = TEXT,
) -> str:
    """Return a picture that stands by itself.

    Args:
        width: Its width (pixels).
        height: Its height (pixels).
        title: What is shown when it is pointed at.
        parts: Its elements as SVG.
        size: The size of text that says no other (pixels).
        fill: The colour of text that says no other.
    """
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="{size}" '
            f'fill="{fill}" role="img">',
            f"<title>{escape(title)}</title>",
            *parts,
            "</svg>\n",
        ]
    )


def page(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """Return a whole picture on white, under a title."""
    head = [box(0, 0, width, height, "white"), text(16, 28, title, size=18)]
    return document(width, height, title, [*head, *parts], size=13)


def axis(x: Callable[[int], float], begin: int, end: int, top: float, bottom: float) -> list[str]:
    """Return lines and labels for round seconds since `begin`.

    Args:
        x: Returns the x of a moment.
        begin: The first moment (ns).
        end: The last moment (ns).
        top: Where the lines begin (y).
        bottom: Where they end (y); the labels are below.
    """
    parts = []
    length_s = (end - begin) / NS
    step = next((s for s in STEPS_S if length_s / s <= MARKS_MAX), STEPS_S[-1])
    for second in range(0, int(length_s) + 1, step):
        at = x(begin + second * NS)
        parts.append(line(at, top, at, bottom, GRID))
        parts.append(text(at, bottom + 20, f"{second} s", fill=FAINT, anchor="middle"))
    return parts


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    *,
    radius: int = 0,
    opacity: float = 1,
    stroke: str = "",
    hint: str = "",
) -> str:
    """Return a rectangle.

    Args:
        fill: Its colour.
        radius: Of its corners; 0: they are square.
        opacity: From 0 to 1.
        stroke: The colour of its frame; empty: it has none.
        hint: What is shown when it is pointed at; empty: nothing.
    """
    more = (f' rx="{radius}"' if radius else "") + (f' opacity="{opacity}"' if opacity < 1 else "")
    more += f' stroke="{stroke}"' if stroke else ""
    end = f"><title>{escape(hint)}</title></rect>" if hint else "/>"
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{fill}"{more}{end}'
    )


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, more: str = "") -> str:
    """Return a line.

    Args:
        more: Further attributes as they stand, with a space before each.
    """
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"{more}/>'
    )


def text(
    x: float, y: float, words: str, *, fill: str = "", size: int = 0, anchor: str = "start"
) -> str:
    """Return a line of text.

    Args:
        x: Where `anchor` is.
        y: The line that letters stand on.
        fill: Its colour; empty: the document's.
        size: Its size (pixels); 0: the document's.
        anchor: Which part of it is at `x`: `start`, `middle` or `end`.
    """
    more = (f' font-size="{size}"' if size else "") + (f' fill="{fill}"' if fill else "")
    more += f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>'


def cut(words: str, most: int) -> str:
    """Return words that are at most so many characters, with a mark where some are missing."""
    return words if len(words) <= most else words[: max(1, most - 1)] + "…"


def legend(right: int, entries: Sequence[tuple[str, str]]) -> list[str]:
    """Return names with their colours, ending at x = `right`."""
    parts = []
    for index, (name, colour) in enumerate(entries):
        at = right - 80 * (len(entries) - index)
        parts += [box(at, 16, 14, 14, colour), text(at + 19, 28, name)]
    return parts
