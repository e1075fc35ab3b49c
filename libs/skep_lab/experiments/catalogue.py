"""The experiments by name: their settings, what is measured, and what the paper printed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import msgspec

from skep_lab.experiments import deadlinefigures, gandivafigures, geniefigures
from skep_lab.experiments.hived import TURNS, Outcome
from skep_lab.experiments.quota import Rules
from skep_lab.experiments.quotagandiva import SLICE_S
from skep_lab.experiments.report import Experiment, Line, Results
from skep_lab.experiments.setting import Setting
from skep_lab.traces.generators import hived

WEEK = 7.0
"""Days of submissions where there are cells: the production allocator takes its time."""
TESTBED = 10.0
"""Days of section 5.1's trace."""


# --- settings -------------------------------------------------------------------------------------


def _cells(label: str, nodes: int, days: float | None, **more: Any) -> Setting:
    """Return a setting with all three arms."""
    return Setting(f"{label}{CELLS}", nodes, hived.Options(days=days or WEEK, **more))


def _both(label: str, nodes: int, days: float | None, **more: Any) -> list[Setting]:
    """Return a setting for a time that cells can be run for, and one for quotas all the time."""
    return [
        _cells(label, nodes, days, **more),
        Setting(
            f"{label}{QUOTAS}",
            nodes,
            hived.Options(days=days or 0.0, **more),
            ("private", "quota"),
            plain=True,
        ),
    ]


def _fig5(days: float | None) -> list[Setting]:
    part = hived.NODES_TESTBED / hived.NODES
    options = hived.Options(days=min(days or TESTBED, TESTBED), part=part)
    las: tuple[str, dict[str, Any]] = ("tiresias-l", {})
    turns: tuple[str, dict[str, Any]] = ("gandiva", {"slice_s": SLICE_S})
    without = ("private", "cells")
    quotas = ("private", "quota")
    nodes = hived.NODES_TESTBED
    return [
        Setting("yarn-cs", nodes, options),
        Setting("tiresias-l", nodes, options, policy=las),
        Setting("gandiva", nodes, options, policy=turns, manner=TURNS),
        Setting(
            # tidy: allow word because stored results have this label
            "gandiva, nobody borrows",
            nodes,
            options,
            without,
            turns,
            manner=TURNS._replace(beyond="wait"),
        ),
        Setting("gandiva, stored", nodes, options, without, ("gandiva", {})),
        Setting(f"yarn-cs{QUOTAS}", nodes, options, quotas, plain=True),
        Setting(f"tiresias-l{QUOTAS}", nodes, options, quotas, las, plain=True),
        Setting(f"gandiva{QUOTAS}", nodes, options, quotas, turns, plain=True),
    ]


def _fig6a(days: float | None) -> list[Setting]:
    return _both("279 nodes", hived.NODES, days)


def _fig6b(days: float | None) -> list[Setting]:
    return _both("200 nodes", hived.NODES_LOADED, days)


def _fig7(days: float | None) -> list[Setting]:
    found = []
    for label, without in LEFT.items():
        owned = hived.assign(hived.NODES_LOADED)
        nodes = hived.NODES_LOADED - sum(owned[each].get("node", 0) for each in without)
        found += _both(label, nodes, days, without=without)
    return found


def _fig8(days: float | None) -> list[Setting]:
    return [
        setting
        for count in range(1, 5)
        for setting in _both(_large(count), hived.NODES_LOADED, days, reshaped=LARGE[:count])
    ]


def _fig9(days: float | None) -> list[Setting]:
    return [
        setting
        for part in SOFT
        for setting in _both(f"{part:.0%} soft", hived.NODES_LOADED, days, soft=part)
    ]


def _fig10(days: float | None) -> list[Setting]:
    return [
        _cells("dynamic", hived.NODES, days),
        Setting("static", hived.NODES, hived.Options(days=days or WEEK), ("cells",), fixed=True),
    ]


def _fig11(days: float | None) -> list[Setting]:
    options = hived.Options(days=days or WEEK)
    return [
        Setting("nodes only", hived.NODES, options, ("cells",), beside=True),
        Setting("all levels", hived.NODES, options, ("cells",), levels=True, beside=True),
    ]


def _load(days: float | None) -> list[Setting]:
    """Return loads other than the generator's: not part of what was fixed before any result."""
    odd = _other(DOUBTFUL, days)[1]
    return [
        *(_other(each, days)[1] for each in LOADS),
        odd._replace(label=f"{odd.label}, no promotion", rules=Rules(promote=False)),
        odd._replace(label=f"{odd.label}, least used first", rules=Rules(least_used=True)),
    ]


def _load_cells(days: float | None) -> list[Setting]:
    """Return one of those loads for a time that cells can be run for."""
    return _other(PRESSED, days)[:1]


def _other(loads: tuple[float, float, float], days: float | None) -> list[Setting]:
    load, own, sigma = loads
    return _both(
        _loaded(*loads),
        hived.NODES_LOADED,
        days,
        load=load,
        loads=() if own == load else (f"prod-a:{own:g}",),
        day_sigma=sigma,
    )


def _fig8_quotas(days: float | None) -> list[Setting]:
    return [each for each in _fig8(days) if each.plain]


def _load_shapes(days: float | None) -> list[Setting]:
    """Return Figure 8's quotas where the tenant that it shows asks for less than all others."""
    return [_asked(each, "res-f") for each in _fig8_quotas(days)]


def _load_soft(days: float | None) -> list[Setting]:
    """Return Figure 9's quotas where the tenant that it shows asks for less than all others."""
    return [_asked(each, "prod-a") for each in _fig9(days) if each.plain]


def _asked(setting: Setting, tenant: str) -> Setting:
    load, own, _ = DOUBTFUL
    loads = (f"{tenant}:{own:g}",)
    return setting._replace(
        options=msgspec.structs.replace(setting.options, load=load, loads=loads)
    )


def _testbed(days: float | None) -> list[Setting]:
    """Return settings of Figure 5, with quotas for Gandiva, where all but prod-a ask for more."""
    own = f"prod-a:{TESTBED_OWN:g}"
    found = []
    for each in _fig5(days):
        if each.manner == TURNS and "quota" not in each.arms:
            continue
        if each.plain and each.policy[0] != "gandiva":
            continue
        label = each.label if each.plain else f"{each.label}{CELLS}"
        found.append(
            each._replace(
                label=f"testbed, load {TESTBED_LOAD:g}, prod-a {TESTBED_OWN:g}, {label}",
                options=msgspec.structs.replace(each.options, load=TESTBED_LOAD, loads=(own,)),
            )
        )
    return found


CELLS, QUOTAS = ": cells", ": quotas"
LEFT: dict[str, tuple[str, ...]] = {
    "all tenants": (),
    "without prod-a": ("prod-a",),
    "without prod-a and res-f": ("prod-a", "res-f"),
}
LARGE = ("res-f", "prod-e", "prod-d", "prod-c")
SOFT = (0.25, 0.5, 0.75)
STEADY, USUAL = 0.4, hived.DEFAULT.day_sigma
PRESSED = (1.6, 0.5, USUAL)
DOUBTFUL = (1.3, 0.5, USUAL)
"""Run by other rules of the quotas' scheduler as well."""
TESTBED_LOAD, TESTBED_OWN = 3.0, 0.9
LOADS = (
    (0.9, 0.9, USUAL),
    (1.1, 1.1, USUAL),
    (1.3, 1.3, USUAL),
    (1.1, 0.5, USUAL),
    DOUBTFUL,
    PRESSED,
    (1.6, 0.7, USUAL),
    (1.3, 1.3, STEADY),
    (1.3, 0.5, STEADY),
)
"""Everybody's load, prod-a's, and how much days differ."""


def _large(count: int) -> str:
    return f"8 GPUs: {', '.join(LARGE[:count])}"


def _loaded(load: float, own: float, sigma: float) -> str:
    prod_a = "" if own == load else f", prod-a {own:g}"
    return f"load {load:g}{prod_a}{', steadier days' if sigma == STEADY else ''}"


# --- figures --------------------------------------------------------------------------------------


def _safety(outcomes: Sequence[Outcome], label: str = "", arm: str = "cells") -> list[Line]:
    """Return lines on tenants worse off than alone: in total, by window, and job by job."""
    name = f"{label}, {arm}" if label else arm
    paper = "0" if arm == "cells" else ""
    return [
        Line(
            f"{name}: tenants worse off than alone",
            paper,
            [each.anomalies[arm] for each in outcomes],
        ),
        Line(
            f"{name}: windows of 12 h worse than alone, part of all",
            paper,
            [_part(each, arm, "windows") for each in outcomes],
        ),
        Line(
            f"{name}: jobs that wait a minute longer than alone, part of all",
            "",
            [_part(each, arm, "jobs") for each in outcomes],
        ),
    ]


def _part(outcome: Outcome, arm: str, what: str) -> float:
    tenants = outcome.tenants.values()
    worse: int = sum(getattr(each, f"{arm}_{what}") for each in tenants)
    every: int = sum(getattr(each, what) for each in tenants)
    return worse / max(1, every)


def _excess(outcomes: Sequence[Outcome], vc: str, arm: str) -> list[float]:
    return [getattr(each.tenants[vc], f"{arm}_excess_s") / 60 for each in outcomes]


def _ratio(outcomes: Sequence[Outcome], vc: str, arm: str) -> list[float]:
    """Return a tenant's mean delay over that in its private cluster (of at least a minute)."""
    return [
        getattr(each.tenants[vc], f"{arm}_s") / max(each.tenants[vc].private_s, 60.0)
        for each in outcomes
    ]


def _whole(outcomes: Sequence[Outcome]) -> list[float]:
    """Return for which part of the time not one node has 8 GPUs for high priority."""
    return [
        sum(level >= 1 for _, level in each.fragmentation["quota"])
        / max(1, len(each.fragmentation["quota"]))
        for each in outcomes
    ]


def _lines_fig5(results: Results) -> list[Line]:
    found = []
    for label, paper, worse in (
        ("yarn-cs", "1000 min", "at most 1.03"),
        ("tiresias-l", "330 min", ""),
        ("gandiva", "400 min", "0.88"),
    ):
        quotas = results[f"{label}{QUOTAS}"]
        found += [
            Line(
                f"{label}, quota: worst window of prod-a over private",
                paper,
                _excess(quotas, "prod-a", "quota"),
                " min",
            ),
            *_safety(quotas, label, "quota"),
            Line(
                f"{label}: mean completion, cells over quota",
                worse,
                [
                    each.completion_s["cells"] / each.completion_s["quota"]
                    for each in results[label]
                ],
            ),
        ]
    for label, outcomes in results.items():
        if label.endswith(QUOTAS):
            continue
        found += _safety(outcomes, label)
        found.append(
            Line(
                f"{label}: mean completion, cells over private",
                "",
                [each.completion_s["cells"] / each.completion_s["private"] for each in outcomes],
            )
        )
    return found


def _lines_fig6(label: str, excess: str, level: str, high: str) -> Callable[[Results], list[Line]]:
    def lines(results: Results) -> list[Line]:
        week, months = results[f"{label}{CELLS}"], results[f"{label}{QUOTAS}"]
        return [
            Line(
                "quota: part of the GPUs with high-priority jobs",
                high,
                [each.high for each in months],
            ),
            Line(
                "quota: part of the time when no node serves 8 GPUs at high priority",
                level,
                _whole(months),
            ),
            Line(
                "quota: worst window of prod-a over private",
                excess,
                _excess(months, "prod-a", "quota"),
                " min",
            ),
            Line(
                "quota: worst window of prod-e over private",
                "0 min",
                _excess(months, "prod-e", "quota"),
                " min",
            ),
            *_safety(months, arm="quota"),
            Line(
                "cells: worst window of prod-a over private",
                "0 min",
                _excess(week, "prod-a", "cells"),
                " min",
            ),
            Line(
                "cells: worst window of prod-e over private",
                "0 min",
                _excess(week, "prod-e", "cells"),
                " min",
            ),
            *_safety(week),
            *(
                Line(
                    f"{arm}, the cells' time: nodes that cannot serve 8 GPUs at high priority, "
                    "mean part",
                    "",
                    [fmean(level for _, level in each.fragmentation[arm]) for each in week],
                )
                for arm in ("quota", "cells")
            ),
            *(
                Line(
                    f"{arm}, the cells' time: part of the GPUs with a job",
                    "",
                    [each.utilisation[arm] for each in week],
                )
                for arm in ("quota", "cells")
            ),
        ]

    return lines


def _lines_fig7(results: Results) -> list[Line]:
    week, months = results[f"all tenants{CELLS}"], results[f"all tenants{QUOTAS}"]
    better = [
        float(sum(each.cells_s < each.quota_s for each in outcome.tenants.values()))
        for outcome in week
    ]
    found = [
        Line("quota: prod-a's delay over private", "7", _ratio(months, "prod-a", "quota")),
        Line("cells: prod-a's delay over private", "below 1", _ratio(week, "prod-a", "cells")),
        Line(
            "quota, the cells' time: prod-a's delay over private",
            "",
            _ratio(week, "prod-a", "quota"),
        ),
        Line("tenants better off with cells than with quota", "9 of 11", better),
        Line("quota: res-f's delay over private", "0.91", _ratio(months, "res-f", "quota")),
        Line(
            "without prod-a, quota: res-f's delay over private",
            "1.7",
            _ratio(results[f"without prod-a{QUOTAS}"], "res-f", "quota"),
        ),
    ]
    for label in LEFT:
        found += _safety(results[f"{label}{QUOTAS}"], label, "quota")
        found += _safety(results[f"{label}{CELLS}"], label)
    return found


def _lines_fig8(results: Results) -> list[Line]:
    found = []
    for count, paper in enumerate(("132", "4.3", "1.9", "0.9"), 1):
        label = _large(count)
        week, months = results.get(f"{label}{CELLS}", []), results[f"{label}{QUOTAS}"]
        found += [
            Line(
                f"{label}; workload fragmentation",
                "0.91" if count == 1 else "",
                [each.workload_fragmentation for each in months],
            ),
            Line(
                f"{label}, quota: res-f's delay over private",
                paper,
                _ratio(months, "res-f", "quota"),
            ),
            *_both_arms(label, "res-f", week, months),
        ]
    return found


def _lines_fig9(results: Results) -> list[Line]:
    found = []
    for part in SOFT:
        label = f"{part:.0%} soft"
        week, months = results.get(f"{label}{CELLS}", []), results[f"{label}{QUOTAS}"]
        found += [
            Line(
                f"{label}, quota: prod-a's delay over private",
                "1.3" if part == 0.5 else "about 1",
                _ratio(months, "prod-a", "quota"),
            ),
            *_both_arms(label, "prod-a", week, months),
        ]
    return found


def _both_arms(
    label: str, vc: str, week: Sequence[Outcome], months: Sequence[Outcome]
) -> list[Line]:
    """Return lines on a tenant and on all under quotas, and under cells if these were run."""
    found = [
        Line(
            f"{label}: {vc} alone, mean delay",
            "",
            [each.tenants[vc].private_s / 60 for each in months],
            " min",
        ),
        Line(
            f"{label}, quota: worst window of {vc} over private",
            "",
            _excess(months, vc, "quota"),
            " min",
        ),
        *_safety(months, label, "quota"),
    ]
    if week:
        found += [
            Line(
                f"{label}, cells: {vc}'s delay over private", "below 1", _ratio(week, vc, "cells")
            ),
            *_safety(week, label),
        ]
    return found


def _lines_load(results: Results) -> list[Line]:
    found = []
    for label, outcomes in results.items():
        arms = [arm for arm in ("quota", "cells") if outcomes and arm in outcomes[0].completion_s]
        if "quota" in arms:
            found += [
                Line(
                    f"{label}: part of the GPUs with high-priority jobs",
                    "about 0.9",
                    [each.high for each in outcomes],
                ),
                Line(
                    f"{label}: part of the time when no node serves 8 GPUs at high priority",
                    "most",
                    _whole(outcomes),
                ),
            ]
        found.append(
            Line(
                f"{label}: prod-a alone, mean delay",
                "",
                [each.tenants["prod-a"].private_s / 60 for each in outcomes],
                " min",
            )
        )
        for arm in arms:
            under = arm == "cells"
            found += [
                Line(
                    f"{label}, {arm}: prod-a's delay over private",
                    "below 1" if under else "7",
                    _ratio(outcomes, "prod-a", arm),
                ),
                Line(
                    f"{label}, {arm}: worst window of prod-a over private",
                    "0 min" if under else "8000 min",
                    _excess(outcomes, "prod-a", arm),
                    " min",
                ),
                Line(
                    f"{label}, {arm}: prod-e's delay over private",
                    "below 1",
                    _ratio(outcomes, "prod-e", arm),
                ),
                *_safety(outcomes, label, arm),
            ]
    return found


def _lines_fig10(results: Results) -> list[Line]:
    pairs = list(zip(results[f"dynamic{CELLS}"], results["static"], strict=True))
    return [
        Line(
            "preempted GPUs, dynamic binding",
            "",
            [float(each.preempted_gpus["cells"]) for each, _ in pairs],
        ),
        Line(
            "preempted GPUs, static binding",
            "",
            [float(each.preempted_gpus["cells"]) for _, each in pairs],
        ),
        Line(
            "fewer preempted GPUs with dynamic binding",
            "55 %",
            [
                100 * (1 - a.preempted_gpus["cells"] / max(1, b.preempted_gpus["cells"]))
                for a, b in pairs
            ],
            " %",
        ),
    ]


def _lines_fig11(results: Results) -> list[Line]:
    pairs = list(zip(results["nodes only"], results["all levels"], strict=True))

    def level(outcome: Outcome) -> float:
        return 100 * fmean(level for _, level in outcome.fragmentation["cells"])

    gaps = [
        [
            100 * (one - two)
            for one, two in _together(a.fragmentation["cells"], b.fragmentation["cells"])
        ]
        for a, b in pairs
    ]
    return [
        Line("fragmentation, cells of node level only", "", [level(a) for a, _ in pairs], " %"),
        Line("fragmentation, cells of all levels", "", [level(b) for _, b in pairs], " %"),
        Line("largest gap", "20 points", [max(each) for each in gaps], " points"),
        Line(
            "part of the time with a gap above 10 points",
            "most of the time",
            [sum(gap > 10 for gap in each) / len(each) for each in gaps],
        ),
    ]


def _together(
    one: Sequence[tuple[float, float]], two: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the levels of both at the times of the first: runs end at different times."""
    times = [at for at, _ in two]
    return [(level, two[max(0, bisect_right(times, at) - 1)][1]) for at, level in one]


OTHER = (
    "Not the workload as it was fixed before any result: how much each tenant asks for is not in "
    "the paper, and this tells what hangs on it."
)
EXPERIMENTS = {
    each.name: each
    for each in (
        Experiment(
            "hived-fig5",
            "Three schedulers on 96 GPUs",
            "HiveD, section 5.1, Figure 5",
            _fig5,
            _lines_fig5,
            "Gandiva in slices of 600 s; stored: without suspending, and without moves.",
        ),
        Experiment(
            "hived-fig6a",
            "The production cluster: 279 nodes",
            "HiveD, section 5.2, Figure 6(a)",
            _fig6a,
            _lines_fig6("279 nodes", "200 min", "", ""),
        ),
        Experiment(
            "hived-fig6b",
            "A higher load: 200 nodes",
            "HiveD, section 5.2, Figure 6(b)",
            _fig6b,
            _lines_fig6("200 nodes", "8000 min", "most", "about 0.9"),
        ),
        Experiment(
            "hived-fig7",
            "Every tenant's delay, and tenants that leave",
            "HiveD, section 5.2, Figure 7",
            _fig7,
            _lines_fig7,
        ),
        Experiment(
            "hived-fig8",
            "Jobs reshaped to 8 GPUs or 1",
            "HiveD, section 5.2, Figure 8",
            _fig8,
            _lines_fig8,
        ),
        Experiment(
            "hived-fig8-quotas",
            "Jobs reshaped to 8 GPUs or 1, quotas alone",
            "HiveD, section 5.2, Figure 8",
            _fig8_quotas,
            _lines_fig8,
            "Cells take minutes for each of its settings: one-GPU jobs are many.",
        ),
        Experiment(
            "hived-fig9", "Soft affinity", "HiveD, section 5.2, Figure 9", _fig9, _lines_fig9
        ),
        Experiment(
            "hived-fig10",
            "Dynamic and static binding",
            "HiveD, section 5.3, Figure 10",
            _fig10,
            _lines_fig10,
        ),
        Experiment(
            "hived-fig11",
            "Cells of one level, and of all",
            "HiveD, section 5.3, Figure 11",
            _fig11,
            _lines_fig11,
        ),
        Experiment(
            "hived-load",
            "Quotas on 200 nodes under other loads",
            "HiveD, section 5.2, Figures 6(b) and 7",
            _load,
            _lines_load,
            OTHER,
        ),
        Experiment(
            "hived-load-cells",
            "Cells on 200 nodes under another load",
            "HiveD, section 5.2, Figures 6(b) and 7",
            _load_cells,
            _lines_load,
            OTHER,
        ),
        Experiment(
            "hived-load-shapes",
            "Jobs reshaped to 8 GPUs or 1, under another load",
            "HiveD, section 5.2, Figure 8",
            _load_shapes,
            _lines_fig8,
            f"Load {DOUBTFUL[0]:g}, and {DOUBTFUL[1]:g} of res-f. {OTHER}",
        ),
        Experiment(
            "hived-load-soft",
            "Soft affinity under another load",
            "HiveD, section 5.2, Figure 9",
            _load_soft,
            _lines_fig9,
            f"Load {DOUBTFUL[0]:g}, and {DOUBTFUL[1]:g} of prod-a. {OTHER}",
        ),
        Experiment(
            "hived-load-testbed",
            "Three schedulers on 96 GPUs under another load",
            "HiveD, section 5.1, Figure 5",
            _testbed,
            _lines_load,
            OTHER,
        ),
        *gandivafigures.EXPERIMENTS,
        *geniefigures.EXPERIMENTS,
        *deadlinefigures.EXPERIMENTS,
    )
}
