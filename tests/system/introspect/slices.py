"""Gandiva's Figure 9: six jobs of one GPU on four GPUs, by the reactive policy.

Four begin. Two short ones come, so that each should have four parts of six of a GPU; they end, and
the four are as before. A job's mini-batch is a step of PyTorch, and a wait that stands for the
GPU's work (a fake GPU), so that six jobs do not get in one another's way on the processors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skep.units import NS_PER_SECOND
from tests.support.slices import jain
from tests.system.introspect.live import VC, Job, machine, running, say, under
from tests.system.introspect.picture import COLOURS, Line, Panel, draw
from tests.system.introspect.rates import Mark, Steps, changes, seconds, spread, total

SLOTS, LONG, SHORT = 4, 4, 2
STEP_MS = 100.0
LOAD = {"step_ms": STEP_MS, "utilisation": 0.9, "demand": 0.9, "memory": 9 * 2**30}
CALM_S = 3.0
"""Left out of a window at either end: what begins and ends is told apart."""


def run(slice_s: float, alone_s: float, short_s: float, svg: Path | None) -> dict[str, Any]:
    """Run it; `short_s` is what the short ones take alone."""
    node = {"name": "node-1", "gpus": SLOTS, "device": "fake", "gpu_type": "fake"}
    with running({VC: under("gandiva", SLOTS, slice_s=slice_s)}, [node]) as (live, _):
        began = time.time_ns()
        jobs = [live.train(f"long-{number}", LOAD) for number in range(1, LONG + 1)]
        _trained(jobs)
        say("four train")
        time.sleep(alone_s)
        arrival = time.time_ns()
        steps = round(short_s * 1000 / STEP_MS)
        short = [live.train(f"short-{number}", LOAD, steps=steps) for number in (1, 2)]
        _trained(short)
        say("six train")
        ends = [live.cluster.ended(each.job, 10 * short_s)["ended_at"] for each in short]
        say("four are left")
        time.sleep(alone_s)
        over = time.time_ns()
        facts = live.facts()
        _trained(jobs)  # So that the mini-batch in progress is noted.
        for each in jobs:
            each.finish()
        noted = {each.name: each.steps() for each in (*jobs, *short)}
    result = measure(noted, facts, (arrival, max(ends), over), slice_s)
    result["slice_s"] = slice_s
    if svg:
        svg.write_text(picture(noted, facts, (began, arrival, min(ends), max(ends), over), slice_s))
    return {"figure": "Gandiva, figure 9", **result, **machine()}


def _trained(jobs: Sequence[Job]) -> None:
    for each in jobs:
        each.trains()


def windows(
    noted: Mapping[str, Steps], arrival: int, last_end: int, over: int
) -> dict[str, tuple[float, float]]:
    """Return from when to when four, six and again four jobs trained, none of them beginning."""
    calm = CALM_S * NS_PER_SECOND
    begun = max(steps.ends[0] for name, steps in noted.items() if name.startswith("long"))
    short = [steps for name, steps in noted.items() if name.startswith("short")]
    joined, left = max(each.ends[0] for each in short), min(each.ends[-1] for each in short)
    return {
        "before": (begun + calm, float(arrival)),
        "shared": (float(joined), float(left)),
        "after": (last_end + calm, float(over)),
    }


def measure(
    noted: Mapping[str, Steps],
    facts: Sequence[tuple[int, Any]],
    times: tuple[int, int, int],
    slice_s: float,
) -> dict[str, Any]:
    """Return rates of all together and of each, how fair they were, and what switching took."""
    spans = windows(noted, *times)
    together = {
        name: sum(steps.rate(*span) for steps in noted.values()) for name, span in spans.items()
    }
    alone = sum(
        together[name] * (span[1] - span[0]) for name, span in spans.items() if name != "shared"
    )
    alone /= sum(span[1] - span[0] for name, span in spans.items() if name != "shared")
    begin, end = cycles(spans["shared"], len(noted) / (len(noted) - SLOTS) * slice_s)
    shares = {name: steps.rate(begin, end) / (alone / SLOTS) for name, steps in noted.items()}
    whole = (spans["before"][0], spans["after"][1])
    switches = _switches(noted, facts, spans["shared"])
    lost_s = SLOTS * seconds(*spans["shared"]) * (1 - together["shared"] / alone)
    switches["lost_s_each"] = round(lost_s / max(switches["count"], 1), 3)
    return {
        "mini_batches_per_s": {name: round(value, 2) for name, value in together.items()},
        "window_s": {name: round(seconds(*span), 1) for name, span in spans.items()},
        "lost_by_slicing_percent": round(100 * (1 - together["shared"] / alone), 2),
        "lost_in_all_percent": round(
            100 * (1 - sum(steps.rate(*whole) for steps in noted.values()) / alone), 2
        ),
        "fair_share": round(SLOTS / len(noted), 3),
        "shares_over_s": round(seconds(begin, end), 1),
        "shares": {name: round(share, 3) for name, share in shares.items()},
        "furthest_from_fair_percent": round(
            100
            * max(abs(share / sum(shares.values()) * len(shares) - 1) for share in shares.values()),
            1,
        ),
        "jain": round(jain(list(shares.values())), 4),
        "again_as_before_percent": round(100 * (together["after"] / together["before"] - 1), 2),
        "switches": switches,
    }


def cycles(span: tuple[float, float], cycle_s: float) -> tuple[float, float]:
    """Return the last part of a span that is of whole cycles, the first left out if there are more.

    In a cycle everybody has as many slices; in the first the newcomers are ahead of the others.
    """
    cycle = cycle_s * NS_PER_SECOND
    whole = int((span[1] - span[0]) / cycle)
    return span[1] - max(whole - 1, 1) * cycle, span[1]


def _switches(
    noted: Mapping[str, Steps], facts: Sequence[tuple[int, Any]], span: tuple[float, float]
) -> dict[str, Any]:
    """Return how many changes of turns there were, and what they took."""
    done = [(begin, end) for begin, end in changes(facts) if span[0] <= begin.at <= span[1]]
    suspended = [pair for pair in done if pair[0].goal == "suspend" and pair[1].result == "done"]
    resumed = [pair for pair in done if pair[0].goal == "resume" and pair[1].result == "done"]
    named = {fact.job: fact.spec.name for _, fact in facts if type(fact).__name__ == "JobQueued"}
    first = []
    for begin, _ in resumed:
        at = noted[named[begin.job]].after(begin.at)
        if at is not None:
            first.append(seconds(begin.at, at) - STEP_MS / 1e3)
    return {
        "count": len(suspended),
        "order_to_suspended_s": spread(seconds(a.at, b.at) for a, b in suspended),
        "order_to_resumed_s": spread(seconds(a.at, b.at) for a, b in resumed),
        "order_to_training_s": spread(first),
    }


def picture(
    noted: Mapping[str, Steps],
    facts: Sequence[tuple[int, Any]],
    times: tuple[int, int, int, int, int],
    slice_s: float,
) -> str:
    """Return the rates of each job and of all, with arrivals, ends and turns."""
    began, arrival, first_end, last_end, over = times
    begin = max(began, min(steps.ends[0] for steps in noted.values()) - NS_PER_SECOND)
    curves = {name: steps.curve(begin, over, 2.0) for name, steps in noted.items()}
    alone = 1000 / STEP_MS
    rows = [
        Panel(
            "mini-batches/s, over 2 s" if not index else "",
            [Line(name, curves[name], COLOURS[index])],
            alone,
            36,
        )
        for index, name in enumerate(curves)
    ]
    cycle_s = len(noted) / (len(noted) - SLOTS) * slice_s
    cycle = [
        Line(name, steps.curve(begin, over, cycle_s), COLOURS[index])
        for index, (name, steps) in enumerate(noted.items())
    ]
    panels = [
        *rows,
        Panel(f"the same over a cycle, {cycle_s:g} s", cycle, alone, 90),
        Panel(
            "all jobs, over 2 s",
            [Line("all", total(list(curves.values())), "#222")],
            SLOTS * alone,
            90,
        ),
    ]
    marks = [
        Mark(arrival, "two more arrive"),
        Mark(first_end, "one ends"),
        Mark(last_end, "the other ends"),
    ]
    ticks = [Mark(begin.at, "suspended") for begin, _ in changes(facts) if begin.goal == "suspend"]
    return draw(
        "Six jobs on four GPUs take turns (ticks: a job is suspended for another)",
        (begin, over),
        panels,
        marks,
        ticks,
    )
