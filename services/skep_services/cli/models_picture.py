"""The speeds of a model over placements, as SVG that stands by itself."""

from __future__ import annotations

import math
from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 60, 150, 60, 370
COLOURS = ("#264653", "#2a9d8f", "#e76f51", "#8ab17d", "#e9c46a", "#6a51a3")


def picture(speeds: dict[str, Any]) -> str:
    """Return a plot: nodes (in doublings) across, speed up, a line for each number of GPUs."""
    rows = [row for row in speeds["placements"] if row["gpus"] > 1]
    top = max([1.0, *(row["speed"] for row in rows)])
    most = max([2, *(row["nodes"] for row in rows)])

    def at(nodes: int, speed: float) -> tuple[float, float]:
        x = LEFT + math.log2(nodes) / math.log2(most) * (WIDTH - LEFT - RIGHT)
        return x, BOTTOM - speed / top * (BOTTOM - TOP)

    about = " ".join([speeds["model"], speeds["gpu_type"],
                      *(f"with {name}" for name in speeds["with"]),
                      *(f"beside {name}" for name in speeds["beside"])])  # fmt: skip
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(16, 28, f"{about}: speed by nodes", size=18),
        _text(16, 46, f"1 is on as few nodes of {speeds['node_gpus']} GPUs as hold it; "
              f"from {', '.join(speeds['tables'])}", fill="#777"),
    ]  # fmt: skip
    for share in range(5):
        value = top * share / 4
        y = at(1, value)[1]
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" '
                     'stroke="#ddd"/>')  # fmt: skip
        parts.append(_text(LEFT - 6, y + 4, f"{value:.2f}", anchor="end", fill="#777"))
    parts += [_text(at(nodes, 0)[0], BOTTOM + 18, str(nodes), anchor="middle", fill="#777")
              for nodes in sorted({row["nodes"] for row in rows})]  # fmt: skip
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, BOTTOM + 38, "nodes", anchor="middle"))
    for number, gpus in enumerate(dict.fromkeys(row["gpus"] for row in rows)):
        colour = COLOURS[number % len(COLOURS)]
        line = [at(row["nodes"], row["speed"]) for row in rows if row["gpus"] == gpus]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in line]
        parts.append(_text(WIDTH - RIGHT + 20, TOP + 20 * number, f"{gpus} GPUs", fill=colour))
    return "\n".join([*parts, "</svg>", ""])


def _text(
    x: float, y: float, words: str, *, fill: str = "#222", size: int = 12, anchor: str = "start"
) -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" '
            f'text-anchor="{anchor}">{escape(words)}</text>')  # fmt: skip
