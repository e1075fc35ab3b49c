"""`skep curve`: what a job says about its training, over its mini-batches."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from skep_services import svg
from skep_services.cli import exits, render
from skep_services.cli.client import quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, job_argument, print_raw, say
from skep_services.cli.render import Column

ROWS = 20
WIDTH, HEIGHT, LEFT, ROW = 760, 60, 60, 220
COLOURS = ("#264653", "#2a9d8f", "#e76f51", "#8ab17d", "#e9c46a")
"""By attempt: a job that moved shows where."""


def options(parser: ArgumentParser) -> None:
    """Add what it takes."""
    job_argument(parser)
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw the curves into a file")


def run(arguments: Namespace) -> int:
    """Print the latest numbers, or draw all.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The job has said nothing about its training.
    """
    client = client_of(arguments)
    path = f"/v1/jobs/{quote(arguments.job)}/curve"
    if arguments.json and not arguments.svg:
        print_raw(client.get_bytes(path))
        return exits.OK
    points = client.get(path)["points"]
    if not points:
        text = (
            "it has said nothing about its training: a script does by "
            "`run.report(loss=...)`, see `skep_job.init`"
        )
        raise CommandError(exits.FAILED, f"{arguments.job}: {text}")
    if arguments.svg:
        arguments.svg.write_text(picture(arguments.job, points), encoding="utf-8")
        say(f"wrote {arguments.svg}")
        return exits.OK
    shown = points[-ROWS:]
    names = _names(points)
    render.show_table(
        [
            Column("MINI-BATCH", [str(point["step"]) for point in shown], right=True),
            Column("ATTEMPT", [str(point["attempt"]) for point in shown], right=True),
            *(
                Column(
                    name.upper(),
                    [_number(point["values"].get(name)) for point in shown],
                    right=True,
                )
                for name in names
            ),
        ]
    )
    return exits.OK


def _names(points: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for point in points for name in point["values"]))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def picture(job: str, points: list[dict[str, Any]]) -> str:
    """Return one plot for each number, as SVG.

    Args:
        job: The title.
        points: What the job said: each with its `step`, `attempt` and `values` by name.
    """
    names = _names(points)
    height = HEIGHT + ROW * len(names)
    parts: list[str] = []
    for row, name in enumerate(names):
        told = [point for point in points if name in point["values"]]
        parts += _plot(name, told, HEIGHT + ROW * row)
    return svg.page(WIDTH, height, job, parts)


def _plot(name: str, points: list[dict[str, Any]], top: float) -> list[str]:
    steps = [point["step"] for point in points]
    values = [point["values"][name] for point in points]
    low, high = min(values), max(values)
    span = (high - low) or max(abs(high), 1.0) * 1e-9
    bottom, right = top + ROW - 60, WIDTH - 30

    def place(step: int, value: float) -> str:
        x = LEFT + (step - steps[0]) / max(steps[-1] - steps[0], 1) * (right - LEFT)
        return f"{x:.1f},{bottom - (value - low) / span * (bottom - top - 20):.1f}"

    parts = [
        svg.text(LEFT, top, name),
        svg.line(LEFT, bottom, right, bottom, svg.FAINT),
        svg.text(LEFT - 6, bottom, f"{low:.3g}", anchor="end"),
        svg.text(LEFT - 6, top + 24, f"{high:.3g}", anchor="end"),
        svg.text(right, bottom + 16, f"mini-batch {steps[-1]}", anchor="end"),
    ]
    for number, attempt in enumerate(dict.fromkeys(point["attempt"] for point in points)):
        line = " ".join(
            place(step, value)
            for step, value, point in zip(steps, values, points, strict=True)
            if point["attempt"] == attempt and math.isfinite(value)
        )
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline fill="none" stroke="{colour}" points="{line}"/>')
        parts.append(svg.text(LEFT + 90 * number, bottom + 32, f"attempt {attempt}", fill=colour))
    return parts


COMMANDS = {"curve": Command(options, run)}
