"""Replicas of services beside jobs that train: apart again where requests take too long."""

from __future__ import annotations

from typing import Any

import pytest

from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Effect
from skep.machines.searches.serving.load import too_late
from skep.wire.advice import JobPace, Outlook
from skep.wire.commands import Suspend
from skep.wire.facts import JobStopping
from skep.wire.node import Outcome
from skep.wire.packs import GpusShared
from skep.wire.reasons import Reason
from skep.wire.served import ReplicaLate
from skep.wire.trials import TrialBegun, TrialOver, Verdict
from skep_services.gateway.live import Live
from skep_services.gateway.why import explain
from tests.gateway_kit import Cluster, job_of
from tests.kit import Driver, allocator, at, cancel_asked, exited, heartbeat, joined, spec, started
from tests.unit.test_allocator_changes import EVERYTHING, changed, known, of, told
from tests.unit.test_allocator_packs import held
from tests.unit.test_gpu_shares import share

MINUTE = 60


def replica(number: int, milli: int = 500, name: str = "llm-1") -> Any:
    return share(number, milli, name=name, kind="inference")


def late(job: str = "j2", attempt: int = 1) -> ReplicaLate:
    return ReplicaLate(job=job, attempt=attempt, at=at(0), bound_ms=400, answered=200, late=40)


def answer(decide: Driver[AllocatorMachine], effects: list[Effect]) -> None:
    """Have the nodes do what they are told."""
    for command in told(effects):
        decide(changed(command))


def packed(can: tuple[str, ...] = EVERYTHING) -> Driver[AllocatorMachine]:
    """Return an allocator on which j1 trains beside the replica j2."""
    decide = allocator(joined(gpus=2), nlp=2)
    decide(share(1))
    decide(started("j1"))
    decide(known("j1", can=can))
    answer(decide, decide(replica(2)))
    decide(started("j2"))
    assert held(decide) == {"j1": [0], "j2": [0]}
    return decide


def test_the_job_that_trains_leaves_and_the_replica_stays() -> None:
    decide = packed()
    effects = decide(late(), MINUTE)
    (begun,), (over,) = of(effects, TrialBegun), of(effects, TrialOver)
    assert (begun.why, begun.families) == (Reason.LATENCY_ABOVE, ("nlp/llm", "nlp/train"))
    assert (over.verdict, over.why, over.leaves) == (Verdict.UNDONE, Reason.LATENCY_ABOVE, "j1")
    assert over.detail == (
        "20 % of 200 requests to j2 took longer than 400 ms beside j1, and 5 % may"
    )
    (command,) = told(effects)
    assert (command.job, type(command.change)) == ("j1", Suspend)
    answer(decide, effects)
    state = decide.machine.state.jobs
    assert (state["j1"].state, state["j2"].state) == (State.SUSPENDED, State.RUNNING)
    # Said again, nothing more follows.
    assert of(decide(late(), 2 * MINUTE), TrialOver) == []


def test_a_job_that_cannot_be_suspended_waits_for_a_gpu_of_its_own() -> None:
    decide = packed(can=())
    assert [each.job for each in of(decide(late(), MINUTE), JobStopping)] == ["j1"]
    decide(exited("j1", outcome=Outcome.STOPPED))
    assert held(decide) == {"j1": [1], "j2": [0]}


def test_kinds_that_were_apart_are_not_together_for_an_hour_and_other_kinds_are() -> None:
    decide = packed()
    answer(decide, decide(late(), MINUTE))
    assert of(decide(share(3)), GpusShared) == []
    assert held(decide)["j3"] == [1]
    decide(started("j3"))
    # The next replica of the service does not join such a job either; another kind does.
    assert of(decide(replica(4, 100, name="llm-2")), GpusShared)[0].beside == (("j2", 1),)
    decide(started("j4"))
    assert of(decide(replica(5, 500, name="llm-3")), GpusShared) == []
    assert of(decide(share(6, name="other")), GpusShared)[0].beside == (("j3", 1),)


def test_after_the_hour_they_may_be_together_again() -> None:
    decide = packed()
    answer(decide, decide(late(), MINUTE))
    decide(heartbeat("node-1"), 61 * MINUTE)
    assert of(decide(share(3), 62 * MINUTE), GpusShared)[0].beside == (("j2", 1),)


def test_nothing_is_said_of_jobs_that_were_not_together_for_the_whole_time() -> None:
    decide = packed()
    assert of(decide(late(), 10), TrialOver) == []
    assert of(decide(late(attempt=2), MINUTE), TrialOver) == []
    assert of(decide(late("j1"), MINUTE), TrialOver) == []
    assert of(decide(late("j9"), MINUTE), TrialOver) == []
    assert len(of(decide(late(), MINUTE), TrialOver)) == 1


def test_of_several_the_latest_leaves_and_the_rest_is_measured_anew() -> None:
    decide = packed()
    answer(decide, decide(cancel_asked(1)))
    answer(decide, decide(exited("j1")))
    for number in (3, 4):
        answer(decide, decide(share(number, 200, name=f"n{number}")))
        decide(started(f"j{number}"))
        decide(known(f"j{number}"))
    effects = decide(late(), MINUTE)
    assert [fact.leaves for fact in of(effects, TrialOver)] == ["j4"]
    assert of(decide(late(), MINUTE + 5), TrialOver) == []
    answer(decide, effects)
    assert of(decide(late(), MINUTE + 10), TrialOver) == []
    assert [fact.leaves for fact in of(decide(late(), 2 * MINUTE), TrialOver)] == ["j3"]


def test_replicas_alone_are_left_together() -> None:
    decide = packed()
    answer(decide, decide(cancel_asked(1)))
    answer(decide, decide(exited("j1")))
    answer(decide, decide(replica(3, 300, name="other-1")))
    decide(started("j3"))
    assert held(decide) == {"j2": [0], "j3": [0]}
    assert of(decide(late(), MINUTE), TrialOver) == []


def test_an_open_trial_of_the_pack_ends_with_it_and_the_replica_that_came_stays() -> None:
    decide = allocator(joined(gpus=2), nlp=2)
    decide(share(1))
    decide(started("j1"))
    decide(known("j1"))
    pace = JobPace(job="j1", attempt=1, steps=10, rate_milli=100_000)
    decide(Outlook(at=at(5), jobs=(pace,), families=()))
    effects = decide(replica(2))
    (begun,) = of(effects, TrialBegun)
    answer(decide, effects)
    decide(started("j2"))
    effects = decide(late(), MINUTE)
    assert of(effects, TrialBegun) == []
    assert [(fact.trial, fact.leaves) for fact in of(effects, TrialOver)] == [(begun.trial, "j1")]
    assert [command.job for command in told(effects)] == ["j1"]


@pytest.mark.parametrize(
    "answered, late_ones, expected",
    [
        (0, 0, False),
        (39, 39, False),
        (40, 5, False),
        (40, 6, True),
        (200, 10, False),
        (200, 17, False),
        (200, 18, True),
        (10_000, 540, False),
        (10_000, 560, True),
    ],
)
def test_more_than_one_in_twenty_is_late_where_that_is_no_chance(
    answered: int, late_ones: int, expected: bool
) -> None:
    assert too_late(answered, late_ones) is expected


def test_why_says_what_was_measured() -> None:
    cluster = Cluster()
    cluster.set_vcs(nlp=2)
    cluster.join(joined(gpus=2))
    first = cluster.submit(spec(share=500))
    cluster.runs(first)
    one = spec(share=300, kind="inference", name="llm-1")
    second = cluster.submit(one, key="service/v1/1/1")
    cluster.runs(second, second=4)
    cluster._record("ALLOC", "allocator", cluster.allocator(late(second), 80), 80)
    for job in (first, second):
        found = explain(job_of(cluster.fold, job), cluster.fold, Live(cluster.fold, at(90)), at(90))
        texts = [each["text"] for each in found["reasons"] if each["reason"] == "latency-above"]
        assert len(texts) == 1
        assert "20 % of 200 requests to" in texts[0]
