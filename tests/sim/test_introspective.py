"""Gandiva's introspective mode in simulated clusters, against its reactive mode.

What jobs do to one another on a GPU is the simulator's truth (`perf.interference`, fitted to
Gandiva's tables); the policy sees what agents report.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from skep.perf.interference import TABLE_1, by_utilisation, slowdowns
from skep.units import NS_PER_SECOND, seconds
from skep.wire.changes import Goal, JobChanging
from skep.wire.cluster import Cluster
from skep.wire.commands import Resize
from skep.wire.facts import JobEnded, JobRan
from skep.wire.trials import Kind, TrialBegun, TrialOver, Verdict
from skep_lab.simulator.build import uniform
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.simulator.world import World
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Situation, Speeds, Steady

GIB = 2**30
COSTS = Costs(start_s=2, suspend_s=0.65, resume_s=0.21, migrate_s=1, resize_s=1)


class Truth(Steady):
    """Jobs interfere by their utilisation, scale to 90 % per worker, and suffer when scattered."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        loads = [by_utilisation(TABLE_1[each][0]) for each in (job.model, *where.partners)]
        apart = 0.6 if len(where.spread) > 1 else 1.0
        more: float = (where.workers / (job.workers or 1)) ** 0.85
        return apart * more / slowdowns(loads)[0]

    def utilisation(self, job: TraceJob, where: Situation) -> float:
        return TABLE_1[job.model][0]

    def memory(self, job: TraceJob) -> int:
        return 4 * GIB


def played(
    jobs: list[TraceJob], cluster: Cluster, *, speeds: Speeds | None = None, **options: Any
) -> tuple[World, list[Any]]:
    """Return a world that has come to its end, and all facts of it."""
    facts: list[Any] = []

    def judge(world: World, decided: list[Any]) -> None:
        facts.extend(decided)
        world.allocator.check()

    settings = Settings(
        costs=COSTS,
        policies={"all": ("gandiva", options)},
        hints="none",
        reports="on-change",
        gpu_memory={"v100": 16 * GIB},
    )
    world = World(
        Trace(name="t", jobs=tuple(jobs)), cluster, settings, speeds or Truth(), judge=judge
    )
    assert world.run()
    assert world.allocator.state.tries.open == {}
    return world, facts


def job(
    name: str, model: str, at: float = 0, run_time: float = 1500, gpus: int = 1, **more: Any
) -> TraceJob:
    return TraceJob(
        id=name,
        at=seconds(at),
        run_time=seconds(run_time),
        gpus=gpus,
        model=model,
        workers=gpus,
        mini_batches=round(4 * run_time),
        **more,
    )


def ends(facts: list[Any]) -> dict[str, float]:
    """Return when jobs ended, in seconds from the first one's start."""
    began = min(fact.at for fact in facts if isinstance(fact, JobRan))
    return {
        fact.job: (fact.at - began) / NS_PER_SECOND for fact in facts if isinstance(fact, JobEnded)
    }


def verdicts(facts: list[Any]) -> Counter[tuple[Kind, Verdict]]:
    kinds = {fact.trial: fact.kind for fact in facts if isinstance(fact, TrialBegun)}
    return Counter(
        (kinds[fact.trial], fact.verdict) for fact in facts if isinstance(fact, TrialOver)
    )


def test_in_overload_packing_makes_more_than_turns_and_everybody_has_of_it() -> None:
    """Ten jobs of five models on four GPUs."""
    models = ("VAE", "SuperResolution", "RHN", "LSTM", "ResNet-50")
    jobs = [job(f"t{n}", models[n % 5], at=n, run_time=800) for n in range(10)]
    ended: dict[bool, list[float]] = {}
    found: Counter[tuple[Kind, Verdict]] = Counter()
    for introspect in (False, True):
        _, facts = played(jobs, uniform(1, 4), introspect=introspect)
        ended[introspect] = sorted(ends(facts).values())
        found = verdicts(facts)
        assert bool(found) is introspect
    assert found[Kind.PACK, Verdict.KEPT] >= 3
    assert sum(ended[True]) <= 0.85 * sum(ended[False])
    assert max(ended[True]) <= 0.85 * max(ended[False])
    # Nobody pays for it: packs stand back for the others as who is alone does.
    assert all(new <= old for new, old in zip(ended[True], ended[False], strict=True))


def test_a_job_grows_into_idle_gpus_and_shrinks_when_another_one_comes() -> None:
    elastic = job("t0", "ResNet-50", run_time=6000, workers_min=1, workers_max=4)
    new = job("t1", "ResNet-50", at=1200, run_time=300, gpus=2)
    _, facts = played([elastic, new], uniform(1, 4), introspect=True)
    assert verdicts(facts)[Kind.GROW, Verdict.KEPT] >= 1
    sizes = [
        fact.change.world
        for fact in facts
        if isinstance(fact, JobChanging) and fact.job == "j1" and isinstance(fact.change, Resize)
    ]
    # It gives back what the new one needs, and no more; then it has everything again.
    assert sizes == [2, 3, 4, 2, 3, 4]
    assert not any(fact.goal is Goal.SUSPEND for fact in facts if isinstance(fact, JobChanging))
    ran = {fact.job: fact.at for fact in facts if isinstance(fact, JobRan)}
    assert ran["j2"] - ran["j1"] < seconds(1205)
    assert ends(facts)["j1"] < 6000 / 2.5


def test_a_scattered_gang_is_gathered_when_somebody_leaves() -> None:
    """Its family was seen on one node before."""
    jobs = [
        job("t0", "RHN", run_time=200, gpus=2),
        job("t1", "LSTM", at=250, run_time=1000, gpus=3),
        job("t2", "LSTM", at=251, run_time=4000, gpus=3),
        job("t3", "RHN", at=300, run_time=2000, gpus=2),
    ]
    _, facts = played(jobs, uniform(2, 4), introspect=True)
    assert verdicts(facts) == {(Kind.MIGRATE, Verdict.KEPT): 1}
    (begun,) = [fact for fact in facts if isinstance(fact, TrialBegun)]
    gone = next(fact.at for fact in facts if isinstance(fact, JobEnded) and fact.job == "j2")
    assert seconds(0) <= begun.at - gone < seconds(60)
    assert begun.jobs[0].job == "j4"
    # It made 0.6 of what it makes on one node for the first 950 s.
    assert ends(facts)["j4"] < 300 + 950 + (2000 - 0.6 * 950) + 60
