"""The tree of cells as a picture: owners, jobs inside, what is borrowed or bad.

Nested rectangles, one for each cell. A frame in a VC's colour is a cell it has bound; a filled GPU
is used by its job there, a hatched one is borrowed, a cross is bad, a dashed one reserved. Chains
of more than NODES_MAX nodes are drawn as one bar for each cell of a level that has few enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

from skep_services import svg

Plain = dict[str, Any]

TITLE = "cells: who owns them and who is inside"  # tidy: allow word readers know this title
ANOTHER = "somebody"  # tidy: allow word a tenant is not told another's name
NODES_MAX = 64
"""Nodes that can be kept apart on one page."""
CELLS_MAX = 64
"""Cells shown of one chain where every one is a bar."""
WIDTH = 1200
EDGE = 16
SIDE, GAP, PAD, LABEL = 14, 2, 4, 15
NODE_WIDTH = 136
"""What a node's name and the jobs on it need."""
BAR_WIDTH, BAR_HEIGHT = 640, 16
CHARACTER = 5.6
"""Pixels of a character of a label, about."""

TEXT, FAINT, FRAME, IDLE, BAD = "#222", "#777", "#ccc", "#f4f4f4", "#c00"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a6d3b", "#6a51a3")
OTHERS = "#999"


class Use(NamedTuple):
    """How a GPU is used."""

    vc: str = ""
    job: str = ""
    borrowed: bool = False
    reserved: str = ""
    bad: bool = False


def picture(chains: Sequence[Plain], vcs: Sequence[str]) -> str:
    """Return the chains as one SVG document.

    Args:
        chains: The chains, as `cells_view` returns them.
        vcs: The VCs that have a colour each, in this order.
    """
    colours = {vc: COLOURS[at % len(COLOURS)] for at, vc in enumerate(vcs)}
    parts: list[str] = []
    top = 34.0
    for name, colour in (*colours.items(), ("idle", IDLE)):
        at = EDGE + sum(len(each) * 7 + 34 for each in [*colours, "idle"][: len(parts) // 2])
        parts += [svg.box(at, 12, SIDE, SIDE, colour, stroke=FRAME), svg.text(at + 19, 24, name)]
    parts.append(
        svg.text(
            WIDTH - EDGE,
            24,
            "hatched: borrowed   crossed: bad   dashed: reserved",
            fill=FAINT,
            anchor="end",
        )
    )
    for chain in chains:
        drawn = _Chain(chain, colours)
        head = f"{chain['chain']}: {drawn.nodes} nodes, {drawn.gpus} GPUs ({chain['gpu']})"
        parts.append(svg.text(EDGE, top + 22, head, size=15))
        body, height = drawn.whole(top + 32) if drawn.nodes <= NODES_MAX else drawn.bars(top + 32)
        parts += body
        top += 40 + height
    if not chains:
        parts.append(svg.text(EDGE, top + 22, "no cells yet: no node has joined", fill=FAINT))
        top += 34
    hatches = [_hatch(name, colour) for name, colour in [*colours.items(), ("", OTHERS)]]
    height = round(top + EDGE)
    before = [f"<defs>{''.join(hatches)}</defs>", svg.box(0, 0, WIDTH, height, "white")]
    return svg.document(WIDTH, height, TITLE, [*before, *parts])


class _Chain:
    """One chain's shape, and how large each level is drawn."""

    def __init__(self, chain: Plain, colours: dict[str, str]) -> None:
        self.tops: list[Plain] = chain["cells"]
        self.colours = colours
        self.names = [one["level"] for one in chain["levels"]]
        self.sizes = [one["gpus"] for one in chain["levels"]]
        self.node = self.names.index(chain["node_level"])
        self.gpus = len(self.tops) * self.sizes[-1]
        self.nodes = self.gpus // self.sizes[self.node]
        self.box: list[tuple[float, float]] = [(SIDE, SIDE)]
        self.columns = [1]
        for level in range(1, len(self.names)):
            self._lay(level)

    def _lay(self, level: int) -> None:
        """Decide how many cells of the level below stand side by side in one of this level."""
        fan = self.sizes[level] // self.sizes[level - 1]
        width, height = self.box[-1]
        room = WIDTH - 2 * EDGE - 2 * PAD * (len(self.names) - level)
        rows = -(-fan // max(1, int(room // (width + GAP))))
        columns = -(-fan // rows)
        head = LABEL if level >= self.node else 0
        self.columns.append(columns)
        least = NODE_WIDTH if level == self.node else 0
        self.box.append(
            (
                max(least, columns * (width + GAP) - GAP + 2 * PAD),
                rows * (height + GAP) - GAP + 2 * PAD + head,
            )
        )

    # --- every cell ----------------------------------------------------------------------------

    def whole(self, top: float) -> tuple[list[str], float]:
        """Return every cell as a rectangle, and how high that is."""
        level = len(self.names) - 1
        width, height = self.box[level]
        columns = max(1, int((WIDTH - 2 * EDGE) // (width + 2 * GAP)))
        parts: list[str] = []
        for at, cell in enumerate(self.tops):
            row, column = divmod(at, columns)
            x, y = EDGE + column * (width + 2 * GAP), top + row * (height + 2 * GAP)
            parts += self._cell(cell, level, x, y, Use())
        return parts, -(-len(self.tops) // columns) * (height + 2 * GAP)

    def _cell(self, cell: Plain, level: int, x: float, y: float, use: Use) -> Iterator[str]:
        if "children" not in cell:
            use = _use(cell)
        width, height = self.box[level]
        if level == 0:
            yield from self._gpu(cell, use, x, y)
            return
        owner = cell.get("owner")
        colour = FRAME if owner is None else self.colours.get(owner, OTHERS)
        title = _title(cell)
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" '
            f'fill="{colour}" fill-opacity="{0.0 if owner is None else 0.14}" '
            f'stroke="{colour}" stroke-width="{1 if owner is None else 2}">'
            f"<title>{escape(title)}</title></rect>"
        )
        head = LABEL if level >= self.node else 0
        if head:
            words = _name(cell)
            inside = " ".join(_holders(cell)) if level == self.node else owner or ""
            most = int((width - 2 * PAD) / CHARACTER)
            yield svg.text(x + PAD, y + 12, svg.cut(f"{words}  {inside}".strip(), most), size=10)
        step_x, step_y = self.box[level - 1][0] + GAP, self.box[level - 1][1] + GAP
        children = cell.get("children")
        for at in range(self.sizes[level] // self.sizes[level - 1]):
            row, column = divmod(at, self.columns[level])
            child = children[at] if children else self._alike(cell, level, at)
            yield from self._cell(
                child, level - 1, x + PAD + column * step_x, y + PAD + head + row * step_y, use
            )

    def _alike(self, cell: Plain, level: int, at: int) -> Plain:
        """Return a child of a cell that is alike throughout: a node's, or deeper."""
        part, name = self.sizes[level - 1], self.names[level - 1]
        return {
            "level": name,
            "address": f"{cell['address']}/{name} {at}",
            "gpus": part,
            **{key: cell[key] for key in ("job", "vc", "for", "beside") if key in cell},
            **{key: part for key in ("idle", "used", "borrowed", "reserved", "bad") if key in cell},
        }

    def _gpu(self, cell: Plain, use: Use, x: float, y: float) -> Iterator[str]:
        owner = cell.get("owner")
        stroke = FRAME if owner is None else self.colours.get(owner, OTHERS)
        dashed = ' stroke-dasharray="3 2"' if use.reserved else ""
        fill, stroke = self._fill(use), TEXT if use.reserved else stroke
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{SIDE}" height="{SIDE}" fill="{fill}" '
            f'stroke="{stroke}"{dashed}><title>{escape(_title(cell))}</title>'
            "</rect>"
        )
        if use.bad:
            yield (
                f'<path d="M{x:.1f} {y:.1f}l{SIDE} {SIDE}m0 -{SIDE}l-{SIDE} {SIDE}" '
                f'stroke="{BAD}" stroke-width="2" class="bad"/>'
            )

    def _fill(self, use: Use) -> str:
        if use.borrowed:
            return f"url(#{_hatch_id(use.vc if use.vc in self.colours else '')})"
        return self.colours.get(use.vc, OTHERS) if use.job else IDLE

    # --- too many of them ----------------------------------------------------------------------

    def bars(self, top: float) -> tuple[list[str], float]:
        """Return a bar for each cell of the lowest level with few enough, and how high that is."""
        few = [
            at
            for at in range(self.node, len(self.names))
            if self.gpus // self.sizes[at] <= CELLS_MAX
        ]
        level = few[0] if few else len(self.names) - 1
        cells = [
            cell for each in self.tops for cell in self._cells_of(each, len(self.names) - 1, level)
        ]
        parts: list[str] = []
        for at, cell in enumerate(cells[:CELLS_MAX]):
            y = top + at * (BAR_HEIGHT + 4)
            parts.append(svg.text(EDGE, y + 12, svg.cut(str(cell["address"]), 30), size=11))
            parts += self._bar(cell, y)
        height = min(len(cells), CELLS_MAX) * (BAR_HEIGHT + 4)
        if len(cells) > CELLS_MAX:
            words = f"and {len(cells) - CELLS_MAX} more cells of level {self.names[level]}"
            parts.append(svg.text(EDGE, top + height + 14, words, fill=FAINT))
            height += 20
        return parts, height

    def _cells_of(self, cell: Plain, level: int, wanted: int) -> Iterator[Plain]:
        if level == wanted:
            yield cell
            return
        children = cell.get("children")
        for at in range(self.sizes[level] // self.sizes[level - 1]):
            child = children[at] if children else self._alike(cell, level, at)
            yield from self._cells_of(child, level - 1, wanted)

    def _bar(self, cell: Plain, y: float) -> Iterator[str]:
        counts: dict[Use, int] = {}
        for use, gpus in _uses(cell):
            look = use._replace(job="used" if use.job else "", reserved="")
            counts[look] = counts.get(look, 0) + gpus
        x, left = 240.0, cell["gpus"]
        for use in sorted(counts, key=lambda use: (not use.job, use.borrowed, use)):
            width = BAR_WIDTH * counts[use] / left
            words = (use.vc or ANOTHER) + (" borrows" if use.borrowed else " uses")
            words = words if use.job else "idle"
            words = f"{words} {counts[use]} of {left} GPUs" + (", bad" if use.bad else "")
            yield svg.box(
                x,
                y,
                width,
                BAR_HEIGHT,
                self._fill(use),
                stroke=BAD if use.bad else FRAME,
                hint=words,
            )
            x += width
        busy = left - sum(count for use, count in counts.items() if not use.job and not use.bad)
        yield svg.text(250 + BAR_WIDTH, y + 12, f"{busy} of {left} GPUs in use or bad", size=11)


def _use(cell: Plain) -> Use:
    return Use(
        cell.get("vc", ""),
        cell.get("job", ""),
        "borrowed" in cell,
        cell.get("for", ""),
        "bad" in cell,
    )


def _uses(cell: Plain) -> Iterator[tuple[Use, int]]:
    if "children" in cell:
        for child in cell["children"]:
            yield from _uses(child)
    else:
        yield _use(cell), cell["gpus"]


def _holders(cell: Plain) -> list[str]:
    """Return the jobs in a cell, those that borrow in brackets."""
    jobs = {use.job: use for use, _ in _uses(cell) if use.job}
    waiting = {use.reserved: use for use, _ in _uses(cell) if use.reserved}
    return [
        *(f"({job})" if use.borrowed else job for job, use in jobs.items()),
        *(f"→{job}" for job in waiting),
    ]


def _name(cell: Plain) -> str:
    return str(cell["address"]).rpartition("/")[2]


def _title(cell: Plain) -> str:
    """Return what is said of a cell under the pointer."""
    words = [f"{cell['level']} {cell['address']}"]
    if "owner" in cell:
        pin = f" (pinned as {cell['pin']})" if "pin" in cell else ""
        words.append(f"of {cell['owner']}{pin}" + (", bad and borne by it" * ("doomed" in cell)))
    if "job" in cell:
        words.append(
            f"{' with '.join([cell['job'], *cell.get('beside', ())])} of {cell.get('vc', '?')}"
            + ", borrowed" * ("borrowed" in cell)
        )
    words += [f"reserved for {cell['for']}"] if "for" in cell else []
    words += ["bad"] if "bad" in cell and "children" not in cell else []
    return "; ".join(words)


def _hatch(name: str, colour: str) -> str:
    return (
        f'<pattern id="{_hatch_id(name)}" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="5" height="5" fill="white"/>'
        f'<rect width="2.5" height="5" fill="{colour}"/></pattern>'
    )


def _hatch_id(name: str) -> str:
    # Names of VCs are tokens: letters, digits, _ and -.
    return f"hatch-{name}"
