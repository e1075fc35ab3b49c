"""A live run told as a trace: what counts as a job's run time, and what a trace cannot say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.units import Duration, Instant, in_seconds, seconds
from skep.wire.changes import Goal, GpusRegained, JobChanged, JobChanging, Result
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep.wire.commands import Resume, Suspend
from skep.wire.facts import (
    CellsSet,
    End,
    JobBound,
    JobEnded,
    JobQueued,
    JobRan,
    JobRequeued,
    JobStopping,
    Member,
    NodeLost,
)
from skep.wire.moves import JobMoved
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, Resources
from skep_lab.live_log.live_run import NothingError, lived, starts
from skep_lab.measures.summary import measure
from tests.replay_kit import Record

T0 = 1_700_000_000 * 10**9
CLUSTER = Cluster(
    chains={
        "v100": Chain(
            gpu="v100",
            levels=(Level(name="node", fanout=4),),
            node_level="node",
            nodes=(NodeCell(node="n1"),),
        )
    },
    vcs={"nlp": VirtualCluster(cells=(Quota(chain="v100", level="node", count=1),))},
)


def at(second: float) -> Instant:
    return Instant(T0 + seconds(second))


def queued(job: str, second: float, gpus: int = 2) -> JobQueued:
    spec = JobSpec(name=job, vc="nlp", command=("x",), resources=Resources(gpus=gpus))
    return JobQueued(job=job, spec=spec, submitted_at=at(second))


def bound(job: str, attempt: int, second: float) -> list[Any]:
    member = Member(node="n1", identity="i", first_rank=0, devices=((0, 1),), levels=(2,))
    return [
        JobBound(
            job=job,
            attempt=attempt,
            order=1,
            members=(member,),
            master_port=1,
            chain="v100",
            why=Reason.BEST_FIT_ONE_NODE,
            at=at(second),
        ),
        JobRan(job=job, attempt=attempt, at=at(second + 1)),
    ]


def ended(job: str, second: float, end: End = End.SUCCEEDED) -> JobEnded:
    return JobEnded(job=job, end=end, why=Reason.SUCCEEDED, attempts=1, at=at(second))


def requeued(job: str, second: float, why: Reason, *, counted: bool) -> JobRequeued:
    return JobRequeued(job=job, attempt=1, why=why, counted=counted, at=at(second))


def changed(job: str, second: float, goal: Goal) -> JobChanged:
    return JobChanged(
        job=job, attempt=1, goal=goal, result=Result.DONE, why=Reason.SUSPENDED, at=at(second)
    )


def changing(job: str, second: float, change: Resume | Suspend) -> JobChanging:
    return JobChanging(
        job=job,
        attempt=2,
        order=9,
        goal=Goal.MIGRATE,
        change=change,
        nodes=("n1",),
        why=Reason.REQUESTED,
        at=at(second),
    )


def told(*facts: Any) -> list[Record]:
    whole = (CellsSet(cluster=CLUSTER, asked=CLUSTER), *facts)
    return [Record(1, 1, at(0), whole, b"")]


def test_what_was_lost_to_others_is_not_work_and_what_failed_by_itself_is() -> None:
    live = lived(
        told(
            queued("j1", 0),
            *bound("j1", 1, 2),
            JobStopping(job="j1", attempt=1, order=2, why=Reason.PREEMPTED, at=at(10)),
            requeued("j1", 13, Reason.PREEMPTED, counted=False),
            *bound("j1", 2, 20),
            ended("j1", 51),
            queued("j2", 5),
            *bound("j2", 1, 6),
            requeued("j2", 17, Reason.EXITED_NONZERO, counted=True),
            *bound("j2", 2, 17),
            ended("j2", 48),
        )
    )
    first, second = live.trace.jobs
    assert in_seconds(first.run_time) == 30.0
    assert in_seconds(second.run_time) == 10.0 + 30.0
    one = live.result.jobs[0]
    assert (one.preempted, in_seconds(one.waited), in_seconds(one.lost)) == (1, 2.0 + 7.0, 10.0)
    assert [in_seconds(Duration(span.ended - span.began)) for span in one.spans] == [10.0, 30.0]
    assert (live.costs.start_s, live.costs.stop_s) == (1.0, 3.0)
    assert (live.result.gpus, live.result.node_gpus) == (4, 4)
    assert measure(live.result).makespan_s == 51.0


def test_what_was_stored_before_it_made_room_is_work_and_not_lost() -> None:
    """It trains for 8 s, stores that, is stopped 2 s later, and trains for 30 s more."""
    live = lived(
        told(
            queued("j1", 0),
            *bound("j1", 1, 1),
            changed("j1", 10, Goal.CHECKPOINT),
            requeued("j1", 12, Reason.PREEMPTED_BY_POLICY, counted=False),
            *bound("j1", 2, 20),
            ended("j1", 51),
        )
    )
    (one,) = live.result.jobs
    assert in_seconds(one.job.run_time) == 8.0 + 30.0
    assert (one.preempted, in_seconds(one.lost), one.spans[0].ended_by) == (1, 2.0, "preempted")
    assert live.result.vc_gpus == {"nlp": 4}


def test_without_its_gpus_a_suspended_job_waits() -> None:
    """It gives them back at 11 and has them again at 40; then it moves without, and goes on."""
    gone = msgspec.structs.replace(changed("j1", 11, Goal.SUSPEND), released=True)
    away = msgspec.structs.replace(changed("j1", 51, Goal.SUSPEND), released=True)
    live = lived(
        told(
            queued("j1", 0),
            *bound("j1", 1, 0),
            gone,
            GpusRegained(job="j1", attempt=1, chain="v100", at=at(40)),
            changed("j1", 41, Goal.RESUME),
            away,
            JobMoved(job="j1", attempt=2, source=1, order=9, at=at(60)),
            changing("j1", 60, Resume()),
            changed("j1", 62, Goal.MIGRATE),
            ended("j1", 70),
        )
    )
    (one,) = live.result.jobs
    assert in_seconds(one.waited) == (40 - 11) + (60 - 51)
    assert [
        (in_seconds(Duration(span.began)), in_seconds(Duration(span.ended))) for span in one.spans
    ] == [(1, 11), (41, 51), (62, 70)]


def test_who_moves_while_it_is_suspended_stands_there_too() -> None:
    live = lived(
        told(
            queued("j1", 0),
            *bound("j1", 1, 0),
            changed("j1", 11, Goal.SUSPEND),
            JobMoved(job="j1", attempt=2, source=1, order=9, at=at(20)),
            changing("j1", 20, Suspend()),
            changed("j1", 21, Goal.MIGRATE),
            changed("j1", 40, Goal.RESUME),
            ended("j1", 45),
        )
    )
    assert in_seconds(live.trace.jobs[0].run_time) == 10.0 + 5.0


def test_standing_still_is_no_run_time_and_is_told() -> None:
    live = lived(
        told(
            queued("j1", 0),
            *bound("j1", 1, 0),
            changed("j1", 11, Goal.SUSPEND),
            changed("j1", 40, Goal.RESUME),
            ended("j1", 45),
            NodeLost(node="n1"),
        )
    )
    assert in_seconds(live.trace.jobs[0].run_time) == 15.0
    notes = " ".join(note.text for note in live.trace.notes)
    assert "suspended (1)" in notes
    assert "NodeLost (1)" in notes


def test_who_has_not_run_to_an_end_is_a_problem_and_not_dropped_in_silence() -> None:
    live = lived(
        told(
            queued("j1", 0),
            *bound("j1", 1, 0),
            ended("j1", 9),
            queued("j2", 1),
            queued("j3", 2),
            ended("j3", 3, End.CANCELLED),
        )
    )
    assert [job.id for job in live.trace.jobs] == ["j1"]
    assert [problem.text.split()[0] for problem in live.trace.problems] == ["j2", "j3"]
    with pytest.raises(NothingError, match="of 1 jobs"):
        lived(told(queued("j2", 1)))


def test_only_jobs_submitted_in_the_window_are_in_the_trace() -> None:
    facts: list[Any] = []
    for begin in (0, 100):
        job = f"j{begin}"
        facts += [queued(job, begin), *bound(job, 1, begin), ended(job, begin + 9)]
    live = lived(told(*facts), (at(50), at(200)))
    assert [job.id for job in live.trace.jobs] == ["j100"]
    assert live.trace.jobs[0].at == 0


def test_starts_that_differ_come_furthest_first() -> None:
    def run(*begins: float) -> Any:
        facts = [
            fact
            for number, begin in enumerate(begins)
            for fact in (
                queued(f"j{number}", 0),
                *bound(f"j{number}", 1, begin),
                ended(f"j{number}", begin + 9),
            )
        ]
        return lived(told(*facts)).result

    moved = starts(run(0, 5, 7), run(0, 6, 17))
    assert [(one.job, one.before, one.after) for one in moved] == [
        ("j2", 8.0, 18.0),
        ("j1", 6.0, 7.0),
    ]
