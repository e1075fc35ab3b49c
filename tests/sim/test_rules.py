"""`look-ahead` and `hold` in the simulated cluster, where advice is late and changes take time."""

from __future__ import annotations

from typing import Any

from skep.units import Duration, in_seconds, seconds
from skep_lab.outcome import JobOutcome
from skep_lab.simulator.build import uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import EVERYTHING, IDEAL, Costs, Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Situation, Steady

HUMP = {1: 1.0, 2: 0.8, 3: 1.2, 4: 3.0}
"""Speeds by workers: two are slower than one."""


class Humped(Steady):
    """Jobs with a model have the speeds of HUMP, and others are twice as slow on two nodes."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        if job.model:
            return HUMP[where.workers] / HUMP[job.workers]
        return 0.5 if len(where.spread) > 1 else 1.0

    def mini_batch_s(self, job: TraceJob, where: Situation) -> float:
        return super().mini_batch_s(job, where) / self.speed(job, where)


def played(
    jobs: list[TraceJob], nodes: int, policy: str, costs: Costs = IDEAL, **options: Any
) -> list[JobOutcome]:
    settings = Settings(policies={"all": (policy, options)}, can=EVERYTHING, costs=costs)
    outcomes = run(Trace(name="t", jobs=tuple(jobs)), uniform(nodes, 4), settings, Humped()).jobs
    assert all(each.ended is not None for each in outcomes)
    return list(outcomes)


def mean_jct_s(outcomes: list[JobOutcome]) -> float:
    return sum(in_seconds(Duration((each.ended or 0) - each.job.at)) for each in outcomes) / len(
        outcomes
    )


def elastic(name: str, at_s: float, length_s: float = 10_000) -> TraceJob:
    return TraceJob(
        id=name,
        at=seconds(at_s),
        run_time=seconds(length_s),
        gpus=1,
        workers=1,
        workers_min=1,
        workers_max=4,
        model="humped",
        mini_batches=round(length_s),
    )


def gang(name: str, at_s: float, gpus: int, length_s: float = 1000) -> TraceJob:
    return TraceJob(id=name, at=seconds(at_s), run_time=seconds(length_s), gpus=gpus, workers=gpus)


def measured(name: str, at_s: float, workers: int) -> TraceJob:
    """Return a job of fixed size, by which its family is known at that size."""
    return TraceJob(
        id=name,
        at=seconds(at_s),
        run_time=seconds(400),
        gpus=workers,
        workers=workers,
        model="humped",
        mini_batches=round(400 * HUMP[workers]),
    )


def test_a_job_grows_beyond_a_step_that_gains_nothing_and_makes_room_again() -> None:
    """It begins with what is free beside a gang of three, which ends at 3,000 s."""
    known = [measured(f"m{size}", 500 * size, size) for size in (1, 2, 4)]
    jobs = [*known, gang("g", 2450, 3, 550), elastic("a", 2460), elastic("b", 4000, 2000)]
    costs = Costs(start_s=20, resize_s=20)
    outcomes = played(jobs, 1, "look-ahead", costs=costs)
    first, second = outcomes[-2:]
    assert [span.gpus for span in first.spans[:2]] == [1, 4]
    assert in_seconds(first.spans[1].began) < 3400, "in the next round"
    assert any(span.gpus < 4 for span in first.spans[2:]), "it makes room"
    assert second.began is not None
    assert in_seconds(second.began) < 4600, "within two rounds"
    others = played(jobs, 1, "optimus", costs=costs)
    assert [span.gpus for span in others[-2].spans] == [1]
    assert mean_jct_s(outcomes[-2:]) < mean_jct_s(others[-2:])


def test_sizes_settle_where_nothing_comes_or_goes() -> None:
    (only,) = played([elastic("a", 0, 100_000)], 1, "look-ahead", every_s=60)
    changed_at = [in_seconds(span.began) for span in only.spans]
    assert len(changed_at) <= 4, only.spans
    assert changed_at[-1] < 1000


def test_a_gang_is_held_until_it_fits_on_a_node_and_small_jobs_pass() -> None:
    """Two GPUs of a node are free and one of the other: a gang of three would be spread."""
    jobs = [gang("a", 0, 2), gang("b", 0, 3, 3000), gang("c", 10, 3, 4000), gang("d", 20, 1, 500)]
    spread = played(jobs, 2, "sif", strict=False)[2]
    assert len(spread.spans[0].nodes) == 2
    a, _, held, small = played(jobs, 2, "hold")
    assert len(held.spans[0].nodes) == 1
    assert held.began == a.ended
    assert in_seconds(small.began or Duration(0)) < 21


def test_a_gang_that_waits_for_too_long_is_spread() -> None:
    jobs = [gang("a", 0, 2, 5000), gang("b", 0, 3, 5000), gang("c", 10, 3, 100)]
    _, _, spread = played(jobs, 2, "hold", drain=0)
    assert in_seconds(spread.began or Duration(0)) == 510
    assert len(spread.spans[0].nodes) == 2
