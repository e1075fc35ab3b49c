"""A waiting job is given another priority: its place in the queue, and what that starts."""

from __future__ import annotations

from typing import Any

import pytest

from skep.ledger.job_state import State
from skep.machines.advisor import AdvisorMachine
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Effect
from skep.wire.admin import SetVcs
from skep.wire.changes import AskOver, AskPriority, ChangeAsked, JobPrioritised, Result
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import Facts
from skep.wire.facts import JobBound
from skep.wire.reasons import Reason
from tests.kit import T0, Driver, admitted, allocator, exited, facts_of, joined, started


def prioritise(number: int, job: str, priority: int) -> Facts:
    wish = AskPriority(job=job, priority=priority)
    return Facts(
        service="admission", at=T0, facts=(ChangeAsked(number=number, ask=wish, at=T0, by="ann"),)
    )


def over(effects: list[Effect]) -> list[tuple[int, Result, Reason | None]]:
    return [
        (fact.number, fact.result, fact.why)
        for fact in facts_of(effects)
        if isinstance(fact, AskOver)
    ]


def busy(jobs: int, policy: str = "") -> Driver[AllocatorMachine]:
    """Return an allocator with one node whose GPUs j1 has, and for which the other jobs wait."""
    decide = allocator(joined("node-1", 4))
    if policy:
        decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=4, policy=policy)}))
    for number in range(1, jobs + 1):
        decide(admitted(number, gpus=4))
    assert decide.machine.state.jobs["j1"].state is State.BOUND
    return decide


def ended(decide: Driver[AllocatorMachine]) -> list[str]:
    """End what runs; return the jobs that begin."""
    (job,) = decide.machine.state.placed
    decide(started(job, 1, "node-1"))
    effects = decide(exited(job, 1, "node-1"))
    return [fact.job for fact in facts_of(effects) if isinstance(fact, JobBound)]


@pytest.mark.parametrize("policy", ["", "backfill", "srtf", "las", "drf"])
def test_the_highest_priority_comes_next(policy: str) -> None:
    decide = busy(4, policy)
    effects = decide(prioritise(9, "j4", 7))
    changed = [fact for fact in facts_of(effects) if isinstance(fact, JobPrioritised)]
    assert [(fact.job, fact.priority, fact.number) for fact in changed] == [("j4", 7, 9)]
    assert over(effects) == [(9, Result.DONE, None)]
    decide(prioritise(10, "j2", 3))
    decide(prioritise(11, "j4", 7))  # It has it already.
    order = [ended(decide) for _ in range(3)]
    if policy != "drf":  # There priorities order the jobs of one owner alone.
        assert order == [["j4"], ["j2"], ["j3"]]
    decide.machine.check()


def test_a_priority_can_be_lowered() -> None:
    decide = busy(2, "backfill")  # Its priorities take no GPUs from jobs that run.
    decide(admitted(3, gpus=4, priority=5))
    decide(prioritise(9, "j3", 0))
    assert [ended(decide), ended(decide)] == [["j2"], ["j3"]]


def test_what_has_gpus_or_is_over_is_refused() -> None:
    decide = busy(2)
    assert over(decide(prioritise(9, "j1", 5))) == [(9, Result.REFUSED, Reason.NOT_WAITING)]
    assert over(decide(prioritise(10, "j77", 5))) == [(10, Result.REFUSED, Reason.ALREADY_ENDED)]
    assert decide.machine.state.jobs["j1"].spec.priority == 0


def test_a_request_counts_once_and_survives_a_restart() -> None:
    decide = busy(3, "backfill")
    decide(prioritise(9, "j3", 5))
    decide(prioritise(10, "j3", 1))
    assert over(decide(prioritise(9, "j3", 5))) == []
    decide.restart()
    assert decide.machine.state.jobs["j3"].spec.priority == 1
    assert ended(decide) == ["j3"]


def test_the_advisor_orders_by_the_new_priority() -> None:
    decide, advisor = busy(4), AdvisorMachine()
    told: list[Any] = list(decide.facts)
    told += facts_of(decide(prioritise(9, "j4", 7)))
    for fact in told:
        advisor.decide(Facts(service="allocator", at=T0, facts=(fact,)), T0)
    waiting = [advisor._queued[each].job for each in advisor._queue]
    assert waiting == ["j4", "j2", "j3"]
    advisor.check()
