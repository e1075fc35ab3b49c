"""How attempts and jobs end: outcomes, retries, losses, cancellations, time limits."""

from typing import Any

import pytest

from skep.base.timers import STALE_MAX
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.ends import LOSSES_MAX
from skep.machines.allocator.timers import TimeLimit
from skep.machines.base import Effect, Record, Send
from skep.wire.facts import (
    CancelAsked,
    End,
    JobBound,
    JobEnded,
    JobRan,
    JobRequeued,
    JobStopping,
    MemberGone,
    MemberRan,
)
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from tests.kit import (
    T0,
    Driver,
    admitted,
    allocator,
    at,
    bind,
    cancel_asked,
    exited,
    facts_of,
    heartbeat,
    joined,
    member,
    others,
    started,
    stop,
)


def one(**changes: Any) -> Driver[AllocatorMachine]:
    """Return an allocator that has bound j1 to one GPU of node-1."""
    decide = allocator(joined())
    decide(admitted(1, **changes))
    return decide


def gang(**changes: Any) -> Driver[AllocatorMachine]:
    """Return an allocator that has bound j1 to a worker on each of two nodes."""
    decide = allocator(joined("node-1", 1), joined("node-2", 1))
    decide(admitted(1, workers=2, **changes))
    return decide


def gone(outcome: Outcome, node: str = "node-1", attempt: int = 1, **fields: Any) -> Record:
    return Record(MemberGone(job="j1", attempt=attempt, node=node, outcome=outcome, **fields))


def ended(end: End, why: Reason, second: float = 0, **fields: Any) -> Record:
    given = {"attempts": 1, **fields}
    return Record(JobEnded(job="j1", end=end, why=why, at=at(second), **given))


def stopping(order: int, why: Reason, second: float = 0, **fields: Any) -> Record:
    given = {"attempt": 1, **fields}
    return Record(JobStopping(job="j1", order=order, why=why, at=at(second), **given))


def ran(node: str = "node-1", second: float = 5) -> Record:
    return Record(MemberRan(job="j1", attempt=1, node=node, at=at(second)))


def requeued(effects: list[Effect]) -> list[tuple[Reason, bool, str]]:
    return [
        (fact.why, fact.counted, fact.detail)
        for fact in facts_of(effects)
        if isinstance(fact, JobRequeued)
    ]


def tell(node: str, **fields: Any) -> Send:
    return Send(f"skep.v1.cmd.{node}", stop(node=node, **fields))


# --- an attempt that succeeds -------------------------------------------------------------------


def test_a_job_runs_and_succeeds() -> None:
    decide = one()
    assert decide(started("j1")) == [ran(), Record(JobRan(job="j1", attempt=1, at=at(5)))]
    assert decide(started("j1")) == []
    assert decide(exited("j1", steps=40, step_ns=7, detail="fine"), 9) == [
        gone(Outcome.SUCCEEDED, steps=40, step_ns=7, detail="fine"),
        ended(End.SUCCEEDED, Reason.SUCCEEDED, 9, ran_at=at(5), steps=40, step_ns=7),
    ]
    assert decide(exited("j1")) == []


def test_an_end_may_come_without_a_start() -> None:
    decide = one()
    assert decide(exited("j1")) == [gone(Outcome.SUCCEEDED), ended(End.SUCCEEDED, Reason.SUCCEEDED)]


def test_a_gang_runs_when_each_part_does_and_ends_when_each_has() -> None:
    decide = gang()
    assert decide(started("j1", node="node-2", at=at(4))) == [ran("node-2", 4)]
    assert decide(started("j1", at=at(5))) == [ran(), Record(JobRan(job="j1", attempt=1, at=at(5)))]
    assert decide(exited("j1", node="node-2", steps=10, step_ns=3)) == [
        gone(Outcome.SUCCEEDED, "node-2", steps=10, step_ns=3)
    ]
    assert decide(exited("j1", steps=12, step_ns=2), 9) == [
        gone(Outcome.SUCCEEDED, steps=12, step_ns=2),
        ended(End.SUCCEEDED, Reason.SUCCEEDED, 9, ran_at=at(5), steps=10, step_ns=3),
    ]


def test_a_part_that_ended_before_the_other_began_does_not_keep_the_gang_from_running() -> None:
    decide = gang(time=60)
    decide(started("j1"))
    decide(exited("j1"))
    assert decide(started("j1", node="node-2", at=at(6))) == [
        ran("node-2", 6),
        Record(JobRan(job="j1", attempt=1, at=at(6))),
    ]
    timers = decide.machine.tx.soft.timers.due
    assert [each for each in timers if isinstance(each, TimeLimit)] == [TimeLimit("j1", 1)]


@pytest.mark.parametrize(
    "event",
    [
        started("j1", attempt=2),
        started("j1", node="node-2"),
        started("j1", identity="impostor"),
        exited("j1", attempt=2),
        exited("j1", node="node-2"),
        exited("j1", node="node-9"),
        exited("j1", identity="impostor"),
    ],
)
def test_news_of_something_else_changes_nothing(event: object) -> None:
    decide = allocator(joined("node-1", 1), joined("node-2", 1))
    decide(admitted(1))
    assert decide(event) == []


# --- failures and retries -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "outcome, retry_on, why",
    [
        (Outcome.EXITED, "exit", Reason.EXITED_NONZERO),
        (Outcome.SIGNALLED, "signal", Reason.KILLED_BY_SIGNAL),
        (Outcome.NOT_STARTED, "not-started", Reason.NOT_STARTED),
    ],
)
def test_a_failure_is_retried_as_often_as_the_spec_says(
    outcome: Outcome, retry_on: str, why: Reason
) -> None:
    job = {"retries": 1, "retry_on": (retry_on,)}
    decide = one(**job)
    again = JobBound(
        job="j1",
        attempt=2,
        order=2,
        master_port=20001,
        at=T0,
        members=(member("node-1", (0,), levels=(3,)),),
        chain="cpux4",
        why=Reason.BEST_FIT_ONE_NODE,
    )
    assert decide(exited("j1", outcome=outcome, detail="rank 0: bad")) == [
        gone(outcome, detail="rank 0: bad"),
        Record(
            JobRequeued(
                job="j1", attempt=1, why=why, counted=True, at=T0, detail="node-1: rank 0: bad"
            )
        ),
        Record(again),
        Send("skep.v1.cmd.node-1", bind(attempt=2, order=2, settled=1, master_port=20001)),
    ]
    assert decide(exited("j1", 2, outcome=outcome)) == [
        gone(outcome, attempt=2),
        ended(End.FAILED, why, attempts=2, detail="node-1"),
    ]


@pytest.mark.parametrize(
    "outcome, retry_on, why",
    [
        (Outcome.EXITED, "signal", Reason.EXITED_NONZERO),
        (Outcome.SIGNALLED, "exit", Reason.KILLED_BY_SIGNAL),
        (Outcome.NOT_STARTED, "exit", Reason.NOT_STARTED),
    ],
)
def test_other_failures_are_not(outcome: Outcome, retry_on: str, why: Reason) -> None:
    decide = one(retries=5, retry_on=(retry_on,))
    assert decide(exited("j1", outcome=outcome)) == [
        gone(outcome),
        ended(End.FAILED, why, detail="node-1"),
    ]


@pytest.mark.parametrize(
    "outcome, why, detail",
    [
        (Outcome.PORT_BUSY, Reason.PORT_BUSY, "node-1"),
        (Outcome.UNKNOWN, Reason.EXIT_UNKNOWN, "node-1"),
        (Outcome.NODE_FAULT, Reason.NODE_FAULT, "node-1"),
        (Outcome.STOPPED, Reason.NODE_STOPPED, "node-1"),
    ],
)
def test_what_skep_lost_is_repeated_without_counting_up_to_a_bound(
    outcome: Outcome, why: Reason, detail: str
) -> None:
    decide = one()
    for attempt in range(1, LOSSES_MAX + 1):
        effects = decide(exited("j1", attempt, outcome=outcome))
        assert requeued(effects) == [(why, False, detail)]
    text = f"{LOSSES_MAX} attempts were lost; the last: {why} ({detail})"
    assert decide(exited("j1", LOSSES_MAX + 1, outcome=outcome)) == [
        gone(outcome, attempt=LOSSES_MAX + 1),
        ended(End.FAILED, Reason.RETRIES_USED_UP, attempts=LOSSES_MAX + 1, detail=text),
    ]


def test_what_a_node_could_not_start_is_repeated_on_another_one() -> None:
    decide = allocator(joined("node-1"), joined("node-2"))
    decide(admitted(1))
    detail = "rank 0: log cannot be written: No space left on device"
    effects = decide(exited("j1", outcome=Outcome.NODE_FAULT, detail=detail))
    assert requeued(effects) == [(Reason.NODE_FAULT, False, f"node-1: {detail}")]
    [again] = [fact for fact in facts_of(effects) if isinstance(fact, JobBound)]
    assert (again.attempt, [each.node for each in again.members]) == (2, ["node-2"])
    state = decide.machine.state
    assert list(state.suspicion.signs) == ["node-1/0"]
    job = state.jobs["j1"]
    assert (job.retries_used, job.losses) == (0, 1)


def test_a_gang_that_one_node_could_not_start_is_repeated_on_the_others() -> None:
    decide = allocator(*(joined(f"node-{number}", 1) for number in range(1, 4)))
    decide(admitted(1, workers=2))
    decide(started("j1"))
    decide(exited("j1", node="node-2", outcome=Outcome.NODE_FAULT))
    effects = decide(exited("j1", outcome=Outcome.STOPPED))
    assert requeued(effects) == [(Reason.NODE_FAULT, False, "node-2")]
    [again] = [fact for fact in facts_of(effects) if isinstance(fact, JobBound)]
    assert sorted(each.node for each in again.members) == ["node-1", "node-3"]


def test_a_job_that_comes_back_takes_its_old_place() -> None:
    decide = allocator(joined(gpus=1))
    decide(admitted(1, retries=1))
    decide(admitted(2))
    effects = decide(exited("j1", outcome=Outcome.EXITED))
    assert [fact.job for fact in facts_of(effects) if isinstance(fact, JobBound)] == ["j1"]


# --- a gang with a failing part -----------------------------------------------------------------


def test_when_one_part_fails_the_others_are_stopped_and_the_first_failure_tells() -> None:
    decide = gang()
    decide(started("j1"))
    decide(started("j1", node="node-2"))
    assert decide(exited("j1", node="node-2", outcome=Outcome.EXITED, detail="rank 1: 3"), 7) == [
        gone(Outcome.EXITED, "node-2", detail="rank 1: 3"),
        stopping(2, Reason.PEER_FAILED, 7, detail="node-2 ended"),
        tell("node-1"),
    ]
    assert decide(exited("j1", outcome=Outcome.SIGNALLED), 8) == [
        gone(Outcome.SIGNALLED),
        ended(End.FAILED, Reason.EXITED_NONZERO, 8, ran_at=at(5), detail="node-2: rank 1: 3"),
    ]


def test_a_second_failure_stops_nothing_again() -> None:
    decide = allocator(joined("node-1", 1), joined("node-2", 1), joined("node-3", 1))
    decide(admitted(1, workers=3))
    effects = decide(exited("j1", outcome=Outcome.NOT_STARTED))
    assert others(effects) == [tell("node-2", settled=1), tell("node-3", settled=1)]
    assert decide(exited("j1", node="node-2", outcome=Outcome.STOPPED)) == [
        gone(Outcome.STOPPED, "node-2")
    ]
    assert decide(exited("j1", node="node-3", outcome=Outcome.STOPPED)) == [
        gone(Outcome.STOPPED, "node-3"),
        ended(End.FAILED, Reason.NOT_STARTED, detail="node-1"),
    ]


def test_a_start_that_crosses_the_stop_changes_only_its_part() -> None:
    decide = gang()
    decide(exited("j1", outcome=Outcome.EXITED))
    assert decide(started("j1", node="node-2")) == [ran("node-2")]
    assert decide.tick(2) == [tell("node-2", settled=1)]


# --- cancellations ------------------------------------------------------------------------------


def test_a_queued_job_is_cancelled_at_once() -> None:
    decide = allocator(joined(gpus=1))
    decide(admitted(1))
    decide(admitted(2))
    assert decide(cancel_asked(2), 3) == [
        Record(CancelAsked(job="j2")),
        Record(JobEnded(job="j2", end=End.CANCELLED, why=Reason.CANCELLED, attempts=0, at=at(3))),
    ]
    assert decide(cancel_asked(2)) == []


@pytest.mark.parametrize("runs", [False, True])
def test_a_bound_or_running_job_is_stopped(runs: bool) -> None:
    decide = one()
    if runs:
        decide(started("j1"))
    assert decide(cancel_asked(1), 6) == [
        Record(CancelAsked(job="j1")),
        stopping(2, Reason.CANCELLED, 6),
        tell("node-1"),
    ]
    assert decide(cancel_asked(1)) == []
    assert decide(exited("j1", outcome=Outcome.STOPPED, steps=5), 8) == [
        gone(Outcome.STOPPED, steps=5),
        ended(End.CANCELLED, Reason.CANCELLED, 8, ran_at=at(5) if runs else 0, steps=5),
    ]


def test_a_job_that_is_being_stopped_for_a_retry_is_not_retried() -> None:
    decide = gang(retries=3)
    decide(exited("j1", outcome=Outcome.EXITED))
    assert decide(cancel_asked(1)) == [Record(CancelAsked(job="j1"))]
    assert decide(exited("j1", node="node-2", outcome=Outcome.STOPPED)) == [
        gone(Outcome.STOPPED, "node-2"),
        ended(End.CANCELLED, Reason.CANCELLED),
    ]


def test_a_job_that_waits_for_its_second_attempt_is_cancelled() -> None:
    decide = one(retries=1)
    decide(admitted(2, gpus=4, priority=1))  # Takes the whole node first.
    decide(exited("j1", outcome=Outcome.EXITED), 4)
    assert decide(cancel_asked(1), 5) == [
        Record(CancelAsked(job="j1")),
        ended(End.CANCELLED, Reason.CANCELLED, 5),
    ]


def test_a_job_that_succeeds_while_it_is_cancelled_has_succeeded() -> None:
    decide = one()
    decide(cancel_asked(1))
    assert decide(exited("j1")) == [gone(Outcome.SUCCEEDED), ended(End.SUCCEEDED, Reason.SUCCEEDED)]


def test_a_cancellation_of_a_job_never_heard_of() -> None:
    assert allocator()(cancel_asked(7)) == []


# --- time limits --------------------------------------------------------------------------------


def test_a_job_that_runs_longer_than_its_limit_fails() -> None:
    decide = one(time=30, retries=3)
    decide(started("j1"))  # At second 5.
    assert others(decide.tick(34.9)) == []
    assert decide.tick(35) == [
        stopping(2, Reason.TIME_LIMIT, 35, detail="limit 30 s"),
        tell("node-1"),
    ]
    assert decide(exited("j1", outcome=Outcome.STOPPED), 36) == [
        gone(Outcome.STOPPED),
        ended(End.FAILED, Reason.TIME_LIMIT, 36, ran_at=at(5), detail="limit 30 s"),
    ]


@pytest.mark.parametrize("claimed, taken", [(-3600, 2), (2, 2), (4, 4), (5, 5), (3600, 5)])
def test_a_nodes_clock_moves_no_limit(claimed: int, taken: int) -> None:
    decide = allocator(joined())
    decide(admitted(1, time=30), 2)
    assert decide(started("j1", at=at(claimed)), 5) == [
        ran(second=taken),
        Record(JobRan(job="j1", attempt=1, at=at(taken))),
    ]


def test_a_limit_holds_across_a_crash() -> None:
    decide = one(time=30)
    decide(started("j1"))
    decide.restart(20)
    assert facts_of(decide.tick(35)) == [
        stopping(2, Reason.TIME_LIMIT, 35, detail="limit 30 s").fact
    ]


def test_a_clock_that_was_set_back_makes_no_limit_longer() -> None:
    decide = one(time=30)
    decide(started("j1"))
    decide.restart(-3600)
    assert [fact.why for fact in facts_of(decide.tick(-3570))] == [Reason.TIME_LIMIT]


def test_a_limit_of_an_earlier_attempt_does_not_hurt_a_later_one() -> None:
    decide = one(time=30, retries=1)
    decide(started("j1"))
    decide(exited("j1", outcome=Outcome.EXITED), 20)
    decide(started("j1", 2, at=at(21)), 21)
    decide(heartbeat(), 30)
    assert facts_of(decide.tick(35)) == []
    assert [fact.why for fact in facts_of(decide.tick(51))] == [Reason.TIME_LIMIT]


def test_a_limit_does_not_stop_a_job_twice() -> None:
    decide = one(time=30)
    decide(started("j1"))
    decide(cancel_asked(1), 31)
    assert facts_of(decide.tick(35)) == []


def test_limits_of_jobs_that_ended_are_forgotten() -> None:
    decide = allocator(joined())
    decide.thorough = False
    soft = decide.machine.tx.soft
    for number in range(1, 1_500):
        decide(admitted(number, time=86_400), number)
        decide(started(f"j{number}"))
        decide(exited(f"j{number}"))
        decide(heartbeat())
        decide.tick(number)
    assert [each for each in soft.timers.due if isinstance(each, TimeLimit)] == []
    assert len(soft.timers) <= 2 * len(soft.timers.due) + STALE_MAX
    decide.check_replay()
