"""Gandiva's Figure 8: a gang that was scattered is brought together, and goes faster.

Four nodes of two GPUs, each in a network namespace of its own; between them are links of a given
speed. A gang of two has a node, from which is known how fast its kind is there. For another one of
the same kind only two GPUs on different nodes are left, so its gradients go over the links. Then a
job ends that had a node: the gang is moved there, where the same bytes stay on the node. What its
GPUs would do in a mini-batch is a wait; the rest is real.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skep.units import NS_PER_SECOND
from tests.support.embedded import until
from tests.system.introspect.live import VC, Job, Live, machine, running, say, under
from tests.system.introspect.packs import trials
from tests.system.introspect.picture import Line, Panel, draw
from tests.system.introspect.rates import Mark, Steps, seconds
from tests.system.introspect.wires import INSIDE, Wires

NODES = ("node-1", "node-2", "node-3", "node-4")
CALM_S = 3.0
WITHIN_S = 90.0
VERDICT_S = 150.0
WORK_S = 0.1
"""What GPUs would do in a mini-batch: long, so that a busy machine matters little."""


def run(
    mbit: float, megabytes: float, train_s: float, within_s: float, svg: Path | None, *, asks: bool
) -> dict[str, Any]:
    """Run it; with `asks` a person has the gang moved, else the policy has to."""
    nodes = [{"name": name, "gpus": 2, "device": "cpu", "gpu_type": "cpu"} for name in NODES]
    options = {} if asks else {"introspect": True}
    with (
        tempfile.TemporaryDirectory(prefix="skep-wires-") as text,
        Wires(NODES, mbit, Path(text)) as wires,
        running({VC: under("gandiva", 8, slice_s=20, **options)}, nodes, wires=wires) as (live, _),
    ):
        big = fill(live, megabytes)
        began = time.time_ns()
        gang = two(live, "scattered", megabytes)
        say(f"the gang trains on {gang.row['place']}")
        time.sleep(train_s)
        left = time.time_ns()
        big_on = big.row["place"].partition(":")[0]
        big.finish()
        if asks:
            live.cluster.ended(big.job)
            live.cluster.skep("migrate", "--wait", "--to", big_on, gang.job)
        until(lambda: moved(live, gang), "the gang is moved", within_s)
        say(f"the gang trains on {gang.row['place']}")
        time.sleep(train_s)
        if not asks:
            until(lambda: judged(live), "a verdict on the move", VERDICT_S)
            time.sleep(CALM_S)
        facts, over = live.facts(), time.time_ns()
        for each in live.jobs.values():
            each.finish()
        steps = gang.steps()
    result = measure(steps, facts, gang, (began, left, over))
    if svg:
        svg.write_text(picture(steps, facts, gang, (began, left, over)))
    return {
        "figure": "Gandiva, figure 8",
        "link_mbit": mbit,
        "gradients_mb": megabytes,
        "asked_by": "a person" if asks else "the policy",
        **result,
        **machine(),
    }


def two(live: Live, name: str, megabytes: float) -> Job:
    """Hand in a gang of two; return it once it trains and can migrate."""
    gang = live.gang(
        name,
        "--megabytes",
        megabytes,
        "--work",
        WORK_S,
        resources={"workers": 2, "gpus": 1},
        size={"family": "pair"},
        env={"GLOO_SOCKET_IFNAME": INSIDE},
    )
    until(lambda: "migrate" in gang.row["can"], f"{name} can migrate", WITHIN_S)
    gang.trains()
    return gang


def fill(live: Live, megabytes: float) -> Job:
    """Take all GPUs but one on each of two nodes; return the job that has a node to itself."""
    small = [live.hold(f"small-{number}") for number in range(1, 5)]
    for each in small:
        live.cluster.started(each.job)
    big = live.hold("big", workers=2)
    live.cluster.started(big.job)
    two(live, "together", megabytes)
    alone = {each.row["place"].partition(":")[0]: each for each in small}
    assert len(alone) == 2, "the small jobs are to be on two nodes"
    for each in alone.values():
        each.finish()
        live.cluster.ended(each.job)
    return big


def judged(live: Live) -> bool:
    """Return whether every trial has its verdict."""
    return all(over is not None for _, over in trials(live.facts()))


def moved(live: Live, gang: Job) -> Any:
    """Return the fact that the gang has moved, None as long as it has not."""
    return next(
        (
            fact
            for _, fact in live.facts()
            if type(fact).__name__ == "JobMoved" and fact.job == gang.job
        ),
        None,
    )


def measure(
    steps: Steps, facts: Sequence[tuple[int, Any]], gang: Job, times: tuple[int, int, int]
) -> dict[str, Any]:
    """Return the rates in both places, and how long it took."""
    _, left, over = times
    calm = CALM_S * NS_PER_SECOND
    move = next(f for _, f in facts if type(f).__name__ == "JobMoved" and f.job == gang.job)
    bound = next(f for _, f in facts if type(f).__name__ == "SuccessorBound" and f.job == gang.job)
    ended = max(f.at for _, f in facts if type(f).__name__ == "JobEnded" and f.at <= bound.at)
    before = max(end for end in steps.ends if end <= move.at)
    first = steps.after(before + 1) or over
    scattered = steps.rate(steps.ends[0] + calm, left)
    together = steps.rate(first + calm, over)
    trials = [f for _, f in facts if type(f).__name__ == "TrialOver"]
    return {
        "scattered_per_s": round(scattered, 2),
        "together_per_s": round(together, 2),
        "times_faster": round(together / scattered, 2),
        "departure_to_order_s": round(seconds(ended, bound.at), 3),
        "order_to_moved_s": round(seconds(bound.at, move.at), 2),
        "stood_still_s": round(seconds(before, first), 3),
        "verdicts": [
            {"verdict": f.verdict, "gain_milli": f.gain_milli, "why": f.why} for f in trials
        ],
    }


def picture(
    steps: Steps, facts: Sequence[tuple[int, Any]], gang: Job, times: tuple[int, int, int]
) -> str:
    """Return the gang's rate, with what happened."""
    _, left, over = times
    begin = steps.ends[0] - 2 * NS_PER_SECOND
    marks = [Mark(left, "a job ends that had a node")]
    for _, fact in facts:
        name = type(fact).__name__
        if name == "SuccessorBound" and fact.job == gang.job:
            marks.append(Mark(fact.at, "successors are bound there", "#5f6b7a"))
        elif name == "JobMoved" and fact.job == gang.job:
            marks.append(Mark(fact.at, "moved", "#3a9a5b"))
        elif name == "TrialOver":
            marks.append(
                Mark(fact.at, f"{fact.verdict} ({fact.gain_milli / 1000:+.2f})", "#3a9a5b")
            )
    panel = Panel(
        "mini-batches/s of the gang, over 2 s",
        [Line("gang", steps.curve(begin, over, 2.0))],
        height=200,
    )
    return draw(
        "A scattered gang of two is brought together on one node", (begin, over), [panel], marks
    )
