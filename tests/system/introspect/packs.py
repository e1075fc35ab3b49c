"""Gandiva's Figure 10, and what the paper does not show: packing that is kept, and that is undone.

Two virtual clusters have a GPU each. In one two jobs that hardly use it take turns, are tried side
by side, and stay; in the other two that use all of it are tried, make less than in turns, and take
turns again. What jobs cost one another on a fake GPU is the model that was fitted to Gandiva's
Table 1 (`skep.perf.interference`); the policy and the introspector know nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from skep.perf.interference import TABLE_1, by_utilisation, normalised
from tests.support.embedded import until
from tests.system.introspect.live import GIB, Live, Seen, machine, running, say
from tests.system.introspect.picture import COLOURS, Line, Panel, draw
from tests.system.introspect.rates import Mark, Steps, changes, seconds, total

STEP_MS = 100.0
PAIRS = {"small": ("SuperResolution", "SuperResolution"), "large": ("ResNet-50", "ResNext-50")}
KINDS = {"small": "kept", "large": "undone"}
WITHIN_S = 240.0
TAIL_S = 25.0
SETTLED_S = 3.0


def run(slice_s: float, svg: Path | None) -> dict[str, Any]:
    """Run it until both trials have their verdict, and for some turns more."""
    # A kind of GPU for each, so that neither borrows from the other.
    nodes = [{"name": f"node-{vc}", "gpus": 1, "device": "fake", "gpu_type": vc} for vc in PAIRS]
    chains = {vc: {"gpu": vc, "levels": {"node": 1}, "nodes": f"node-{vc}"} for vc in PAIRS}
    vcs = {
        vc: {
            "cells": {f"{vc}/node": 1},
            "policy": {"name": "gandiva", "slice_s": slice_s, "introspect": True},
        }
        for vc in PAIRS
    }
    with running(vcs, nodes, chains=chains) as (live, ears):
        began = time.time_ns()
        jobs = []
        for number in (0, 1):
            for vc, models in PAIRS.items():
                jobs.append(live.train(f"{vc}-{number + 1}", load(models[number]), vc=vc))
            jobs[-1].trains()
            jobs[-2].trains()
        say("all have trained")
        verdicts = until(lambda: _verdicts(live), "a verdict on both packs", WITHIN_S)
        say(f"verdicts: {verdicts}")
        time.sleep(TAIL_S)
        over, facts = time.time_ns(), live.facts()
        for each in jobs:
            each.finish()
        noted = {each.name: each.steps() for each in jobs}
    result = {vc: measure(vc, noted, facts, ears.seen) for vc in PAIRS}
    if svg:
        svg.write_text(picture(noted, facts, (began, over)))
    return {"figure": "Gandiva, figure 10", "slice_s": slice_s, **result, **machine()}


def load(model: str) -> dict[str, float]:
    """Return what a model of Gandiva's Table 1 does to a fake GPU."""
    told = msgspec.structs.asdict(by_utilisation(TABLE_1[model][0]))
    return {**told, "step_ms": STEP_MS, "memory": 2 * GIB}


def _verdicts(live: Live) -> dict[str, str] | None:
    found = {begun.vc: over.verdict for begun, over in trials(live.facts()) if over}
    return found if len(found) == len(PAIRS) else None


def trials(facts: Sequence[tuple[int, Any]]) -> list[tuple[Any, Any]]:
    """Return each trial that was begun, with its end if it has one."""
    over = {fact.trial: fact for _, fact in facts if type(fact).__name__ == "TrialOver"}
    return [
        (fact, over.get(fact.trial)) for _, fact in facts if type(fact).__name__ == "TrialBegun"
    ]


def measure(
    vc: str, noted: Mapping[str, Steps], facts: Sequence[tuple[int, Any]], seen: Sequence[Seen]
) -> dict[str, Any]:
    """Return what the first trial of a virtual cluster came to, and how long its steps took."""
    begun, over = next(pair for pair in trials(facts) if pair[0].vc == vc)
    jobs = {
        fact.job: noted[fact.spec.name]
        for _, fact in facts
        if type(fact).__name__ == "JobQueued" and fact.spec.vc == vc
    }
    guest, host = (jobs[each.job] for each in begun.jobs)
    rates = {each.job: each.solo_milli / 1000 for each in begun.jobs}
    first = _together(guest, host, begun.at)
    window = (first + SETTLED_S * 1e9, float(over.at))
    packed = {each.job: jobs[each.job].rate(*window) for each in begun.jobs}
    judged = [
        each
        for each in seen
        if type(each.message).__name__ == "Judged" and each.message.trial == begun.trial
    ]
    said = normalised([by_utilisation(TABLE_1[name][0]) for name in PAIRS[vc]])
    told: dict[str, Any] = {
        "verdict": over.verdict,
        "why": over.why,
        "gain_milli": over.gain_milli,
        "between_milli": [over.low_milli, over.high_milli],
        "needed_milli": begun.needed_milli,
        "by_the_jobs_own_notes": round(sum(packed[each] / rates[each] for each in packed), 3),
        "model_says": round(said, 3),
        "alone_per_s": {name: round(rate, 2) for name, rate in rates.items()},
        "packed_per_s": {name: round(rate, 2) for name, rate in packed.items()},
        "order_to_both_training_s": round(seconds(begun.at, first), 3),
        "packed_until_verdict_s": round(seconds(begun.at, over.at), 1),
        "trials": sum(each.vc == vc for each, _ in trials(facts)),
    }
    paces = [
        each.message.at
        for each in seen
        if type(each.message).__name__ == "Outlook"
        and each.message.at <= begun.at
        and {pace.job for pace in each.message.jobs} & set(jobs)
    ]
    if paces:
        told["finding_to_order_s"] = round(seconds(max(paces), begun.at), 3)
    if judged:
        told["finding_to_verdict_s"] = round(seconds(judged[0].message.at, over.at), 3)
    if over.verdict == "undone":
        told |= _undone(guest, begun.jobs[0].job, over.at, facts)
    return told


def _together(guest: Steps, host: Steps, at: int) -> int:
    """Return when both had made a mini-batch since a moment."""
    ends = [steps.after(at) for steps in (guest, host)]
    assert all(ends), "a job did not train after it was packed"
    return max(end for end in ends if end)


def _undone(guest: Steps, job: str, at: int, facts: Sequence[tuple[int, Any]]) -> dict[str, Any]:
    """Return how long it took from a verdict until the guest stood."""
    left = next((pair for pair in changes(facts) if pair[0].job == job and pair[0].at >= at), None)
    if left is None:
        return {}
    stood = max((end for end in guest.ends if end <= left[1].at), default=at)
    return {
        "verdict_to_order_s": round(seconds(at, left[0].at), 3),
        "verdict_to_stands_s": round(seconds(at, max(stood, at)), 3),
        "verdict_to_released_s": round(seconds(at, left[1].at), 3),
    }


def picture(
    noted: Mapping[str, Steps], facts: Sequence[tuple[int, Any]], span: tuple[int, int]
) -> str:
    """Return the rates of both pairs, with the trials."""
    begin = max(span[0], min(steps.ends[0] for steps in noted.values()) - 10**9)
    panels, marks = [], []
    alone = 1000 / STEP_MS
    for vc in PAIRS:
        curves = {
            name: steps.curve(begin, span[1], 2.0)
            for name, steps in noted.items()
            if name.startswith(vc)
        }
        panels += [
            Panel(
                f"{vc} jobs, mini-batches/s over 2 s",
                [Line(name, points) for name, points in curves.items()],
                alone,
                110,
            ),
            Panel(
                f"the two {vc} ones together",
                [Line("sum", total(list(curves.values())), "#222")],
                alone,
                60,
            ),
        ]
    for trial, over in trials(facts):
        colour = COLOURS[2] if trial.vc == "small" else COLOURS[4]
        marks.append(Mark(trial.at, f"{trial.vc} ones packed on trial", colour))
        if over is not None:
            marks.append(
                Mark(over.at, f"{trial.vc}: {over.verdict} ({over.gain_milli / 1000:+.2f})", colour)
            )
    ticks = [Mark(each.at, "suspended") for each, _ in changes(facts) if each.goal == "suspend"]
    return draw(
        "Two jobs that hardly use a GPU are packed and stay; two that need it part again "
        "(ticks: suspended)",
        (begin, span[1]),
        panels,
        marks,
        ticks,
    )
