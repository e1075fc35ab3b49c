"""Introspector and advisor in a simulated cluster: reports at every change, or every second."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from skep.units import seconds
from skep.wire.cluster import Cluster
from skep.wire.findings import RateLearned
from skep_lab.simulator.build import uniform
from skep_lab.simulator.settings import EVERYTHING, Costs, Reporting, Settings
from skep_lab.simulator.world import World
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Situation, Steady

POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "elastic": ("optimus", {"every_s": 60, "strict": False}),
    "sized": ("tetris", {"size": "performance"}),
    "local": ("saf", {"strict": False}),
}
"""What goes by rates; a fourth VC has none, and is served in the order that the advisor tells."""


class Shared(Steady):
    """Larger gangs are faster by less and less, spread ones slower, and neighbours cost a bit."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        own = 0.8 if job.model in ("m0.1", "m3.0") else 0.55
        speed = float((where.workers / max(job.workers, 1)) ** own)
        speed *= 0.7 ** (len(where.spread) - 1) * 0.95 ** min(len(where.neighbours), 3)
        return speed

    def utilisation(self, job: TraceJob, where: Situation) -> float:
        return 0.5 + 0.4 / len(where.spread)


def trace(jobs: int, seed: int, length: float) -> Trace:
    """Return jobs of four tenants, some of them elastic, with mini-batches of 0.1 s to 20 s."""
    rng = random.Random(seed)
    at, made = 0.0, []
    for number in range(jobs):
        at += rng.expovariate(1 / (length / 14))
        workers = rng.choice((1, 1, 2, 2, 4))
        vc = rng.choice((*POLICIES, "plain"))
        run_time = length * rng.uniform(0.3, 2.0)
        step = rng.choice((0.1, 0.7, 3.0, 20.0))
        made.append(
            TraceJob(
                id=f"t{number}",
                at=seconds(at),
                run_time=seconds(run_time),
                gpus=workers,
                workers=workers,
                vc=vc,
                model=f"m{step}",
                mini_batches=max(1, round(run_time / step)),
                workers_min=1 if vc in ("elastic", "sized") else 0,
                workers_max=6 if vc in ("elastic", "sized") else 0,
            )
        )
    return Trace(name="reports", jobs=tuple(made))


def cluster() -> Cluster:
    return uniform(8, 4, vcs=dict.fromkeys((*POLICIES, "plain"), 2))


def played(jobs: Trace, reports: Reporting, seed: int = 0) -> World:
    """Return the world after a run."""
    settings = Settings(
        seed=seed,
        costs=Costs(start_s=2, resize_s=3, migrate_s=4, suspend_s=1, resume_s=1),
        policies=POLICIES,
        noise=0.05,
        hints="none",
        can=EVERYTHING,
        reports=reports,
    )
    world = World(jobs, cluster(), settings, Shared())
    if world.reports is not None:
        world.reports.found = []
    assert world.run()
    return world


def found(world: World) -> list[str]:
    """Return all findings but rates; those of one second come in the order of who is looked at."""
    assert world.reports is not None
    return sorted(map(repr, world.reports.found or ()))


def test_reports_of_changes_alone_lead_to_the_decisions_of_reports_every_second() -> None:
    jobs = trace(200, seed=0, length=90)
    once, every = (played(jobs, reports) for reports in ("on-change", "per-second"))
    assert once.reports is not None
    assert every.reports is not None
    assert once.ledger.digest() == every.ledger.digest()
    assert found(once) == found(every)
    outcomes = once.ledger.outcomes(once.now)
    assert msgspec.json.encode(outcomes) == msgspec.json.encode(every.ledger.outcomes(every.now))
    assert sum(job.resized for job in outcomes) > 0
    assert once.reports.reports * 5 < every.reports.reports
    assert played(jobs, "none").ledger.digest() != once.ledger.digest()


@pytest.mark.parametrize("reports", ["on-change", "per-second"])
@pytest.mark.parametrize("step", [0.25, 20.0])
def test_while_a_job_is_suspended_is_no_part_of_how_it_goes(
    reports: Reporting, step: float
) -> None:
    """Two jobs take turns on one GPU, each at the same pace whenever it runs."""
    told: set[int] = set()

    def judge(world: World, decided: list[Any]) -> None:
        told.update(pace.rate_milli for pace, _ in world.allocator.tx.soft.paces.values())

    jobs = Trace(
        name="turns",
        jobs=tuple(
            TraceJob(
                id=f"t{number}",
                at=seconds(number),
                run_time=seconds(900),
                gpus=1,
                workers=1,
                mini_batches=round(900 / step),
            )
            for number in range(2)
        ),
    )
    settings = Settings(
        costs=Costs(start_s=2, suspend_s=1, resume_s=1),
        hints="none",
        policies={"all": ("gandiva", {"introspect": True})},
        reports=reports,
    )
    world = World(jobs, uniform(1, 1), settings, Steady(), judge=judge)
    assert world.reports is not None
    world.reports.found = []
    assert world.run()
    outcomes = world.ledger.outcomes(world.now)
    assert sum(job.suspended for job in outcomes) > 10
    # Nobody has stalled, and who stood is told to make nothing or what it makes, and not between.
    assert [type(found) for _, found in world.reports.found] == [RateLearned] * 2
    assert told - {0} == {round(1000 / step)}
