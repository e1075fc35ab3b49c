"""GENIE's tasks with their deadlines in real specs: promises are kept, others have sizes chosen."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from skep.units import Instant
from skep.wire.promises import Answer, PromiseBroken, PromiseJudged, PromiseKept, PromiseMade
from skep_lab.experiments.genie import curves
from skep_lab.simulator.build import of_types
from skep_lab.simulator.settings import EVERYTHING, Costs, Settings
from skep_lab.simulator.world import World
from skep_lab.traces.generators import genie
from skep_lab.workloads.k80 import K80


def test_specs_with_a_deadline_are_promised_or_placed_by_their_speeds() -> None:
    trace = genie.generate(7, genie.Options(per_hour=15.0, hours=2.0, latency_h=1.0))
    trace = replace(trace, jobs=tuple(replace(each, priority=0) for each in trace.jobs))
    cluster = of_types({"k80": 4}, 4)
    settings = Settings(
        costs=Costs(start_s=30.0),
        policies=dict.fromkeys(cluster.vcs, ("deadline", {"measured": curves(4), "start_s": 30})),
        deadlines="spec",
        can=EVERYTHING,
    )
    world = World(trace, cluster, settings, K80())
    answers: dict[str, Answer] = {}
    kept, broken = list[str](), list[str]()

    def hear(fact: Any, now: Instant) -> None:
        del now
        match fact:
            case PromiseJudged() | PromiseMade():
                answers[fact.job] = fact.judged.answer
            case PromiseKept():
                kept.append(fact.job)
            case PromiseBroken():
                broken.append(fact.job)
            case _:
                pass

    world.hear = hear
    world.run()
    world.admission.check()
    outcomes = {
        f"j{number}": each for number, each in enumerate(world.ledger.outcomes(world.now), 1)
    }
    assert all(each.ended is not None for each in outcomes.values())
    accepted = {job for job, answer in answers.items() if answer is Answer.ACCEPTED}
    assert (sorted(kept), broken) == (sorted(accepted), [])
    assert 0 < len(accepted) < len(outcomes)
    sizes = {job: each.spans[0].gpus for job, each in outcomes.items()}
    assert {sizes[job] for job in accepted} == {1}  # As it was promised.
    assert {sizes[job] for job in outcomes if job not in accepted} > {1, 4}
