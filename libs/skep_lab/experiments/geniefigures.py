"""GENIE's experiments: their settings, what is measured, and what the paper printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from skep_lab.experiments import genieprofile
from skep_lab.experiments.gandiva import Played
from skep_lab.experiments.genie import Check, Prices, Queue
from skep_lab.experiments.report import Experiment, Line, Results
from skep_lab.traces.generators import genie

Arm = tuple[str, dict[str, Any]]
"""A policy: its name and options."""

FIFO, CAPACITY, MIN_MIN = "FIFO", "Capacity", "Min-Min"
FAIR, PERF, CER = "Weighted Fair", "Tetris+Perf", "Tetris+CER"
PRINTED, BACKFILL, LAST = "GENIE as printed", "GENIE, backfill", "GENIE, late last"
BOTH, ORACLE = "GENIE, backfill and late last", "GENIE, backfill, late last, oracle"
ALL: dict[str, Arm] = {
    FIFO: ("sized", {}),
    CAPACITY: ("sized", {"by_model": True}),
    MIN_MIN: ("sized", {"order": "deadline"}),
    FAIR: ("sized", {"order": "weighted"}),
    PERF: ("sized", {"size": "performance"}),
    CER: ("sized", {"size": "cost"}),
}
"""The paper's six as its own hints fit: a task gets all that is free, Tetris goes by arrival."""
OURS: dict[str, Arm] = {
    PRINTED: ("genie", {}),
    BACKFILL: ("genie", {"backfill": True}),
    LAST: ("genie", {"late": "last"}),
    BOTH: ("genie", {"backfill": True, "late": "last"}),
}
PIECEMEAL = "as nodes come free"
NODE, GPU = "one node each", "one GPU each"
SENSIBLE: dict[str, Arm] = {
    **{
        f"{name}, {size}": (arm[0], {**arm[1], "size": said})
        for name, arm in list(ALL.items())[:4]
        for size, said in ((NODE, "node"), (GPU, "gpu"))
        if not (name == CAPACITY and said == "node")
    },
    **{f"{name}, {PIECEMEAL}": ALL[name] for name in (FIFO, MIN_MIN, FAIR)},
    "Min-Min, one GPU each, backfill": (
        "sized",
        {"order": "deadline", "size": "gpu", "strict": False},
    ),
    "Tetris+Perf, shortest first": ("sized", {"size": "performance", "order": "shortest"}),
    "Tetris+CER, shortest first": ("sized", {"size": "cost", "order": "shortest"}),
    "Tetris+CER, shortest first, backfill": (
        "sized",
        {"size": "cost", "order": "shortest", "strict": False},
    ),
    "Tetris+CER, by deadline, backfill": (
        "sized",
        {"size": "cost", "order": "deadline", "strict": False},
    ),
}
"""The same as sensible people would run them. A model's part is less than a node, so Capacity has
no `one node each`."""
FREE = "GENIE, backfill and late last, free placements"
DENSITIES = (5, 10, 20)
LONG_H, SHORT_H = 3.3, 1.5
"""Mean latencies on one GPU: as makespans of dozens to hundreds of hours need, and less."""
CLASSES = ((0.05, 0.35), (0.1, 0.4), (0.2, 0.4), (0.3, 0.5))
"""Parts of urgent and prior tasks; the paper's are in the labels of a picture."""
DURATIONS_H = (12, 24, 48, 72)
CLUSTERS = (4, 8, 16, 32)
"""Nodes of 16 to 128 GPUs."""


def _queues(arms: Mapping[str, Arm], label: str, options: genie.Options, **more: Any) -> list[Any]:
    return [
        Queue(
            f"{label}, {name}",
            arm,
            options,
            predictor="oracle" if "oracle" in name else "genie",
            at_once=not name.endswith(PIECEMEAL),
            **more,
        )
        for name, arm in arms.items()
    ]


def _options(days: float | None, **given: Any) -> genie.Options:
    found = replace(genie.DEFAULT, **given)
    return replace(found, hours=24 * days) if days else found


Settings = Callable[[float | None], list[Any]]


def _by_density(arms: Mapping[str, Arm], latency_h: float, rates: Sequence[int]) -> Settings:
    def settings(days: float | None) -> list[Any]:
        return [
            each
            for per_hour in rates
            for each in _queues(
                arms,
                _dense(per_hour),
                _options(days, per_hour=float(per_hour), latency_h=latency_h),
            )
        ]

    return settings


def _dense(per_hour: int) -> str:
    return f"{per_hour} tasks an hour"


def _by_classes(days: float | None) -> list[Any]:
    return [
        each
        for urgent, prior in CLASSES
        for each in _queues(
            FEW, _mixed(urgent, prior), _options(days, per_hour=15.0, urgent=urgent, prior=prior)
        )
    ]


def _mixed(urgent: float, prior: float) -> str:
    return f"{urgent:.0%}/{prior:.0%}/{1 - urgent - prior:.0%}"


def _by_duration(days: float | None) -> list[Any]:
    scale = days or 1.0
    return [
        each
        for hours in DURATIONS_H
        for each in _queues(
            FEW, f"{hours} h of arrivals", _options(None, per_hour=15.0, hours=hours * scale)
        )
    ]


def _by_cluster(days: float | None) -> list[Any]:
    arms = {**ALL, **OURS, **{name: SENSIBLE[name] for name in (BEST_SENSIBLE, NODE_SENSIBLE)}}
    return [
        each
        for nodes in CLUSTERS
        for each in _queues(arms, f"{nodes * 4} GPUs", _options(days, per_hour=20.0), nodes=nodes)
    ]


FEW = {name: {**ALL, **OURS}[name] for name in (FIFO, CAPACITY, CER, PRINTED, BACKFILL, BOTH)}
"""The paper's worst and its two best baselines, and GENIE."""
BEST_SENSIBLE = "Tetris+CER, shortest first, backfill"
NODE_SENSIBLE = "Min-Min, one node each"


def _predictions(_: float | None) -> list[Any]:
    return [
        Check("inception3", ("inception3",)),
        Check("inception3, exhaustive", ("inception3",), exhaustive=True),
        Check("resnet50", ("resnet50",)),
        Check("resnet50, exhaustive", ("resnet50",), exhaustive=True),
        Check("all six", genie.MODELS),
        Check("all six, exhaustive", genie.MODELS, exhaustive=True),
        Check("all six, large batches", genie.MODELS, (64, 128)),
    ]


def _prices(_: float | None) -> list[Any]:
    return [Prices(f"theta = {theta:g}", theta) for theta in (0.4, 0.0, 1.0)]


# --- lines ----------------------------------------------------------------------------------------


def _all(outcomes: Sequence[Played], name: str) -> list[float]:
    return [each.figures.get(name, 0.0) for each in outcomes]


def groups(results: Results) -> dict[str, dict[str, list[Played]]]:
    """Return outcomes by what varies, then by arm.

    Args:
        results: The outcomes by setting.
    """
    found: dict[str, dict[str, list[Played]]] = {}
    for label, outcomes in results.items():
        group, _, arm = label.partition(", ")
        found.setdefault(group, {})[arm] = outcomes
    return found


def _best(arms: Mapping[str, list[Played]], names: Sequence[str], figure: str, best: Any) -> str:
    known = [name for name in names if name in arms]
    found: str = best(known, key=lambda name: fmean(_all(arms[name], figure)))
    return found


def _compared(qos: str, makespan: str) -> Callable[[Results], list[Line]]:
    """Return lines on each arm, and on GENIE against the best of the paper's six.

    Args:
        qos: The paper's gain of tasks in time, at most.
        makespan: Its change of the makespan, at most.
    """

    def lines(results: Results) -> list[Line]:
        found = []
        for group, arms in groups(results).items():
            for name, outcomes in arms.items():
                found += _told(f"{group}, {name}", outcomes)
            if BOTH in arms:
                for name in (each for each in OURS if each in arms):
                    found += _gains(group, arms, name, (qos, makespan))
        return found

    return lines


def _compared_with_errors(results: Results) -> list[Line]:
    """Return the same, and how wrong latencies were predicted."""
    found = _compared(QOS, MAKESPAN)(results)
    for label, outcomes in results.items():
        if label.endswith((PRINTED, BOTH)):
            errors = _all(outcomes, "error")
            found.append(Line(f"{label}: mean error of latencies", "", errors, " %"))
    return found


def _told(label: str, outcomes: Sequence[Played]) -> list[Line]:
    return [
        Line(f"{label}: tasks in time", "", _all(outcomes, "qos"), " %"),
        Line(f"{label}: makespan", "", _all(outcomes, "makespan_h"), " h"),
        Line(f"{label}: normalised latency", "", _all(outcomes, "latency"), ""),
        Line(f"{label}: GPUs of a task", "", _all(outcomes, "gpus"), ""),
    ]


def _gains(
    group: str, arms: Mapping[str, list[Played]], name: str, paper: tuple[str, str]
) -> list[Line]:
    """Return by how much an arm is better than the best of the paper's six as it ran them."""
    by_qos = _best(arms, list(ALL), "qos", max)
    by_time = _best(arms, list(ALL), "makespan_h", min)
    ours = arms[name]
    found = [
        Line(
            f"{group}, {name}: in time, over {by_qos}",
            paper[0],
            _change(ours, arms[by_qos], "qos"),
            " %",
        ),
        Line(
            f"{group}, {name}: in time, points over {by_qos}",
            "",
            [a - b for a, b in zip(_all(ours, "qos"), _all(arms[by_qos], "qos"), strict=True)],
            " points",
        ),
    ]
    against = [
        Line(
            f"{group}, {name}: makespan, against {other}",
            paper[1],
            _change(ours, arms[other], "makespan_h"),
            " %",
        )
        for other in dict.fromkeys((by_qos, by_time))
    ]
    return [*found, *against]


def _change(ours: Sequence[Played], base: Sequence[Played], figure: str) -> list[float]:
    """Return changes in percent, seed by seed; those from nothing are left out."""
    return [
        100 * (a / b - 1)
        for a, b in zip(_all(ours, figure), _all(base, figure), strict=True)
        if b > 0
    ]


def _lines_classes(results: Results) -> list[Line]:
    found = []
    for label, outcomes in results.items():
        found += [
            Line(f"{label}: tasks in time", "", _all(outcomes, "qos"), " %"),
            Line(f"{label}: prior tasks in time", "", _all(outcomes, "prior"), " %"),
            Line(f"{label}: normal tasks in time", "", _all(outcomes, "normal"), " %"),
            Line(f"{label}: makespan", "", _all(outcomes, "makespan_h"), " h"),
        ]
    return found


def _lines_predictions(results: Results) -> list[Line]:
    found = []
    for label, outcomes in results.items():
        light = not label.endswith("exhaustive")
        found += [
            Line(f"{label}: mean error", "< 5 %" if light else "", _all(outcomes, "error"), " %"),
            Line(f"{label}: 95th percentile", "", _all(outcomes, "error_p95"), " %"),
        ]
        for name in outcomes[0].figures if outcomes else ():
            if name.startswith("error at"):
                found.append(Line(f"{label}: mean {name}", "", _all(outcomes, name), " %"))
    return found


def _lines_prices(results: Results) -> list[Line]:
    return [
        Line(f"{label}: {name}", "", _all(outcomes, name))
        for label, outcomes in results.items()
        for name in ("1N1G", "1N4G", "4N1G", "2N2G", "4N4G")
    ]


def _lines_errors(results: Results) -> list[Line]:
    found = []
    for label, outcomes in results.items():
        found += [
            Line(f"{label}: mean error of latencies", "", _all(outcomes, "error"), " %"),
            Line(f"{label}: 95th percentile", "< 11 %", _all(outcomes, "error_p95"), " %"),
        ]
    return found


def _lines_overhead(results: Results) -> list[Line]:
    found = []
    for label, outcomes in results.items():
        ours = any(label.endswith(each) for each in OURS)
        paper = "< 2 %" if ours else ""
        found += [
            Line(f"{label}: all decisions", "", _all(outcomes, "cpu_s"), " s"),
            Line(f"{label}: part of the makespan", paper, _all(outcomes, "cpu_percent"), " %"),
        ]
    return found


def _profiles(_days: float | None) -> list[Any]:
    return list(genieprofile.SETTINGS)


def _lines_profiles(results: Results) -> list[Line]:
    found = []
    for label, outcomes in results.items():
        printed = label == genieprofile.SETTINGS[0].label
        found += [
            Line(
                f"{label}: runs for a type of task", "41" if printed else "", _all(outcomes, "runs")
            ),
            Line(f"{label}: measuring", "", _all(outcomes, "gpu_min"), " GPU-min"),
            Line(f"{label}: with starts", "", _all(outcomes, "gpu_min_starts"), " GPU-min"),
            Line(f"{label}: part of a day's GPU time", "", _all(outcomes, "share"), " %"),
            Line(
                f"{label}: mean error elsewhere",
                "< 5 %" if printed else "",
                _all(outcomes, "error"),
                " %",
            ),
            Line(f"{label}: 95th percentile", "", _all(outcomes, "error_p95"), " %"),
        ]
    return found


QOS, MAKESPAN = "+67.4 % at most", "-28.2 % at most"

EVERY = {**ALL, **OURS}
DECIDES = {
    **SENSIBLE,
    **OURS,
    ORACLE: OURS[BOTH],
    FREE: (OURS[BOTH][0], {**OURS[BOTH][1], "placements": "free"}),
}
EXPERIMENTS = (
    Experiment(
        "genie-fig10",
        "What placements cost",
        "GENIE, section 5.2.2, Figure 10",
        _prices,
        _lines_prices,
    ),
    Experiment(
        "genie-fig8",
        "Predicted and measured rates on 16 placements",
        "GENIE, section 5.1.5, Figure 8",
        _predictions,
        _lines_predictions,
    ),
    Experiment(
        "genie-profile",
        "What profiles cost, and what they buy",
        "GENIE, section 5.1.5: B + N + G runs",
        _profiles,
        _lines_profiles,
        "For each of six models in training; 10 tasks an hour for a day.",
    ),
    Experiment(
        "genie-fig13",
        "Six schedulers and GENIE on 16 GPUs",
        "GENIE, section 7.2.1, Figure 13; 7.2.2, Figures 14(a) and 14(b)",
        _by_density(EVERY, LONG_H, DENSITIES),
        _compared(QOS, MAKESPAN),
        "Tasks take 3.3 h on one GPU.",
    ),
    Experiment(
        "genie-fig13-short",
        "The same with shorter tasks",
        "GENIE, section 7.2.1, Figure 13; 7.2.2, Figures 14(a) and 14(b)",
        _by_density(EVERY, SHORT_H, DENSITIES),
        _compared(QOS, MAKESPAN),
        "Tasks take 1.5 h on one GPU.",
    ),
    Experiment(
        "genie-decides",
        "What decides: how the baselines and GENIE are read",
        "GENIE, section 7.2.1, Figure 13",
        _by_density({**ALL, **DECIDES}, LONG_H, DENSITIES),
        _compared(QOS, MAKESPAN),
        "Tasks take 3.3 h on one GPU.",
    ),
    Experiment(
        "genie-measured",
        "What decides, where three of the six models are as fast as Gavel measured on K80s",
        "GENIE, section 7.2.1, Figure 13",
        _by_density({**ALL, **DECIDES}, LONG_H, DENSITIES),
        _compared_with_errors,
        "Tasks take 3.3 h on one GPU. The models: ResNet-50, the language model, and seq2seq as "
        "fast as Gavel's Transformer.",
        needs="gavel",
    ),
    Experiment(
        "genie-fig14-classes",
        "Other parts of urgent and prior tasks",
        "GENIE, section 7.2.2, Figures 14(c) and 14(d)",
        _by_classes,
        _lines_classes,
        "15 tasks an hour. The paper's parts are in a picture; these are ours.",
    ),
    Experiment(
        "genie-fig14-durations",
        "Longer and shorter arrivals",
        "GENIE, section 7.2.2, Figures 14(e) and 14(f)",
        _by_duration,
        _compared("", ""),
        "15 tasks an hour.",
    ),
    Experiment(
        "genie-fig15",
        "Errors of predicted latencies",
        "GENIE, section 7.2.3, Figure 15",
        _by_density({PRINTED: OURS[PRINTED], BOTH: OURS[BOTH]}, LONG_H, DENSITIES),
        _lines_errors,
    ),
    Experiment(
        "genie-fig16",
        "What scheduling costs",
        "GENIE, section 7.2.4, Figure 16",
        _by_density(EVERY, LONG_H, DENSITIES),
        _lines_overhead,
        "Processor time of the whole simulated run: admission, decisions, nodes and tasks.",
    ),
    Experiment(
        "genie-fig17",
        "16 to 128 GPUs",
        "GENIE, section 7.3, Figure 17",
        _by_cluster,
        _compared("+46.5 % at most", "-20.8 % at most"),
        "20 tasks an hour.",
    ),
)
