"""`skep calibration`: how often estimates of starts and ends held, by VC and family."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

from skep_services import svg
from skep_services.cli import exits, render
from skep_services.cli.client import query
from skep_services.cli.options import Command, client_of, print_raw, say
from skep_services.cli.render import Column

NOMINAL = 0.8
"""The part of outcomes that should lie from P10 to P90."""
TENTHS = 10
SIDE, MARGIN, TOP = 360, 60, 50
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")


def options(parser: ArgumentParser) -> None:
    """Add what `calibration` takes."""
    parser.add_argument("--vc", help="estimates of jobs of one virtual cluster")
    parser.add_argument("--family", help="estimates of one family's jobs")
    parser.add_argument(
        "--svg", metavar="FILE", type=Path, help="draw expected against observed coverage"
    )


def run(arguments: Namespace) -> int:
    """Print how often estimates held: each kind of them, by VC and family.

    Returns:
        The exit code: always 0.
    """
    client = client_of(arguments)
    path = query("/v1/calibration", vc=arguments.vc, family=arguments.family)
    if arguments.json and not arguments.svg:
        print_raw(client.get_bytes(path))
        return exits.OK
    answer = client.get(path)
    rows = answer["estimates"]
    if arguments.svg:
        arguments.svg.write_text(picture(rows), encoding="utf-8")
        say(f"wrote {arguments.svg}")
        return exits.OK
    if not rows:
        say("no estimate was judged yet: that happens when jobs end")
        return exits.OK
    render.show_table(_columns(rows))
    say(f"{NOMINAL:.0%} of outcomes should lie from P10 to P90")
    if answer["left_out"]:
        say(f"{answer['left_out']} more rows; --vc and --family show them")
    return exits.OK


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    return [
        Column("VC", [one["vc"] for one in rows], narrow=6),
        Column("FAMILY", [one["family"] or "(all)" for one in rows], narrow=10),
        Column("ESTIMATED BY", [one["what"] for one in rows], narrow=24),
        Column("JUDGED", [str(one["outcomes"]) for one in rows], right=True),
        Column("HELD", [str(one["held"]) for one in rows], right=True, drop=1),
        Column("COVERED", [_part(one["covered"]) for one in rows], right=True),
        Column("ERROR", [f"{one['error']:.1%}" for one in rows], right=True),
        Column("WIDENED", [f"{one['widened']:.2f}x" for one in rows], right=True),
    ]


def _part(covered: float | None) -> str:
    return "-" if covered is None else f"{covered:.1%}"


def observed(ranks: list[int]) -> list[float]:
    """Return which part of outcomes lies in the middle fifth, two fifths, and so on.

    Args:
        ranks: How many lay in each tenth of what was estimated.
    """
    total, half = sum(ranks), TENTHS // 2
    return [
        sum(ranks[half - wide : half + wide]) / total if total else 0.0
        for wide in range(1, half + 1)
    ]


def picture(rows: list[dict[str, Any]]) -> str:
    """Return expected against observed coverage: on the diagonal, estimates are as sure as right.

    Args:
        rows: As the gateway lists them; those of whole VCs are drawn, or else all.
    """
    chosen = [one for one in rows if one["family"] is None] or rows
    chosen = [one for one in chosen if sum(one["ranks"])]
    left, bottom, right = MARGIN, TOP + SIDE, MARGIN + SIDE

    def at(expected: float, seen: float) -> tuple[float, float]:
        return left + SIDE * expected, bottom - SIDE * seen

    parts = [svg.line(left, bottom, *at(1, 1), svg.FAINT, ' stroke-dasharray="4 4"')]
    for each in range(0, TENTHS + 1, 2):
        x, y = at(each / TENTHS, each / TENTHS)
        parts += [
            svg.line(x, TOP, x, bottom, svg.GRID),
            svg.line(left, y, right, y, svg.GRID),
            svg.text(x, bottom + 18, f"{each * 10}", fill=svg.FAINT, anchor="middle"),
            svg.text(left - 8, y + 4, f"{each * 10}", fill=svg.FAINT, anchor="end"),
        ]
    parts.append(svg.text(left, bottom + 40, "expected (%)", fill=svg.FAINT))
    parts.append(svg.text(8, TOP - 8, "observed (%)", fill=svg.FAINT))
    for index, one in enumerate(chosen):
        colour = COLOURS[index % len(COLOURS)]
        points = [
            (0.0, 0.0),
            *((2 * (n + 1) / TENTHS, y) for n, y in enumerate(observed(one["ranks"]))),
        ]
        for before, after in pairwise(points):
            parts.append(svg.line(*at(*before), *at(*after), colour, ' stroke-width="2"'))
        name = f"{one['vc']} {one['family'] or ''} {one['what']} ({one['outcomes']})"
        parts.append(svg.text(right + 20, TOP + 12 + 20 * index, name, fill=colour))
    height = max(bottom + 60, TOP + 20 * len(chosen) + 30)
    return svg.page(right + 360, height, "Coverage of estimates", parts)


COMMANDS = {"calibration": Command(options, run)}
