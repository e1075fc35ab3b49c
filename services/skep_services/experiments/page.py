"""An experiment's report: the paper's figures beside ours, and pictures of the first seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from statistics import fmean

from skep_lab.experiments.catalogue import CELLS, QUOTAS
from skep_lab.experiments.gandiva import Played
from skep_lab.experiments.hived import Outcome
from skep_lab.experiments.report import Experiment, Line, Results
from skep_services.experiments import queues
from skep_services.simulations import plots
from skep_services.simulations.page import STYLE

SHOWN = ("prod-a", "prod-e")
"""The tenants of Figure 6."""
ARMS = ("private", "quota", "cells")
HOW = {
    "hived": "The workload is drawn from what the paper prints (Table 1, the load, the affinity of "
    "jobs); its trace was never published, so run times and arrivals are a fit to Philly's. The "
    "cells arm is the production allocator on a virtual clock. Settings with cells are a week of "
    "submissions, quotas alone the two months, the testbed ten days, unless days were asked for. "
    "Jobs larger than all their tenant owns are left out of every arm.",
    "gandiva": "The production allocator, introspector and searches on a virtual clock. What the "
    "paper does not print, and what stands in for it, is said in "
    "skep_lab.traces.generators.gandiva and gandivadays, and in "
    "skep_lab.experiments.gandiva and multijob.",
    "genie": "The production allocator on a virtual clock, under the policies genie, sized and "
    "deadline. The speeds of tasks are curves that stand in for the paper's K80s, and stated in "
    "skep_lab.traces.generators.k80; what is left open is an option "
    "(docs/experiments/genie.md).",
}
"""By the paper, the first word of an experiment's name."""


def page(experiment: Experiment, results: Results, lines: Sequence[Line], told: str) -> str:
    """Return the report as one HTML file that loads nothing.

    Args:
        experiment: What was run.
        results: The outcomes by setting.
        lines: The paper's figures beside ours.
        told: How it was run, in words.
    """
    heads = "".join(
        f"<th>{each}</th>" for each in ("Figure", "Paper", "Ours: mean ± deviation (least to most)")
    )
    body = "\n".join(
        f"<tr><td>{escape(line.what)}</td><td>{escape(line.paper) or '-'}</td>"
        f"<td>{escape(line.spread())}</td></tr>"
        for line in lines
    )
    figures = "".join(f"<figure>{each}</figure>" for each in pictures(experiment, results))
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{escape(experiment.title)}</title>",
            f"<style>{STYLE}</style></head><body>",
            f"<h1>{escape(experiment.title)}</h1>",
            f'<p class="about">{escape(experiment.source)}; {escape(told)} '
            f"{escape(experiment.about)}</p>",
            f'<div class="wide"><table><tr>{heads}</tr>\n{body}\n</table></div>',
            f'<h2>Pictures</h2><div class="plots">{figures}</div>',
            f"<h2>How it is run</h2><p>{HOW[experiment.name.partition('-')[0]]}</p>",
            "</body></html>\n",
        ]
    )


def pictures(experiment: Experiment, results: Results) -> list[str]:
    """Return the pictures: delays by tenant, and over time for the first seed of each setting."""
    found: list[str] = []
    if experiment.name.startswith("genie"):
        return queues.pictures(experiment.name, results)
    if any(isinstance(each, Played) for outcomes in results.values() for each in outcomes):
        return _played(results)
    for label, outcomes in results.items():
        if not outcomes:
            continue
        first = outcomes[0]
        if "private" in first.completion_s:
            found.append(_tenants(label, outcomes))
        if experiment.name.startswith("hived-fig6") or experiment.name == "hived-fig5":
            found += [_delays(label, vc, first) for vc in SHOWN]
        if experiment.name.startswith("hived-fig6"):
            found.append(
                _fragmentation([(arm, first.fragmentation[arm]) for arm in first.fragmentation])
            )
    if experiment.name in FOCUS:
        found.insert(0, _ratios(FOCUS[experiment.name], results))
    elif experiment.name.startswith("hived-load"):
        found.insert(0, _shares(results))
    if experiment.name in ("hived-fig10", "hived-fig11"):
        found.append(
            _fragmentation(
                [
                    (label, outcomes[0].fragmentation["cells"])
                    for label, outcomes in results.items()
                    if outcomes
                ]
            )
        )
    if experiment.name == "hived-fig10":
        values = [
            float(sum(each.preempted_gpus["cells"] for each in outcomes) / len(outcomes))
            if outcomes
            else None
            for outcomes in results.values()
        ]
        found.append(
            plots.bars(
                "Preempted GPUs, mean of the seeds",
                list(results),
                [plots.Bars("preempted", values)],
                plots.number_text,
                x_title="GPUs",
            )
        )
    return found


FOCUS = {
    "hived-fig8": "res-f",
    "hived-fig8-quotas": "res-f",
    "hived-fig9": "prod-a",
    "hived-load-shapes": "res-f",
    "hived-load-soft": "prod-a",
}
"""The tenant that a figure shows, setting by setting."""


def _ratios(vc: str, results: Results) -> str:
    """Return a tenant's delay over that alone, by setting and arm: least, mean and most."""
    found: dict[str, dict[str, list[float]]] = {}
    for label, outcomes in results.items():
        arm = "cells" if label.endswith(CELLS) else "quota"
        _, comma, last = label.removesuffix(CELLS).removesuffix(QUOTAS).rpartition(", ")
        name = f"and {last}" if comma else last.rpartition(": ")[-1]
        found.setdefault(name, {})[arm] = [
            getattr(each.tenants[vc], f"{arm}_s") / max(each.tenants[vc].private_s, 60.0)
            for each in outcomes
        ]
    arms = [arm for arm in ("quota", "cells") if any(arm in each for each in found.values())]
    drawn = [
        plots.Bars(
            f"{arm}, {name}",
            [reduce(each[arm]) if each.get(arm) else None for each in found.values()],
        )
        for arm in arms
        for name, reduce in SPREAD.items()
    ]
    title = f"{vc}: mean delay over that alone, by seeds"
    return plots.dots(title, list(found), drawn, plots.number_text, x_title="ratio of delays")


SPREAD: dict[str, Callable[[list[float]], float]] = {"least": min, "mean": fmean, "most": max}
DRAWN = {
    "busy": ("GPUs' mean utilisation", plots.part_text, "part of the GPUs' time"),
    "completion": ("Jobs that ended within a time", plots.part_text, "jobs"),
    "packs kept": ("Packs that were kept, counted from the first", plots.number_text, "packs"),
    "explored": ("Configurations that have trained", plots.number_text, "configurations"),
}
"""Curves of Gandiva's experiments: title, what values are called, and what is along the side."""


def _played(results: Results) -> list[str]:
    """Return each kind of curve in one picture, of the first seed of each setting."""
    found = []
    for name, (title, text, side) in DRAWN.items():
        drawn = [
            plots.Line(label, outcomes[0].curves[name], stepped=name != "completion")
            for label, outcomes in results.items()
            if outcomes and outcomes[0].curves.get(name)
        ]
        if drawn:
            found.append(
                plots.lines(
                    f"{title}, first seed",
                    drawn[:CURVES_MAX],
                    _minutes,
                    text,
                    x_log=name == "completion",
                    x_title="time since submission" if name == "completion" else "time",
                    y_title=side,
                )
            )
    return found


def _minutes(value: float) -> str:
    return f"{value:g} min"


CURVES_MAX = 8
"""Lines of one picture."""


def _shares(results: Results) -> str:
    """Return the delay of `prod-a` over its private one, by load, where there are quotas."""
    results = {
        label: outcomes
        for label, outcomes in results.items()
        if not outcomes or "quota" in outcomes[0].completion_s
    }
    ratios = [
        [
            each.tenants[SHOWN[0]].quota_s / max(each.tenants[SHOWN[0]].private_s, 60.0)
            for each in outcomes
        ]
        for outcomes in results.values()
    ]
    means = [sum(each) / len(each) if each else None for each in ratios]
    title = f"{SHOWN[0]}: mean delay under quotas over that alone, mean of the seeds"
    return plots.bars(
        title,
        list(results),
        [plots.Bars("quota over private", means)],
        plots.number_text,
        x_title="ratio of delays",
    )


def _tenants(label: str, outcomes: Sequence[Outcome]) -> str:
    names = list(outcomes[0].tenants)
    arms = [arm for arm in ARMS if arm in outcomes[0].completion_s]
    drawn = [
        plots.Bars(
            arm,
            [
                sum(getattr(each.tenants[vc], f"{arm}_s") for each in outcomes) / len(outcomes)
                for vc in names
            ],
        )
        for arm in arms
    ]
    return plots.bars(
        f"{label}: mean queueing delay",
        names,
        drawn,
        plots.seconds_text,
        x_title="time in the queue",
    )


def _delays(label: str, vc: str, outcome: Outcome) -> str:
    drawn = [plots.Line(arm, points) for arm, points in outcome.delays[vc].items()]
    title = f"{label}, seed {outcome.seed}: delay of {vc} by time of submission"
    return plots.lines(
        title,
        drawn,
        _day,
        plots.seconds_text,
        x_title="time of submission",
        y_title="queueing delay",
    )


def _fragmentation(levels: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> str:
    drawn = [plots.Line(name, points, stepped=True) for name, points in levels]
    title = "Nodes that cannot serve 8 GPUs at high priority, first seed"
    return plots.lines(
        title, drawn, _day, plots.part_text, y_max=1.0, x_title="time", y_title="nodes"
    )


def _day(value: float) -> str:
    return f"day {value:g}"
