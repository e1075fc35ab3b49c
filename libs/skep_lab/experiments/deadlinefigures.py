"""Skep's own policy `deadline` on GENIE's workloads, against GENIE and sensible baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from skep_lab.experiments.gandiva import Played
from skep_lab.experiments.genie import Predictor, Queue
from skep_lab.experiments.geniefigures import (
    ALL,
    BEST_SENSIBLE,
    BOTH,
    CAPACITY,
    CER,
    CLUSTERS,
    DENSITIES,
    LONG_H,
    NODE_SENSIBLE,
    OURS,
    PIECEMEAL,
    SENSIBLE,
    SHORT_H,
    groups,
)
from skep_lab.experiments.report import Experiment, Line, Results
from skep_lab.measures.paired import paired
from skep_lab.traces.generators import genie

SKEP = "Skep"
SHORTEST = "Tetris+CER, shortest first"
PREDICTORS: Mapping[str, Predictor] = {
    "GENIE's predictor": "genie",
    "Skep's predictor": "skep",
    "oracle": "oracle",
}
"""By the end of an arm's name, what it knows of speeds."""
POLICY: tuple[str, dict[str, Any]] = ("deadline", {})

Arm = tuple[str, dict[str, Any], Predictor]

RIVALS: dict[str, Arm] = {
    **{name: (*ALL[name], "genie") for name in (CAPACITY, CER)},
    **{name: (*arm, "genie") for name, arm in OURS.items()},
    **{name: (*arm, "genie") for name, arm in SENSIBLE.items() if not name.endswith(PIECEMEAL)},
}
"""What has GENIE's predictor, as in its paper: GENIE, the best of its baselines, sensible ones."""
KNOWN: dict[str, Arm] = {
    f"{name}, {end}": (*arm, predictor)
    for name, arm in (
        (SKEP, POLICY),
        (BOTH, OURS[BOTH]),
        (SHORTEST, SENSIBLE[SHORTEST]),
        (BEST_SENSIBLE, SENSIBLE[BEST_SENSIBLE]),
    )
    for end, predictor in PREDICTORS.items()
    if (name == SKEP) == (predictor == "genie") or predictor == "oracle"
}
"""The same orders with other predictors: what the order gives, and what the predictor gives."""
ARMS: dict[str, Arm] = {SKEP: (*POLICY, "skep"), **KNOWN, **RIVALS}


def _queues(arms: Mapping[str, Arm], label: str, options: genie.Options, nodes: int) -> list[Any]:
    return [
        Queue(
            f"{label}, {name}",
            (policy, given),
            options,
            nodes,
            predictor,
            classes=policy != POLICY[0],
        )
        for name, (policy, given, predictor) in arms.items()
    ]


def _by_density(latency_h: float) -> Callable[[float | None], list[Any]]:
    def settings(days: float | None) -> list[Any]:
        return [
            each
            for per_hour in DENSITIES
            for each in _queues(
                ARMS,
                f"{per_hour} tasks an hour",
                genie.Options(
                    per_hour=float(per_hour), latency_h=latency_h, hours=24 * (days or 1.0)
                ),
                4,
            )
        ]

    return settings


def _by_cluster(days: float | None) -> list[Any]:
    names = (SKEP, f"{SKEP}, oracle", *OURS, SHORTEST, BEST_SENSIBLE, NODE_SENSIBLE, CER)
    return [
        each
        for nodes in CLUSTERS
        for each in _queues(
            {name: ARMS[name] for name in names},
            f"{nodes * 4} GPUs",
            genie.Options(hours=24 * (days or 1.0)),
            nodes,
        )
    ]


def compared(results: Results) -> list[Line]:
    """Return lines on each arm, and on Skep's policy less each of the others, seed by seed."""
    found = []
    for group, arms in groups(results).items():
        for name, outcomes in arms.items():
            label = f"{group}, {name}"
            found += [
                Line(f"{label}: tasks in time", "", _all(outcomes, "qos"), " %"),
                Line(f"{label}: normalised latency", "", _all(outcomes, "latency")),
                Line(f"{label}: worst normalised latency", "", _all(outcomes, "latency_max")),
                Line(f"{label}: makespan", "", _all(outcomes, "makespan_h"), " h"),
                Line(f"{label}: longest wait", "", _all(outcomes, "waited_max_h"), " h"),
                Line(f"{label}: starved", "", _all(outcomes, "starved"), " tasks"),
            ]
        if SKEP in arms:
            for name in (each for each in arms if each != SKEP):
                found += _against(group, name, arms[SKEP], arms[name])
    return found


def _against(group: str, name: str, ours: Sequence[Played], other: Sequence[Played]) -> list[Line]:
    label = f"{group}, {SKEP} less {name}"
    points = [a - b for a, b in zip(_all(ours, "qos"), _all(other, "qos"), strict=True)]
    base = fmean(_all(other, "latency"))
    latency = [
        100 * (a - b) / base
        for a, b in zip(_all(ours, "latency"), _all(other, "latency"), strict=True)
    ]
    return [
        Line(f"{label}: tasks in time", "", points, " points", _interval(points)),
        Line(f"{label}: normalised latency", "", latency, " %", _interval(latency)),
    ]


def _interval(differences: Sequence[float]) -> str:
    """Return the interval of a mean of paired differences, in words."""
    found = paired([0.0] * len(differences), differences)
    if found.low is None or found.high is None:
        return ""
    return f"mean {found.mean:+.2f}, 95 % interval {found.low:+.2f} to {found.high:+.2f}"


def _all(outcomes: Sequence[Played], name: str) -> list[float]:
    return [each.figures.get(name, 0.0) for each in outcomes]


SOURCE = "GENIE, section 7.2.1, and Skep"
EXPERIMENTS = (
    Experiment(
        "genie-skep",
        "Skep's policy on GENIE's workload",
        SOURCE,
        _by_density(LONG_H),
        compared,
        "Tasks take 3.3 h on one GPU.",
    ),
    Experiment(
        "genie-skep-short",
        "The same with shorter tasks",
        SOURCE,
        _by_density(SHORT_H),
        compared,
        "Tasks take 1.5 h on one GPU.",
    ),
    Experiment(
        "genie-skep-scale",
        "Skep's policy on 16 to 128 GPUs",
        "GENIE, section 7.3, and Skep",
        _by_cluster,
        compared,
        "20 tasks an hour.",
    ),
)
