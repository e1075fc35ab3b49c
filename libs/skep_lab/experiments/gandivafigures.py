"""Gandiva's experiments: their settings, what is measured, and what the paper printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from skep_lab.experiments.gandiva import TENANTS, Played, Scene
from skep_lab.experiments.multijob import Curves, Study
from skep_lab.experiments.report import Experiment, Line, Results

BASE, TURNS, WHOLE = "first come, first served", "gandiva, reactive", "gandiva, introspective"
THIRD, NINTH = 1 / 3, 1 / 9
"""The part of both servers and jobs, so that the load of a GPU is the same."""
DAYS_SLICE_S = 600
"""Ten minutes and not one: nine days of turns of a minute are a day of decisions."""
LOADS = (0.9, 1.1, 1.3)
LOADS_PART = 0.4
"""Of the cluster, where loads are compared."""
CELLS_PART = 6 / 45
QUOTA, QUOTA_ALONE = "quota", "quota alone"
LENT = "cells and no borrowing"
SLACK_S = 60.0


# --- the mix of section 6.3 -----------------------------------------------------------------------


def _mix(part: float) -> Callable[[float | None], list[Scene]]:
    def scenes(_: float | None) -> list[Scene]:
        found = [Scene(BASE, "mix", part=part)]
        if part < 1:
            found.append(Scene(TURNS, "mix", ("gandiva", {}), part))
        return [*found, Scene(WHOLE, "mix", ("gandiva", {"introspect": True}), part)]

    return scenes


def _lines_mix(results: Results) -> list[Line]:
    base, ours = results[BASE], results[WHOLE]
    found = [
        Line("baseline: mean time to 100 mini-batches", "2203 s", _all(base, "hundred_s"), " s"),
        Line("Gandiva: mean time to 100 mini-batches", "498 s", _all(ours, "hundred_s"), " s"),
        Line("less than the baseline", "77 %", _less(base, ours, "hundred_s"), " %"),
        Line(
            "baseline: mean GPU utilisation, minutes 20 to 200",
            "50.1 %",
            _hundredfold(base, "busy"),
            " %",
        ),
        Line(
            "Gandiva: mean GPU utilisation, minutes 20 to 200",
            "62.8 %",
            _hundredfold(ours, "busy"),
            " %",
        ),
        Line("more than the baseline", "26 %", _more(ours, base, "busy"), " %"),
        Line(
            "more than the baseline while jobs come, minutes 20 to 120",
            "",
            _more(ours, base, "busy_coming"),
            " %",
        ),
        Line("baseline: mean completion", "", _all(base, "jct_min"), " min"),
        Line("Gandiva: mean completion", "", _all(ours, "jct_min"), " min"),
        Line("baseline: makespan", "", _all(base, "makespan_min"), " min"),
        Line("Gandiva: makespan", "", _all(ours, "makespan_min"), " min"),
        *_ledger(ours),
    ]
    if TURNS in results:
        turns = results[TURNS]
        found += [
            Line(
                "reactive alone: mean time to 100 mini-batches", "", _all(turns, "hundred_s"), " s"
            ),
            Line("reactive alone: mean GPU utilisation", "", _hundredfold(turns, "busy"), " %"),
            Line("reactive alone: mean completion", "", _all(turns, "jct_min"), " min"),
            Line(
                "introspective over reactive: useful work a minute",
                "at least 10 %",
                _more(ours, turns, "useful"),
                " %",
            ),
            Line(
                "introspective under reactive: mean completion",
                "",
                _less(turns, ours, "jct_min"),
                " %",
            ),
        ]
    return found


def _ledger(outcomes: Sequence[Played]) -> list[Line]:
    return [
        Line("trials of packs", "", _all(outcomes, "pack: trials")),
        Line("of these kept", "nearly all", _all(outcomes, "pack: kept")),
        Line("undone", "few", _all(outcomes, "pack: undone")),
        Line("without a verdict", "", _all(outcomes, "pack: void")),
        Line("wrong verdicts, by the simulator's own speeds", "", _all(outcomes, "wrong")),
        Line("mean gain of those kept, over turns", "", _hundredfold(outcomes, "gain"), " %"),
    ]


# --- the nine days of section 6.4 -----------------------------------------------------------------


def _days_of(label: str, part: float, load: float, *, local: bool = True) -> list[Scene]:
    options = {"slice_s": DAYS_SLICE_S}
    return [
        Scene(f"{BASE}{label}", "days", ("fifo", {}), part, load, local),
        Scene(f"{TURNS}{label}", "days", ("gandiva", options), part, load, local),
        Scene(
            f"{WHOLE}{label}",
            "days",
            ("gandiva", {**options, "introspect": True}),
            part,
            load,
            local,
        ),
    ]


def _days(_: float | None) -> list[Scene]:
    return _days_of("", 1.0, 0.0)


def _days_part(_: float | None) -> list[Scene]:
    return _days_of("", LOADS_PART, 0.0)


def _days_loads(_: float | None) -> list[Scene]:
    found = [scene for load in LOADS for scene in _days_of(f", load {load:g}", LOADS_PART, load)]
    alike = _days_of(", load 1.1, nodes do not matter", LOADS_PART, 1.1, local=False)
    return found + alike


def _lines_days(results: Results) -> list[Line]:
    found = []
    for label in [each.removeprefix(BASE) for each in results if each.startswith(BASE)]:
        base, name = results[f"{BASE}{label}"], label.removeprefix(", ")
        name = f"{name}: " if name else ""
        found += [
            Line(f"{name}baseline, mean completion", "832 min", _all(base, "jct_min"), " min"),
            Line(f"{name}baseline, makespan", "13,371 min", _all(base, "makespan_min"), " min"),
        ]
        for arm in (TURNS, WHOLE):
            ours = results[f"{arm}{label}"]
            found += [
                Line(f"{name}{arm}, mean completion", "656 min", _all(ours, "jct_min"), " min"),
                Line(
                    f"{name}{arm}, baseline over it less 1",
                    "26.8 %",
                    _more(base, ours, "jct_min"),
                    " %",
                ),
                Line(f"{name}{arm}, makespan", "11,349 min", _all(ours, "makespan_min"), " min"),
                Line(
                    f"{name}{arm}, baseline over it less 1",
                    "17.8 %",
                    _more(base, ours, "makespan_min"),
                    " %",
                ),
                Line(f"{name}{arm}, migrations", "470", _all(ours, "migrated")),
            ]
    return found


# --- the mix inside HiveD's cells -----------------------------------------------------------------


def _cells(_: float | None) -> list[Scene]:
    places = {"alone": "alone", "cells": "own", LENT: "wait"}
    turns = {QUOTA: QUOTA, QUOTA_ALONE: QUOTA_ALONE, **places}
    return [
        Scene(f"{arm}, {where}", "mix", policy, CELLS_PART, cells=cells)
        for arm, policy, played in (
            (BASE, ("fifo", {}), places),
            (TURNS, ("gandiva", {}), turns),
            (WHOLE, ("gandiva", {"introspect": True}), places),
        )
        for where, cells in played.items()
    ]


def _lines_cells(results: Results) -> list[Line]:
    found = []
    for name in TENANTS:
        for where in ("alone", "cells"):
            base, ours = results[f"{BASE}, {where}"], results[f"{WHOLE}, {where}"]
            found += [
                Line(
                    f"{name}, {where}: time to 100 mini-batches, less than first come first served",
                    "",
                    _less(base, ours, f"{name}: hundred_s"),
                    " %",
                ),
                Line(
                    f"{name}, {where}: mean completion, less than first come first served",
                    "",
                    _less(base, ours, f"{name}: jct_min"),
                    " %",
                ),
            ]
        alone, cells = (
            _all(results[f"{WHOLE}, {where}"], f"{name}: jct_min") for where in ("alone", "cells")
        )
        found.append(
            Line(
                f"{name}: Gandiva's mean completion, cells over alone",
                "",
                [b / a for a, b in zip(alone, cells, strict=True)],
            )
        )
        for where in ("cells", LENT):
            pairs = zip(results[f"{WHOLE}, alone"], results[f"{WHOLE}, {where}"], strict=True)
            found.append(
                Line(
                    f"{name}: Gandiva's work done, most that {where} were ever behind "
                    "alone, minutes of its GPUs",
                    "",
                    [_behind(a, b, name) for a, b in pairs],
                )
            )
    for name in TENANTS:
        for where, own in (("cells", "alone"), (QUOTA, QUOTA_ALONE)):
            found.append(
                Line(
                    f"{name}: reactive Gandiva's mean completion, {where} over alone",
                    "",
                    _over(results, f"{name}: jct_min", where, own),
                )
            )
    for arm in (BASE, TURNS, WHOLE):
        for where, own in (("cells", "alone"), (LENT, "alone"), (QUOTA, QUOTA_ALONE)):
            if f"{arm}, {where}" not in results:
                continue
            pairs = zip(results[f"{arm}, {own}"], results[f"{arm}, {where}"], strict=True)
            found.append(
                Line(
                    f"{arm}: tenants worse off with {where} than alone",
                    "" if where == QUOTA else "0",
                    [float(_worse(a, b)) for a, b in pairs],
                )
            )
    return found


def _over(results: Results, figure: str, where: str, own: str) -> list[float]:
    shared, alone = (_all(results[f"{TURNS}, {each}"], figure) for each in (where, own))
    return [a / b for a, b in zip(shared, alone, strict=True)]


def _behind(alone: Played, cells: Played, name: str) -> float:
    """Return by how much the work that a tenant's jobs had done was less than alone, at most."""
    ours, theirs = cells.curves[f"{name}: done"], alone.curves[f"{name}: done"]
    return max((there[1] - here[1] for here, there in zip(ours, theirs, strict=False)), default=0.0)


def _worse(alone: Played, cells: Played) -> int:
    """Return for how many tenants jobs wait, or take, a minute longer than alone, on the mean."""
    return sum(
        cells.figures[f"{name}: queue_s"] > alone.figures[f"{name}: queue_s"] + SLACK_S
        or cells.figures[f"{name}: jct_min"] > alone.figures[f"{name}: jct_min"] + SLACK_S / 60
        for name in TENANTS
    )


# --- multi-jobs, section 6.2 ----------------------------------------------------------------------

LENET = Study(
    trials=374,
    places=4,
    exclusive=2,
    position=93,
    target=0.84,
    final=0.842,
    trial_s=38 * 60,
    added=2,
)
GPUS = {"4 GPUs": LENET, "16 GPUs": replace(LENET, places=16, exclusive=8, added=8)}
POSITIONS = (93, 187, 280, 365)
TABLE_3 = {
    "4 GPUs": ((691.5, 125.5), (1373.0, 213.8), (2067.2, 302.4), (2726.4, 387.1)),
    "16 GPUs": ((253.0, 74.4), (492.7, 103.7), (731.7, 135.4), (970.0, 162.6)),
}
"""Baseline and Gandiva, minutes."""
VARIED = {
    "as it is": LENET,
    "noise of 0.02": replace(LENET, curves=replace(LENET.curves, noise=0.02)),
    "a tenth hopeless": replace(LENET, curves=replace(LENET.curves, hopeless=0.1)),
    "half hopeless": replace(LENET, curves=replace(LENET.curves, hopeless=0.5)),
    "the best learns slowly": replace(LENET, curves=replace(LENET.curves, slow=3.0)),
    "turns of 30 s": replace(LENET, turn_s=30),
    "turns of 120 s": replace(LENET, turn_s=120),
}
RESNET = replace(LENET, trials=100, places=16, exclusive=8, added=8, trial_s=1000 * 60, turn_s=600)
TABLE_4 = {
    "70 %": (
        replace(
            RESNET, position=15, target=0.70, final=0.817, curves=replace(LENET.curves, best=0.69)
        ),
        134.1,
        134.1,
    ),
    "80 %": (
        replace(
            RESNET, position=58, target=0.80, final=0.83, curves=replace(LENET.curves, best=0.79)
        ),
        2849.1,
        543.1,
    ),
    "90 %": (
        replace(
            RESNET, position=87, target=0.90, final=0.9262, curves=replace(LENET.curves, best=0.89)
        ),
        5296.7,
        935.4,
    ),
}
SHARED = Study(
    trials=40,
    places=4,
    exclusive=2,
    position=38,
    target=0.995,
    final=0.996,
    trial_s=65 * 60,
    added=0,
    scattered=1.94,
    switch_s=2.0,
    curves=Curves(worst=0.6, best=0.99, hopeless=0.25),
)
"""13.6 / 7: what the paper puts down to locality."""
PLACES = (10, 20, 30, 38)
SPLITS = {"scattered 1.94 times as slow": 1.94, "scattered as fast": 1.0}


def _both(label: str, study: Study) -> list[Scene]:
    return [
        Scene(f"{label}, queue", "search", study=study, ours=False),
        Scene(f"{label}, search", "search", study=study),
    ]


def _table_3(_: float | None) -> list[Scene]:
    return [
        scene
        for gpus, study in GPUS.items()
        for position in POSITIONS
        for scene in _both(f"{gpus}, {position}th", replace(study, position=position))
    ]


def _varied(_: float | None) -> list[Scene]:
    return [
        scene
        for name, study in VARIED.items()
        for position in (93, 365)
        for scene in _both(f"{name}, {position}th", replace(study, position=position))
    ]


def _table_4(_: float | None) -> list[Scene]:
    return [scene for name, (study, *_) in TABLE_4.items() for scene in _both(name, study)]


def _shared(_: float | None) -> list[Scene]:
    return [
        scene
        for name, times in SPLITS.items()
        for position in PLACES
        for scene in _both(
            f"{name}, {position}th", replace(SHARED, position=position, scattered=times)
        )
    ]


def _told(results: Results, label: str, paper: tuple[float, float] | None) -> list[Line]:
    queue, ours = results[f"{label}, queue"], results[f"{label}, search"]
    texts = ("", "", "")
    if paper is not None:
        texts = (f"{paper[0]:g} min", f"{paper[1]:g} min", f"{paper[0] / paper[1]:.2f}")
    both = [
        (a, b)
        for a, b in zip(queue, ours, strict=True)
        if a.figures["minutes"] and b.figures["minutes"]
    ]
    return [
        Line(f"{label}: queue, time to a qualified one", texts[0], _all(queue, "minutes"), " min"),
        Line(f"{label}: search, time to a qualified one", texts[1], _all(ours, "minutes"), " min"),
        Line(
            f"{label}: times as fast",
            texts[2],
            [a.figures["minutes"] / b.figures["minutes"] for a, b in both],
        ),
    ]


def _lines_table_3(results: Results) -> list[Line]:
    found = []
    for gpus, rows in TABLE_3.items():
        for position, paper in zip(POSITIONS, rows, strict=True):
            found += _told(results, f"{gpus}, {position}th", paper)
        label = f"{gpus}, {POSITIONS[-1]}th"
        pairs = zip(results[f"{label}, queue"], results[f"{label}, search"], strict=True)
        found.append(
            Line(
                f"{gpus}: configurations explored by the same time, times as many",
                "almost 10",
                [_explored(a, b) for a, b in pairs],
            )
        )
    return found


def _explored(queue: Played, ours: Played) -> float:
    """Return how many times as many were explored when the search had begun all but the last."""
    points = ours.curves["explored"]
    at, count = points[len(points) // 2]
    before = max(
        (number for minutes, number in queue.curves["explored"] if minutes <= at), default=1.0
    )
    return count / before


def _lines_varied(results: Results) -> list[Line]:
    return [
        line
        for name in VARIED
        for position, paper in ((93, TABLE_3["4 GPUs"][0]), (365, TABLE_3["4 GPUs"][3]))
        for line in _told(results, f"{name}, {position}th", paper)
    ]


def _lines_table_4(results: Results) -> list[Line]:
    return [
        line
        for name, (_, *paper) in TABLE_4.items()
        for line in _told(results, name, (paper[0], paper[1]))
    ]


def _lines_shared(results: Results) -> list[Line]:
    return [
        line
        for name in SPLITS
        for position in PLACES
        for line in _told(results, f"{name}, {position}th", None)
    ]


# --- figures --------------------------------------------------------------------------------------


def _all(outcomes: Sequence[Played], name: str) -> list[float]:
    return [each.figures.get(name, 0.0) for each in outcomes]


def _hundredfold(outcomes: Sequence[Played], name: str) -> list[float]:
    return [100 * each for each in _all(outcomes, name)]


def _less(base: Sequence[Played], ours: Sequence[Played], name: str) -> list[float]:
    return [100 * (1 - b / a) for a, b in zip(_all(base, name), _all(ours, name), strict=True) if a]


def _more(ours: Sequence[Played], base: Sequence[Played], name: str) -> list[float]:
    return [100 * (a / b - 1) for a, b in zip(_all(ours, name), _all(base, name), strict=True) if b]


CURVES = "Learning curves are drawn from a stated model: see skep_lab.experiments.multijob."
EXPERIMENTS = (
    Experiment(
        "gandiva-mix",
        "1,000 small jobs on 180 GPUs",
        "Gandiva, section 6.3, Figure 15",
        _mix(1.0),
        _lines_mix,
    ),
    Experiment(
        "gandiva-mix-third",
        "333 small jobs on 60 GPUs",
        "Gandiva, section 6.3, Figure 15",
        _mix(THIRD),
        _lines_mix,
        "With the reactive mode by itself.",
    ),
    Experiment(
        "gandiva-mix-ninth",
        "111 small jobs on 20 GPUs",
        "Gandiva, section 6.3, Figure 15",
        _mix(NINTH),
        _lines_mix,
        "With the reactive mode by itself.",
    ),
    Experiment(
        "gandiva-cells",
        "133 small jobs of three tenants on 24 GPUs, by HiveD's cells",
        "Gandiva, section 6.3; HiveD, section 5.1",
        _cells,
        _lines_cells,
        "Half, three and two tenths of the jobs, and a third of the GPUs each. Under quotas a "
        "scheduler of its own has jobs take turns and moves them, and packs none; it is compared "
        "with itself alone.",
    ),
    Experiment(
        "gandiva-days", "Nine days on 100 GPUs", "Gandiva, section 6.4, Table 5", _days, _lines_days
    ),
    Experiment(
        "gandiva-days-part",
        "Nine days on 40 GPUs",
        "Gandiva, section 6.4, Table 5",
        _days_part,
        _lines_days,
    ),
    Experiment(
        "gandiva-days-loads",
        "The same on 40 GPUs under other loads",
        "Gandiva, section 6.4, Table 5",
        _days_loads,
        _lines_days,
    ),
    Experiment(
        "gandiva-multijob",
        "A search of 374 configurations",
        "Gandiva, section 6.2, Table 3",
        _table_3,
        _lines_table_3,
        CURVES,
    ),
    Experiment(
        "gandiva-multijob-curves",
        "The same with other learning curves",
        "Gandiva, section 6.2, Table 3",
        _varied,
        _lines_varied,
        CURVES,
    ),
    Experiment(
        "gandiva-multijob-target",
        "A search for other targets",
        "Gandiva, section 6.2, Table 4",
        _table_4,
        _lines_table_4,
        CURVES,
    ),
    Experiment(
        "gandiva-multijob-shared",
        "A search of 40 on 8 GPUs",
        "Gandiva, section 6.4, Figure 18",
        _shared,
        _lines_shared,
        CURVES,
    ),
)
