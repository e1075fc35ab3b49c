"""Pictures of GENIE's experiments: figures along what varies, and curves of the middle setting."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from statistics import fmean

from skep_lab.experiments import geniefigures as genie
from skep_lab.experiments.deadlinefigures import SHORTEST, SKEP
from skep_lab.experiments.gandiva import Played
from skep_lab.experiments.report import Results
from skep_services.simulations import plots

FIGURES = {
    "qos": ("Tasks in time, mean of the seeds", "percent"),
    "makespan_h": ("Makespan, mean of the seeds", "hours"),
    "latency": ("Normalised latency, mean of the seeds", "times that on one GPU"),
}
"""What each figure is, and its unit."""
OTHERS = {
    "genie-fig15": {"error": ("Mean error of latencies", "percent")},
    "genie-fig16": {"cpu_s": ("Processor time of the run, mean of the seeds", "seconds")},
}
"""Figures of experiments that are about other ones."""
CURVES = {
    "tasks ended": ("Tasks that ended by a time, first seed", "time", "h"),
    "lateness": ("Tasks that ended within so many times their time, first seed", "times", ""),
}
"""What each curve is, what is along it, and its unit."""
MINUTES = {"tasks ended": 60}
"""Curves along time have minutes."""
SHOWN = (
    SKEP,
    genie.NODE_SENSIBLE,
    SHORTEST,
    genie.BEST_SENSIBLE,
    genie.FIFO,
    genie.CAPACITY,
    genie.CER,
    genie.PRINTED,
    genie.BACKFILL,
    genie.BOTH,
    genie.LAST,
    genie.MIN_MIN,
)
"""The arms that are drawn if a setting has them, LINES_MAX of them."""
LINES_MAX = 8

Groups = dict[str, dict[str, list[Played]]]
"""Outcomes by what varies, then by arm."""


def pictures(name: str, results: Results) -> list[str]:
    """Return the pictures of an experiment.

    Args:
        name: Its name.
        results: The outcomes by setting.
    """
    whole = {label: outcomes for label, outcomes in results.items() if outcomes}
    groups = {
        group: {arm: outcomes for arm, outcomes in arms.items() if arm in SHOWN}
        for group, arms in genie.groups(whole).items()
    }
    if not any(groups.values()):
        return _single(whole)
    figures = OTHERS.get(name, FIGURES)
    found = [_along(groups, figure, *told) for figure, told in figures.items()]
    if name in OTHERS:
        return found
    middle = list(groups.values())[len(groups) // 2]
    return [*found, *(_curve(middle, curve, *told) for curve, told in CURVES.items())]


def _arms(groups: Groups) -> list[str]:
    known = dict.fromkeys(arm for arms in groups.values() for arm in arms)
    return [arm for arm in SHOWN if arm in known][:LINES_MAX]


def _along(groups: Groups, figure: str, title: str, unit: str) -> str:
    """Return a figure of each arm along what varies, which is the first number of a group."""
    drawn = [
        plots.Line(
            arm,
            [
                (_number(group), fmean(each.figures[figure] for each in arms[arm]))
                for group, arms in groups.items()
                if arm in arms
            ],
        )
        for arm in _arms(groups)
    ]
    along = re.sub(r"^[0-9.]+ ?", "", next(iter(groups)))
    return plots.lines(
        title, drawn, _plain, plots.number_text, x_title=along.replace("%/", " "), y_title=unit
    )


def _number(group: str) -> float:
    found = re.match(r"[0-9.]+", group)
    return float(found[0]) if found else 0.0


def _curve(arms: dict[str, list[Played]], curve: str, title: str, along: str, unit: str) -> str:
    drawn = [
        plots.Line(arm, [(at / MINUTES.get(curve, 1), part) for at, part in points])
        for arm in SHOWN
        if arm in arms and (points := arms[arm][0].curves.get(curve))
    ][:LINES_MAX]
    told: Callable[[float], str] = partial(_with_unit, unit)
    return plots.lines(
        title,
        drawn,
        told,
        plots.part_text,
        x_log=curve == "lateness",
        x_title=along,
        y_title="tasks",
    )


def _single(results: Results) -> list[str]:
    """Return a picture of all curves of each setting, of the first seed."""
    return [
        plots.lines(
            label,
            [plots.Line(name, points) for name, points in outcomes[0].curves.items()],
            _plain,
            plots.number_text,
            x_title="GPUs" if label.startswith("theta") else "placement, 1N1G to 4N4G",
            y_title="cost" if label.startswith("theta") else "samples a second",
        )
        for label, outcomes in results.items()
        if outcomes[0].curves and not label.startswith("all")
    ]


def _plain(value: float) -> str:
    return f"{value:g}"


def _with_unit(unit: str, value: float) -> str:
    return f"{value:g} {unit}".strip()
