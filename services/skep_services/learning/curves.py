"""The curves of training runs as one picture, and as events that TensorBoard shows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from skep_services.learning.learners import EXTRA
from skep_services.learning.problems import LearningError, Why
from skep_services.learning.runs import Point
from skep_services.simulations import plots

POINTS_MAX = 600
"""Of a line: more are not seen on 700 pixels."""


def picture(title: str, runs: Mapping[str, Sequence[Point]]) -> str:
    """Return a plot for each value, with a line for each run, as SVG.

    Args:
        title: What stands above all.
        runs: The points of each run, by what it is called.
    """
    names = dict.fromkeys(
        name for points in runs.values() for point in points for name in point.values
    )
    return plots.stacked(title, [_plot(name, runs) for name in names])


def _plot(name: str, runs: Mapping[str, Sequence[Point]]) -> str:
    drawn = [plots.Line(run, _line(name, points)) for run, points in runs.items()]
    ys = [y for line in drawn for _, y in line.points]
    low, high = min(ys, default=0.0), max(ys, default=1.0)
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return plots.lines(
        name,
        drawn,
        plots.number_text,
        plots.number_text,
        y_min=low - room if low < 0 or low > high / 2 else 0.0,
        y_max=high + room,
        x_title="steps",
    )


def _line(name: str, points: Sequence[Point]) -> list[tuple[float, float]]:
    found = [(float(each.step), each.values.get(name)) for each in points]
    told = [(step, value) for step, value in found if value is not None]
    every = -(-len(told) // POINTS_MAX) or 1
    return told[::every] + (told[-1:] if (len(told) - 1) % every else [])


def tensorboard(folder: Path) -> Callable[[Point], None]:
    """Return what writes points as events beside a run's files.

    Args:
        folder: The run's folder.

    Raises:
        LearningError: tensorboardX is not installed, or the folder cannot be written.
    """
    try:
        writers = importlib.import_module("tensorboardX")
    except ModuleNotFoundError:
        text = f"--tensorboard needs tensorboardX, which is not installed: {EXTRA}"
        raise LearningError(Why.NO_EXTRA, text) from None
    writer = writers.SummaryWriter(logdir=str(folder / "tensorboard"))

    def write(point: Point) -> None:
        for name, value in point.values.items():
            if value is not None:
                writer.add_scalar(name, value, point.step)
        writer.flush()

    return write
