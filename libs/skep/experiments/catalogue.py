"""The experiments by name: their settings, what is measured, and what the paper printed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from skep.experiments import hived as arms
from skep.experiments.hived import Outcome
from skep.traces.generators import hived

DAYS = 20.0
"""Figure 6 shows 20 days of submissions."""


class Setting(NamedTuple):
    """One setting of an experiment, run for every seed."""

    label: str
    nodes: int
    options: hived.Options
    arms: tuple[str, ...] = ("private", "quota", "cells")
    policy: tuple[str, dict[str, Any]] = ("fifo", {})
    levels: bool = False
    """Cells of every level, after each tenant's demand, instead of whole nodes."""
    beside: bool = False
    """Leave out what either whole nodes or cells of every level cannot hold."""
    fixed: bool = False
    """Cells bound to hardware for good."""


class Line(NamedTuple):
    """One figure that is compared: what it is, the paper's, ours for every seed, and its unit."""

    what: str
    paper: str
    ours: list[float]
    unit: str = ""
    note: str = ""

    def spread(self) -> str:
        """Return mean, standard deviation and range over seeds."""
        if not self.ours:
            return "-"
        deviation = stdev(self.ours) if len(self.ours) > 1 else 0.0
        low, high = min(self.ours), max(self.ours)
        return f"{fmean(self.ours):.3g} ± {deviation:.2g} ({low:.3g} to {high:.3g}){self.unit}"


Results = dict[str, list[Outcome]]
"""By the setting's label, in the order of seeds."""


class Experiment(NamedTuple):
    """One of the paper's figures."""

    name: str
    title: str
    source: str
    settings: Callable[[float], list[Setting]]
    lines: Callable[[Results], list[Line]]
    about: str = ""


def play(setting: Setting, seed: int, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Return what comes of one setting and seed."""
    cells = hived.assign_levels(setting.nodes) if setting.levels else None
    other = hived.assign if setting.levels else hived.assign_levels
    beside = other(setting.nodes) if setting.beside else None
    fixed = arms.static(setting.nodes) if setting.fixed else None
    return arms.compare(
        seed, setting.nodes, setting.options, cells=cells, policy=setting.policy,
        arms=setting.arms, cluster=fixed, beside=beside, tell=tell,
    )  # fmt: skip


# --- settings -------------------------------------------------------------------------------------


def _options(days: float, **more: Any) -> hived.Options:
    return hived.Options(days=days, **more)


def _fig5(days: float) -> list[Setting]:
    part = hived.NODES_TESTBED / hived.NODES
    options = _options(min(days, 10.0), part=part)
    own = ("private", "cells")
    return [
        Setting("yarn-cs", hived.NODES_TESTBED, options),
        Setting("tiresias-l", hived.NODES_TESTBED, options, own, ("tiresias-l", {})),
        Setting("gandiva", hived.NODES_TESTBED, options, own, ("gandiva", {})),
    ]


def _fig6a(days: float) -> list[Setting]:
    return [Setting("279 nodes", hived.NODES, _options(days))]


def _fig6b(days: float) -> list[Setting]:
    return [Setting("200 nodes", hived.NODES_LOADED, _options(days))]


def _fig7(days: float) -> list[Setting]:
    found = []
    for without in ((), ("prod-a",), ("prod-a", "res-f")):
        owned = hived.assign(hived.NODES_LOADED)
        nodes = hived.NODES_LOADED - sum(owned[each].get("node", 0) for each in without)
        label = f"without {' and '.join(without)}" if without else "all tenants"
        found.append(Setting(label, nodes, _options(days, without=without)))
    return found


def _fig8(days: float) -> list[Setting]:
    large = ("res-f", "prod-e", "prod-d", "prod-c")
    return [
        Setting(f"8 GPUs: {', '.join(large[:count])}", hived.NODES_LOADED,
                _options(days, reshaped=large[:count]))
        for count in range(1, 5)
    ]  # fmt: skip


def _fig9(days: float) -> list[Setting]:
    return [Setting(f"{part:.0%} soft", hived.NODES_LOADED, _options(days, soft=part))
            for part in (0.25, 0.5, 0.75)]  # fmt: skip


def _fig10(days: float) -> list[Setting]:
    return [Setting("dynamic", hived.NODES, _options(days), ("cells",)),
            Setting("static", hived.NODES, _options(days), ("cells",), fixed=True)]  # fmt: skip


def _fig11(days: float) -> list[Setting]:
    return [Setting("nodes only", hived.NODES, _options(days), ("cells",), beside=True),
            Setting("all levels", hived.NODES, _options(days), ("cells",), levels=True,
                    beside=True)]  # fmt: skip


# --- figures --------------------------------------------------------------------------------------


def _safety(outcomes: Sequence[Outcome], label: str = "") -> list[Line]:
    """Return how many tenants are worse off than alone."""
    name = f"{label}: " if label else ""
    return [
        Line(f"{name}tenants worse off than alone, cells", "0",
             [each.anomalies["cells"] for each in outcomes]),
        Line(f"{name}windows of 12 h worse than alone, cells, part of all", "0",
             [_part(each, "cells") for each in outcomes]),
    ]  # fmt: skip


def _part(outcome: Outcome, arm: str) -> float:
    worse: int = sum(getattr(each, f"{arm}_windows") for each in outcome.tenants.values())
    return worse / max(1, sum(each.windows for each in outcome.tenants.values()))


def _excess(outcomes: Sequence[Outcome], vc: str, arm: str) -> list[float]:
    return [getattr(each.tenants[vc], f"{arm}_excess_s") / 60 for each in outcomes]


def _ratio(outcomes: Sequence[Outcome], vc: str, arm: str) -> list[float]:
    """Return a tenant's mean delay over that in its private cluster (of at least a minute)."""
    return [getattr(each.tenants[vc], f"{arm}_s") / max(each.tenants[vc].private_s, 60.0)
            for each in outcomes]  # fmt: skip


def _lines_fig5(results: Results) -> list[Line]:
    yarn = results["yarn-cs"]
    found = [Line("yarn-cs, quota: worst window of prod-a over private", "1000 min",
                  _excess(yarn, "prod-a", "quota"), " min")]  # fmt: skip
    found.append(Line("yarn-cs: mean completion, cells over quota", "at most 1.03",
                      [each.completion_s["cells"] / each.completion_s["quota"]
                       for each in yarn]))  # fmt: skip
    for label, outcomes in results.items():
        found += _safety(outcomes, label)
        found.append(Line(f"{label}: mean completion, cells over private", "",
                          [each.completion_s["cells"] / each.completion_s["private"]
                           for each in outcomes]))  # fmt: skip
    return found


def _lines_fig6(excess: str) -> Callable[[Results], list[Line]]:
    def lines(results: Results) -> list[Line]:
        (outcomes,) = results.values()
        return [
            Line("quota: worst window of prod-a over private", excess,
                 _excess(outcomes, "prod-a", "quota"), " min"),
            Line("cells: worst window of prod-a over private", "0 min",
                 _excess(outcomes, "prod-a", "cells"), " min"),
            Line("quota: worst window of prod-e over private", "0 min",
                 _excess(outcomes, "prod-e", "quota"), " min"),
            Line("quota: tenants worse off than alone", "",
                 [each.anomalies["quota"] for each in outcomes]),
            *_safety(outcomes),
            *(Line(f"{arm}: nodes that cannot serve 8 GPUs at high priority, mean part", "",
                   [fmean(level for _, level in each.fragmentation[arm]) for each in outcomes])
              for arm in ("quota", "cells")),
            *(Line(f"{arm}: part of the GPUs with a job", "",
                   [each.utilisation[arm] for each in outcomes]) for arm in ("quota", "cells")),
        ]  # fmt: skip

    return lines


def _lines_fig7(results: Results) -> list[Line]:
    every = results["all tenants"]
    better = [float(sum(each.cells_s < each.quota_s for each in outcome.tenants.values()))
              for outcome in every]  # fmt: skip
    found = [
        Line("quota: prod-a's delay over private", "7", _ratio(every, "prod-a", "quota")),
        Line("cells: prod-a's delay over private", "below 1", _ratio(every, "prod-a", "cells")),
        Line("tenants better off with cells than with quota", "9 of 11", better),
    ]  # fmt: skip
    if "without prod-a" in results:
        found.append(Line("without prod-a, quota: res-f's delay over private", "1.7",
                          _ratio(results["without prod-a"], "res-f", "quota")))  # fmt: skip
    for label, outcomes in results.items():
        found += [Line(f"{label}, quota: tenants worse off than alone",
                       "0" if "res-f" in label else "1 or more",
                       [each.anomalies["quota"] for each in outcomes]),
                  *_safety(outcomes, label)]  # fmt: skip
    return found


def _lines_fig8(results: Results) -> list[Line]:
    found = []
    for (label, outcomes), paper in zip(results.items(), ("132", "4.3", "1.9", "0.9"), strict=True):
        found += [
            Line(f"{label}; workload fragmentation", "0.91" if paper == "132" else "",
                 [each.workload_fragmentation for each in outcomes]),
            Line(f"{label}, quota: res-f's delay over private", paper,
                 _ratio(outcomes, "res-f", "quota")),
            Line(f"{label}, cells: res-f's delay over private", "below 1",
                 _ratio(outcomes, "res-f", "cells")),
            *_safety(outcomes, label),
        ]  # fmt: skip
    return found


def _lines_fig9(results: Results) -> list[Line]:
    found = []
    for label, outcomes in results.items():
        paper = "1.3" if label.startswith("50") else "about 1"
        found += [
            Line(f"{label}, quota: prod-a's delay over private", paper,
                 _ratio(outcomes, "prod-a", "quota")),
            Line(f"{label}, cells: prod-a's delay over private", "below 1",
                 _ratio(outcomes, "prod-a", "cells")),
            *_safety(outcomes, label),
        ]  # fmt: skip
    return found


def _lines_fig10(results: Results) -> list[Line]:
    pairs = list(zip(results["dynamic"], results["static"], strict=True))
    return [
        Line("preempted GPUs, dynamic binding", "",
             [float(each.preempted_gpus["cells"]) for each, _ in pairs]),
        Line("preempted GPUs, static binding", "",
             [float(each.preempted_gpus["cells"]) for _, each in pairs]),
        Line("fewer preempted GPUs with dynamic binding", "55 %",
             [100 * (1 - a.preempted_gpus["cells"] / max(1, b.preempted_gpus["cells"]))
              for a, b in pairs], " %"),
    ]  # fmt: skip


def _lines_fig11(results: Results) -> list[Line]:
    pairs = list(zip(results["nodes only"], results["all levels"], strict=True))

    def level(outcome: Outcome) -> float:
        return 100 * fmean(level for _, level in outcome.fragmentation["cells"])

    gaps = [[100 * (one - two) for one, two in
             _together(a.fragmentation["cells"], b.fragmentation["cells"])]
            for a, b in pairs]  # fmt: skip
    return [
        Line("fragmentation, cells of node level only", "", [level(a) for a, _ in pairs], " %"),
        Line("fragmentation, cells of all levels", "", [level(b) for _, b in pairs], " %"),
        Line("largest gap", "20 points", [max(each) for each in gaps], " points"),
        Line("part of the time with a gap above 10 points", "most of the time",
             [sum(gap > 10 for gap in each) / len(each) for each in gaps]),
    ]  # fmt: skip


def _together(
    one: Sequence[tuple[float, float]], two: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the levels of both at the times of the first: runs end at different times."""
    times = [at for at, _ in two]
    return [(level, two[max(0, bisect_right(times, at) - 1)][1]) for at, level in one]


EXPERIMENTS = {
    each.name: each
    for each in (
        Experiment("hived-fig5", "Three schedulers on 96 GPUs", "HiveD, section 5.1, Figure 5",
                   _fig5, _lines_fig5,
                   "The quota arm is there for yarn-cs only; Gandiva without migration."),
        Experiment("hived-fig6a", "The production cluster: 279 nodes",
                   "HiveD, section 5.2, Figure 6(a)", _fig6a, _lines_fig6("200 min")),
        Experiment("hived-fig6b", "A higher load: 200 nodes", "HiveD, section 5.2, Figure 6(b)",
                   _fig6b, _lines_fig6("8000 min")),
        Experiment("hived-fig7", "Every tenant's delay, and tenants that leave",
                   "HiveD, section 5.2, Figure 7", _fig7, _lines_fig7),
        Experiment("hived-fig8", "Jobs reshaped to 8 GPUs or 1", "HiveD, section 5.2, Figure 8",
                   _fig8, _lines_fig8),
        Experiment("hived-fig9", "Soft affinity", "HiveD, section 5.2, Figure 9",
                   _fig9, _lines_fig9),
        Experiment("hived-fig10", "Dynamic and static binding", "HiveD, section 5.3, Figure 10",
                   _fig10, _lines_fig10),
        Experiment("hived-fig11", "Cells of one level, and of all", "HiveD, section 5.3, Figure 11",
                   _fig11, _lines_fig11),
    )
}  # fmt: skip
