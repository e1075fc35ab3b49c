"""Pictures of GENIE's experiments: figures by setting over the seeds, and curves of one group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean

from skep_lab.experiments.report import Results
from skep_services.simulations import plots

FIGURES = {
    "qos": ("Tasks in time", "percent"),
    "makespan_h": ("Makespan", "hours"),
    "latency": ("Normalised latency", "times the latency on one GPU"),
    "error": ("Mean error of predictions", "percent"),
    "cpu_percent": ("Processor time of the whole run", "percent of the makespan"),
}
"""What each figure is, and its unit."""
SPREAD: dict[str, Callable[[list[float]], float]] = {"least": min, "mean": fmean, "most": max}
CURVES = {
    "tasks ended": ("Tasks that ended by a time", "time since the first submission", "min"),
    "lateness": ("Tasks that ended within so many times their time", "times", ""),
    "measured": ("Rates on <nodes, GPUs of each>, by number", "placement", ""),
    "predicted": ("Predicted rates on the same", "placement", ""),
    "1 nodes": ("Cost on one node", "GPUs", ""),
    "4 nodes": ("Cost on four nodes", "GPUs", ""),
}
"""What each curve is, what is along it, and its unit."""
LINES_MAX = 8
"""Lines of one picture."""


def pictures(results: Results) -> list[str]:
    """Return the pictures of an experiment.

    Args:
        results: The outcomes by setting.
    """
    whole = {label: outcomes for label, outcomes in results.items() if outcomes}
    found = []
    for figure, (title, unit) in FIGURES.items():
        rows = {
            label: [each.figures[figure] for each in outcomes if figure in each.figures]
            for label, outcomes in whole.items()
        }
        rows = {label: row for label, row in rows.items() if any(row)}
        if rows:
            drawn = [
                plots.Bars(name, [reduce(row) for row in rows.values()])
                for name, reduce in SPREAD.items()
            ]
            found.append(
                plots.dots(f"{title}, by seeds", list(rows), drawn, plots.number_text, x_title=unit)
            )
    return [*found, *_curves(_middle(whole))]


def _middle(results: Results) -> Results:
    """Return the settings of the middle group, where labels have groups, LINES_MAX at most."""
    groups: dict[str, list[str]] = {}
    for label in results:
        groups.setdefault(label.partition(", ")[0], []).append(label)
    if len(groups) == len(results):
        return dict(list(results.items())[:LINES_MAX])
    chosen = list(groups.values())[len(groups) // 2][-LINES_MAX:]
    return {label: results[label] for label in chosen}


def _curves(results: Results) -> list[str]:
    """Return each kind of curve in one picture, of the first seed of each setting."""
    found = []
    for name, (title, along, unit) in CURVES.items():
        drawn = [
            plots.Line(label, outcomes[0].curves[name])
            for label, outcomes in results.items()
            if outcomes[0].curves.get(name)
        ]
        if drawn:
            part = name in ("tasks ended", "lateness")
            found.append(
                plots.lines(
                    f"{title}, first seed",
                    drawn,
                    partial(_with_unit, unit),
                    plots.part_text if part else plots.number_text,
                    x_log=name == "lateness",
                    x_title=along,
                    y_title="tasks" if part else "",
                )
            )
    return found


def _with_unit(unit: str, value: float) -> str:
    return f"{value:g} {unit}".strip()
