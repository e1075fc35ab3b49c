"""What a simulated node does about every command: suspended, moved, resized, packed."""

from __future__ import annotations

from typing import Any

from skep.units import seconds
from skep.wire.changes import (
    AskCheckpoint,
    AskMigrate,
    AskPack,
    AskResize,
    AskResume,
    AskSuspend,
    AskUnpack,
)
from skep_lab.outcome import JobOutcome, RunResult
from skep_lab.simulator.build import uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import EVERYTHING, Costs, Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Situation, Steady

CAN = Settings(can=EVERYTHING)


def test_a_suspended_job_gives_its_gpus_to_others_and_goes_on_where_it_was() -> None:
    result = play(
        [job("a", 0, 100, 8), job("b", 10, 20, 8)],
        (30, AskSuspend(job="j1", release=True)),
        (60, AskResume(job="j1")),
        nodes=1,
    )
    first, second = result.jobs
    assert spans(first) == [(0, 30, "suspended"), (60, 130, "ended")]
    assert spans(second) == [(30, 50, "ended")]
    assert (first.suspended, first.waited, first.lost) == (1, seconds(30), 0)


def test_a_gang_on_two_nodes_stops_and_goes_on_as_one() -> None:
    result = play([job("a", 0, 100, 16)], (30, AskSuspend(job="j1")), (40, AskResume(job="j1")))
    assert spans(result.jobs[0]) == [(0, 30, "suspended"), (40, 110, "ended")]


def test_what_suspending_and_resuming_cost_is_no_progress() -> None:
    costs = Settings(can=EVERYTHING, costs=Costs(suspend_s=3, resume_s=4))
    result = play(
        [job("a", 0, 100, 8)],
        (30, AskSuspend(job="j1", release=True)),
        (40, AskResume(job="j1")),
        settings=costs,
    )
    (only,) = result.jobs
    assert only.ended == seconds(100 + (44 - 30))
    assert only.overhead == seconds(7)


def test_a_job_moves_to_another_node_and_loses_nothing() -> None:
    costs = Settings(can=EVERYTHING, costs=Costs(start_s=5, migrate_s=2))
    result = play([job("a", 0, 100, 8)], (30, AskMigrate(job="j1")), settings=costs)
    (only,) = result.jobs
    assert only.migrated == 1
    assert only.ended == seconds(5 + 100 + 2)
    assert only.lost == 0
    assert [span.ended_by for span in only.spans] == ["migrated", "ended"]


def test_a_gang_of_two_nodes_moves() -> None:
    result = play([job("a", 0, 100, 16)], (30, AskMigrate(job="j1")), nodes=4)
    assert [span.ended_by for span in result.jobs[0].spans] == ["migrated", "ended"]
    assert result.jobs[0].ended == seconds(100)


def test_a_suspended_job_moves_and_stands_there() -> None:
    result = play(
        [job("a", 0, 100, 8)],
        (30, AskSuspend(job="j1")),
        (40, AskMigrate(job="j1")),
        (50, AskResume(job="j1")),
    )
    assert result.jobs[0].ended == seconds(120)
    assert result.jobs[0].lost == 0
    assert spans(result.jobs[0]) == [(0, 30, "suspended"), (50, 120, "ended")]


def test_a_job_that_moves_without_its_gpus_waits_for_some_there() -> None:
    result = play(
        [job("a", 0, 100, 8), job("b", 30, 100, 8)],
        (20, AskSuspend(job="j1", release=True)),
        (40, AskMigrate(job="j1")),
        (50, AskResume(job="j1")),
        nodes=3,
    )
    first = result.jobs[0]
    assert first.migrated == 1
    assert spans(first) == [(0, 20, "suspended"), (50, 130, "ended")]
    assert [span.gpus for span in first.spans] == [8, 8]
    assert first.waited == seconds(20 + 10)


def test_a_job_that_grows_is_faster_and_one_that_shrinks_slower() -> None:
    trace = [job("a", 0, 100, 2, workers=2, workers_min=1, workers_max=4)]
    result = play(
        trace,
        (20, AskResize(job="j1", workers=4)),
        (40, AskResize(job="j1", workers=1)),
        speeds=Linear(),
    )
    (only,) = result.jobs
    assert [(span.gpus, span.ended_by) for span in only.spans] == [
        (2, "resized"),
        (4, "resized"),
        (1, "ended"),
    ]
    assert only.ended == seconds(20 + 20 + 2 * 40)
    assert only.resized == 2


def test_a_gang_grows_onto_another_node_and_leaves_it() -> None:
    trace = [job("a", 0, 100, 8, workers=8, workers_min=4, workers_max=12)]
    result = play(
        trace, (20, AskResize(job="j1", workers=12)), (40, AskResize(job="j1", workers=8))
    )
    assert [(span.spread, span.ended_by) for span in result.jobs[0].spans] == [
        ((8,), "resized"),
        ((8, 4), "resized"),
        ((8,), "ended"),
    ]
    assert result.jobs[0].ended == seconds(100)


def test_packed_jobs_slow_one_another_down_until_one_leaves() -> None:
    result = play(
        [
            job("a", 0, 100, 1, model="m"),
            job("b", 0, 100, 8, model="m"),
            job("c", 0, 20, 1, model="n"),
        ],
        (50, AskPack(job="j3", beside="j1")),
        nodes=1,
        speeds=Packed(),
    )
    first, _, guest = result.jobs
    assert guest.packed == 1
    assert [each.spans[0].guest for each in (guest, first)] == [True, False]
    assert spans(guest) == [(50, 90, "ended")]
    assert spans(first) == [(0, 50, "packed"), (50, 90, "unpacked"), (90, 120, "ended")]


def test_a_guest_that_unpacks_waits_again() -> None:
    result = play(
        [job("a", 0, 100, 8, model="m"), job("b", 0, 20, 1, model="n")],
        (50, AskPack(job="j2", beside="j1")),
        (60, AskUnpack(job="j2")),
        nodes=1,
        speeds=Packed(),
    )
    first, guest = result.jobs
    assert first.ended == seconds(105)
    assert guest.ended == seconds(105 + 15)


def test_what_was_stored_survives_a_stop() -> None:
    jobs = [job("a", 0, 100, 8, opportunistic=True), job("b", 50, 10, 8)]
    lost, kept, stored = (
        play(jobs, nodes=1, settings=Settings()),
        play(jobs, nodes=1, settings=Settings(costs=Costs(checkpoint_every_s=20))),
        play(jobs, (45, AskCheckpoint(job="j1")), nodes=1, settings=Settings(can=("checkpoint",))),
    )
    assert lost.jobs[0].lost == seconds(50)
    assert lost.jobs[0].ended == seconds(50 + 10 + 100)
    assert kept.jobs[0].lost == seconds(10)
    assert kept.jobs[0].ended == seconds(50 + 10 + 60)
    assert stored.jobs[0].ended == seconds(50 + 10 + 50)
    assert [each.jobs[0].preempted for each in (lost, kept, stored)] == [1, 1, 1]


def test_who_is_stopped_while_it_resumes_does_not_train_on() -> None:
    """Its node answers no change that a stop has overtaken."""
    settings = Settings(can=("suspend",), costs=Costs(stop_s=1, resume_s=20))
    result = play(
        [job("a", 0, 100, 8, opportunistic=True), job("b", 45, 200, 8)],
        (30, AskSuspend(job="j1")),
        (40, AskResume(job="j1")),
        nodes=1,
        settings=settings,
    )
    first, second = result.jobs
    assert spans(second) == [(46, 246, "ended")]
    assert spans(first) == [(0, 30, "suspended"), (246, 346, "ended")]


def test_the_same_seed_gives_the_same_noise() -> None:
    jobs = [job("a", 0, 100, 8), job("b", 0, 100, 8)]
    first, again, other = (
        play(jobs, settings=Settings(noise=0.1, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again
    ends = [each.ended for each in first.jobs]
    assert ends != [each.ended for each in other.jobs]
    assert all(seconds(50) < end < seconds(200) for end in ends if end is not None)


def test_a_policy_that_preempts_ends_every_job_and_loses_no_stored_work() -> None:
    jobs = [job("a", 0, 500, 8), job("b", 10, 50, 8), job("c", 20, 30, 16), job("d", 30, 5, 4)]
    for can in (("checkpoint",), EVERYTHING):
        settings = Settings(can=can, policies={"all": ("srtf", {})})
        result = play(jobs, settings=settings)
        assert all(each.ended is not None for each in result.jobs)
        assert all(each.lost == 0 for each in result.jobs)
        assert result.jobs[0].preempted + result.jobs[0].suspended > 0
        assert result == play(jobs, settings=settings)


class Linear(Steady):
    """Each worker adds as much speed as the first."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        return where.workers / (job.workers or job.gpus)


class Packed(Steady):
    """Who shares a GPU has half the speed."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        return 0.5 if where.partners else 1.0


def play(
    jobs: list[TraceJob],
    *asks: tuple[float, Any],
    nodes: int = 2,
    settings: Settings = CAN,
    speeds: Steady | None = None,
) -> RunResult:
    news = [(seconds(at), ask) for at, ask in asks]
    return run(
        Trace(name="t", jobs=tuple(jobs)),
        uniform(nodes, 8),
        settings,
        speeds or Steady(),
        news=news,
    )


def spans(outcome: JobOutcome) -> list[tuple[float, float, str]]:
    return [(span.began / 1e9, span.ended / 1e9, span.ended_by) for span in outcome.spans]


def job(name: str, at_s: float, lasts_s: float, gpus: int, **more: Any) -> TraceJob:
    return TraceJob(id=name, at=seconds(at_s), run_time=seconds(lasts_s), gpus=gpus, **more)
