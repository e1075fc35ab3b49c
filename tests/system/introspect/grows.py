"""Gandiva's Figure 11: a job grows as others leave, and shrinks the moment others come.

One node of four GPUs has an elastic job of one worker, a job of one GPU and one of two. They end
one after the other, and each time the elastic job takes what is idle, first on trial. Then a job of
two GPUs comes, and one of one: each begins at once, on what the elastic job gives back. A worker's
part of a mini-batch is a wait that stands for its GPU's work; gradients really are added up.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skep.units import NS_PER_SECOND
from tests.support.embedded import until
from tests.system.introspect.live import VC, Job, Live, machine, running, say, under
from tests.system.introspect.packs import trials
from tests.system.introspect.picture import Line, Panel, draw
from tests.system.introspect.rates import Mark, Steps, changes, seconds

SLOTS = 4
CALM_S = 2.0
WITHIN_S = 150.0


def run(work_s: float, after_s: float, train_s: float, svg: Path | None) -> dict[str, Any]:
    """Run it: `work_s` is what one worker alone waits in a mini-batch."""
    node = {"name": "node-1", "gpus": SLOTS, "device": "cpu", "gpu_type": "cpu"}
    vc = under("gandiva", SLOTS, slice_s=20, introspect=True, grow_after_s=after_s)
    with running({VC: vc}, [node]) as (live, _):
        small, large = live.hold("small"), live.hold("large", workers=2)
        grower = live.gang(
            "grower",
            "--work",
            work_s,
            "--workers",
            1,
            SLOTS,
            resources={"workers": 1, "gpus": 1},
            elastic={"min": 1, "max": SLOTS},
        )
        until(lambda: "resize" in grower.row["can"], "it can be resized", WITHIN_S)
        time.sleep(train_s)
        times = []
        for leaver, workers in ((small, 2), (large, SLOTS)):
            leaver.finish()
            times.append(live.cluster.ended(leaver.job)["ended_at"])
            _is(live, grower, workers)
            say(f"it has {workers} workers, and keeps them")
            time.sleep(train_s)
        comers = []
        for gpus, workers in ((2, 2), (1, 1)):
            comers.append(live.hold(f"later-{gpus}", workers=gpus))
            live.cluster.started(comers[-1].job)
            _is(live, grower, workers)
            say(f"it is back at {workers}")
            time.sleep(train_s)
        facts, over = live.facts(), time.time_ns()
        for each in live.jobs.values():
            each.finish()
        steps, sizes = grower.steps(), worlds(grower)
    result = measure(steps, sizes, facts, grower, times, comers)
    if svg:
        svg.write_text(picture(steps, sizes, facts, times, over))
    return {"figure": "Gandiva, figure 11", "work_s": work_s, **result, **machine()}


def _is(live: Live, grower: Job, workers: int) -> None:
    """Return once it has so many workers, and no trial of it is open."""

    def look() -> bool:
        facts = live.facts()
        is_open = any(
            over is None for begun, over in trials(facts) if begun.jobs[0].job == grower.job
        )
        return size(facts, grower.job) == workers and not is_open

    until(look, f"the elastic job has {workers} workers for good", WITHIN_S)


def size(facts: Sequence[tuple[int, Any]], job: str) -> int:
    """Return how many workers a job has by the facts: what its latest change of size came to."""
    done = [begun for begun, over in resizes(facts, job) if over.result == "done"]
    return int(done[-1].change.world) if done else 1


def resizes(facts: Sequence[tuple[int, Any]], job: str) -> list[tuple[Any, Any]]:
    """Return each change of size of a job, with its end."""
    return [pair for pair in changes(facts) if pair[0].job == job and pair[0].goal == "resize"]


def worlds(grower: Job) -> list[tuple[float, float]]:
    """Return how many workers made each mini-batch, by the notes of the first one."""
    lines = Path(f"{grower.notes}.0").read_text().splitlines()
    words = [line.split() for line in lines if line.count(" ") == 2]
    return [(float(ended), float(world)) for _, ended, world in words]


def measure(
    steps: Steps,
    sizes: Sequence[tuple[float, float]],
    facts: Sequence[tuple[int, Any]],
    grower: Job,
    left: Sequence[int],
    comers: Sequence[Job],
) -> dict[str, Any]:
    """Return its rate at each size, and how soon it grew and shrank."""
    edges = [steps.ends[0]]
    edges += [
        round(at) for (at, now), (_, before) in zip(sizes[1:], sizes, strict=False) if now != before
    ]
    edges.append(steps.ends[-1])
    calm = CALM_S * NS_PER_SECOND
    world = {round(at): int(workers) for at, workers in sizes}
    stages = [
        {
            "workers": world.get(begin, 1),
            "mini_batches_per_s": round(steps.rate(begin + calm, end - calm / 2), 2),
            "seconds": round(seconds(begin, end), 1),
        }
        for begin, end in itertools.pairwise(edges)
        if end - begin > 2 * calm
    ]
    told: dict[str, Any] = {"stages": stages, "changes": []}
    queued = {f.job: f.submitted_at for _, f in facts if type(f).__name__ == "JobQueued"}
    bound = {f.job: f.at for _, f in facts if type(f).__name__ == "JobBound"}
    for begun, over in resizes(facts, grower.job):
        causes = [*left, *(queued[each.job] for each in comers)]
        cause = max((at for at in causes if at <= begun.at), default=begun.at)
        told["changes"].append(
            {
                "to_workers": begun.change.world,
                "cause_to_order_s": round(seconds(cause, begun.at), 3),
                "order_to_done_s": round(seconds(begun.at, over.at), 3),
                "result": over.result,
                "stood_still_ms": round(over.pause_ns / 1e6),
            }
        )
    told["newcomers_waited_s"] = [
        round(seconds(queued[each.job], bound[each.job]), 3) for each in comers
    ]
    told["verdicts"] = [
        {"verdict": over.verdict, "gain_milli": over.gain_milli, "why": over.why}
        for _, over in trials(facts)
        if over
    ]
    return told


def picture(
    steps: Steps,
    sizes: Sequence[tuple[float, float]],
    facts: Sequence[tuple[int, Any]],
    left: Sequence[int],
    over: int,
) -> str:
    """Return its rate and its size, with who came and left, and the trials."""
    begin = steps.ends[0] - NS_PER_SECOND
    marks = [
        Mark(at, words) for at, words in zip(left, ("one GPU is left", "two are left"), strict=True)
    ]
    marks += [
        Mark(f.submitted_at, f"a job of {f.spec.resources.workers} comes")
        for _, f in facts
        if type(f).__name__ == "JobQueued" and f.submitted_at > left[-1]
    ]
    marks += [
        Mark(done.at, f"{done.verdict} ({done.gain_milli / 1000:+.2f})", "#3a9a5b")
        for _, done in trials(facts)
        if done
    ]
    stairs: list[tuple[float, float]] = []
    for at, workers in sizes:
        if stairs and stairs[-1][1] != workers:
            stairs.append((at, stairs[-1][1]))
        stairs.append((at, workers))
    panels = [
        Panel(
            "mini-batches/s, over 2 s", [Line("grower", steps.curve(begin, over, 2.0))], height=190
        ),
        Panel("its workers", [Line("workers", stairs, "#222")], SLOTS, 80),
    ]
    return draw(
        "An elastic job grows as others leave, and shrinks when others come",
        (begin, over),
        panels,
        marks,
    )
