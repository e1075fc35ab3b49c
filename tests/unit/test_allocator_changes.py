"""Suspending, resuming and storing running jobs: rounds, crossing requests, and who makes room."""

from typing import Any

import pytest

from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.changes.rounds import ROUNDS_MAX
from skep.machines.allocator.changes.suspension import RESUMES_MAX
from skep.machines.base import Effect, Restarted, Send, Tick
from skep.wire.changes import (
    Ask,
    AskCheckpoint,
    AskMigrate,
    AskOver,
    AskResume,
    AskSuspend,
    ChangeAsked,
    Goal,
    GpusRegained,
    JobChanged,
    JobChanging,
    Result,
)
from skep.wire.codec import Facts
from skep.wire.commands import ChangeJob, Checkpoint, Resume, StopJob, Suspend
from skep.wire.facts import JobBound, JobEnded, JobRequeued, JobStopping
from skep.wire.node import Manner, MemberChanged, MemberKnown, Outcome, Tier
from skep.wire.reasons import Reason
from skep.wire.spec import Elastic
from tests.kit import (
    T0,
    Driver,
    admitted,
    allocator,
    at,
    cancel_asked,
    exited,
    facts_of,
    heartbeat,
    joined,
    started,
)

EVERYTHING = ("suspend", "release", "checkpoint")


def ask(number: int, wish: Ask) -> Facts:
    """Return admission's word that a change is asked for."""
    fact = ChangeAsked(number=number, ask=wish, at=T0)
    return Facts(service="admission", at=T0, facts=(fact,))


def known(
    job: str, node: str = "node-1", can: tuple[str, ...] = EVERYTHING, **more: Any
) -> MemberKnown:
    given = {"attempt": 1, "at": T0, "tier": Tier.OBSERVED, **more}
    return MemberKnown(node=node, identity=f"id-{node}", job=job, can=can, **given)


def changed(command: ChangeJob, manner: Manner = Manner.BOUNDARY, **more: Any) -> MemberChanged:
    """Return a node's answer to a change; what was to be released is."""
    change = command.change
    released = isinstance(change, Suspend) and change.release and manner is Manner.BOUNDARY
    given = {"released": released, "at": T0, **more}
    return MemberChanged(
        node=command.node,
        identity=command.identity,
        job=command.job,
        attempt=command.attempt,
        order=command.order,
        manner=manner,
        **given,
    )


def told(effects: list[Effect]) -> list[ChangeJob]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, ChangeJob)
    ]


def over(effects: list[Effect]) -> list[tuple[int, Result, Reason | None]]:
    return [
        (fact.number, fact.result, fact.why)
        for fact in facts_of(effects)
        if isinstance(fact, AskOver)
    ]


def ends(effects: list[Effect]) -> list[tuple[Goal, Result]]:
    return [(fact.goal, fact.result) for fact in facts_of(effects) if isinstance(fact, JobChanged)]


def of(effects: list[Effect], kind: type) -> list[Any]:
    return [fact for fact in facts_of(effects) if isinstance(fact, kind)]


def state(decide: Driver[AllocatorMachine]) -> State:
    return decide.machine.state.jobs["j1"].state


def running(
    *nodes: str, gpus: int = 4, can: tuple[str, ...] = EVERYTHING, **changes: Any
) -> Driver[AllocatorMachine]:
    """Return an allocator that runs j1 on these nodes, one worker on each."""
    decide = allocator(*(joined(node, gpus) for node in nodes))
    changes = {"workers": len(nodes), "gpus": gpus, **changes}
    decide(admitted(1, **changes))
    for node in nodes:
        decide(started("j1", node=node))
        decide(known("j1", node, can))
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    return decide


def suspended(decide: Driver[AllocatorMachine], *, release: bool = False) -> None:
    """Have j1, on one node, be suspended by its tenant."""
    (command,) = told(decide(ask(2, AskSuspend(job="j1", release=release))))
    assert over(decide(changed(command))) == [(2, Result.DONE, None)]
    assert decide.machine.state.jobs["j1"].state is State.SUSPENDED


def test_a_job_is_suspended_and_resumed() -> None:
    decide = running("node-1")
    effects = decide(ask(2, AskSuspend(job="j1")), 10)
    (command,) = told(effects)
    assert command.change == Suspend()
    assert [fact.goal for fact in of(effects, JobChanging)] == [Goal.SUSPEND]
    # Until it is answered it is repeated, also after a restart; a second answer says nothing.
    assert told(decide(Tick(), 13)) == [command]
    assert told(decide(Restarted(2), 14))[0].order == command.order
    effects = decide(changed(command, step=7), 15)
    assert over(effects) == [(2, Result.DONE, None)]
    assert decide(changed(command), 16) == []
    assert state(decide) is State.SUSPENDED
    assert len(decide.machine.state.placed) == 1

    (command,) = told(decide(ask(3, AskResume(job="j1")), 40))
    assert command.change == Resume()
    assert ends(decide(changed(command), 41)) == [(Goal.RESUME, Result.DONE)]
    assert state(decide) is State.RUNNING


def test_a_request_is_taken_once() -> None:
    decide = running("node-1")
    decide(ask(2, AskSuspend(job="j1")))
    assert decide(ask(2, AskSuspend(job="j1"))) == []


@pytest.mark.parametrize(
    "wish, why",
    [
        (AskSuspend(job="j2"), Reason.NOT_RUNNING),
        (AskResume(job="j2"), Reason.NOT_RUNNING),
        (AskSuspend(job="j9"), Reason.ALREADY_ENDED),
        (AskSuspend(job="j1", release=True), Reason.CANNOT),
        (AskCheckpoint(job="j1"), Reason.CANNOT),
        (AskMigrate(job="j1"), Reason.CANNOT),
    ],
)
def test_what_cannot_be_done_is_refused(wish: Ask, why: Reason) -> None:
    decide = running("node-1", can=("suspend",))
    decide(admitted(2, gpus=4))
    assert over(decide(ask(3, wish))) == [(3, Result.REFUSED, why)]


def test_a_request_waits_until_ranks_have_said_what_they_can() -> None:
    decide = allocator(joined())
    decide(admitted(1))
    decide(ask(2, AskCheckpoint(job="j1")))
    assert told(decide(started("j1"))) == []
    (command,) = told(decide(known("j1")))
    assert command.change == Checkpoint()
    assert over(decide(changed(command))) == [(2, Result.DONE, None)]


def test_of_two_requests_that_cross_the_later_one_decides() -> None:
    decide = running("node-1")
    (suspend,) = told(decide(ask(2, AskSuspend(job="j1"))))
    assert told(decide(ask(3, AskResume(job="j1")))) == []
    assert over(decide(ask(4, AskSuspend(job="j1")))) == [(3, Result.OVERTAKEN, Reason.OVERTAKEN)]
    assert over(decide(ask(5, AskResume(job="j1")))) == [(4, Result.OVERTAKEN, Reason.OVERTAKEN)]
    effects = decide(changed(suspend))
    assert over(effects) == [(2, Result.DONE, None)]
    (resume,) = told(effects)
    assert over(decide(changed(resume))) == [(5, Result.DONE, None)]
    assert decide.machine.state.jobs["j1"].state is State.RUNNING


def test_a_gang_is_suspended_after_the_same_mini_batch_or_not_at_all() -> None:
    decide = running("node-1", "node-2")
    one, two = told(decide(ask(2, AskSuspend(job="j1"))))
    assert one.change == two.change == Suspend(step=1)
    # Both are past it: the next step lies beyond the furthest.
    decide(changed(one, Manner.UNCHANGED, step=100))
    one, two = told(decide(changed(two, Manner.UNCHANGED, step=101)))
    assert one.change == Suspend(step=103)
    # One stands, the other is past it: the first is resumed, and a later one is tried.
    decide(changed(one, step=103))
    (undo,) = told(decide(changed(two, Manner.UNCHANGED, step=105)))
    assert (undo.node, undo.change) == ("node-1", Resume())
    one, two = told(decide(changed(undo)))
    assert one.change == two.change == Suspend(step=113)
    decide(changed(one, step=113))
    assert ends(decide(changed(two, step=113))) == [(Goal.SUSPEND, Result.DONE)]
    assert decide.machine.state.jobs["j1"].state is State.SUSPENDED


def test_a_gang_that_never_agrees_goes_on() -> None:
    decide = running("node-1", "node-2")
    commands, effects = told(decide(ask(2, AskSuspend(job="j1")))), []
    for number in range(ROUNDS_MAX):
        assert len(commands) == 2, number
        decide(changed(commands[0], Manner.UNCHANGED, step=10**number))
        effects = decide(changed(commands[1], Manner.UNCHANGED, step=10**number))
        commands = told(effects)
    assert over(effects) == [(2, Result.UNDONE, Reason.NOT_TAKEN)]
    assert decide.machine.state.jobs["j1"].state is State.RUNNING


def test_a_part_that_does_not_go_on_costs_the_attempt() -> None:
    decide = running("node-1", "node-2")
    one, two = told(decide(ask(2, AskSuspend(job="j1"))))
    decide(changed(one, step=1))
    decide(changed(two, step=1))
    one, two = told(decide(ask(3, AskResume(job="j1"))))
    decide(changed(one))
    effects = decide(changed(two, Manner.UNCHANGED))
    for _ in range(RESUMES_MAX - 1):
        (again,) = told(effects)
        assert again.node == "node-2"
        effects = decide(changed(again, Manner.UNCHANGED, detail="no room"))
    assert [fact.why for fact in of(effects, JobStopping)] == [Reason.NOT_TAKEN]
    decide(exited("j1", outcome=Outcome.STOPPED))
    requeued = of(decide(exited("j1", outcome=Outcome.STOPPED, node="node-2")), JobRequeued)
    assert [(fact.why, fact.counted) for fact in requeued] == [(Reason.NOT_TAKEN, False)]


def test_the_time_limit_does_not_run_while_a_job_is_suspended() -> None:
    decide = running("node-1", time=60)

    def stopped(second: float) -> list[Reason]:
        decide(heartbeat(), second)
        return [fact.why for fact in of(decide(Tick(), second), JobStopping)]

    (command,) = told(decide(ask(2, AskSuspend(job="j1")), 20))
    decide(changed(command), 20)
    assert stopped(35) == stopped(70) == stopped(105) == []
    (command,) = told(decide(ask(3, AskResume(job="j1")), 120))
    decide(changed(command), 120)
    assert stopped(155) == []
    assert stopped(166) == [Reason.TIME_LIMIT]


def test_a_cancellation_wins_over_an_open_change() -> None:
    decide = running("node-1")
    decide(ask(2, AskSuspend(job="j1")))
    effects = decide(cancel_asked(1))
    assert ends(effects) == [(Goal.SUSPEND, Result.OVERTAKEN)]
    assert over(effects) == [(2, Result.OVERTAKEN, Reason.OVERTAKEN)]
    stops = [effect.message for effect in effects if isinstance(effect, Send)]
    assert [type(message) for message in stops] == [StopJob]


def test_the_end_of_a_job_ends_its_change() -> None:
    decide = running("node-1")
    decide(ask(2, AskSuspend(job="j1")))
    effects = decide(exited("j1", outcome=Outcome.SUCCEEDED))
    assert over(effects) == [(2, Result.OVERTAKEN, Reason.OVERTAKEN)]
    assert len(of(effects, JobEnded)) == 1


def test_who_gave_its_gpus_back_waits_for_the_very_same() -> None:
    decide = running("node-1")
    suspended(decide, release=True)
    assert decide.machine.state.away
    effects = decide(admitted(3, gpus=4))
    assert [fact.job for fact in of(effects, JobBound)] == ["j3"]
    effects = decide(ask(4, AskResume(job="j1")))
    assert told(effects) == []
    assert decide.machine.state.jobs["j1"].waits == (Reason.WAITS_FOR_ITS_GPUS, "node-1:0,1,2,3")
    effects = decide(exited("j3", outcome=Outcome.SUCCEEDED))
    (command,) = told(effects)
    assert command.change == Resume()
    assert len(of(effects, GpusRegained)) == 1
    assert over(decide(changed(command))) == [(4, Result.DONE, None)]
    # Its VC's cells cover it again.
    assert not decide.machine.state.borrowed


def test_a_suspended_job_comes_back_only_when_it_is_asked_to() -> None:
    decide = running("node-1")
    suspended(decide, release=True)
    assert not told(decide(Tick(), 100))


def preempting(can: tuple[str, ...]) -> tuple[Driver[AllocatorMachine], list[Effect]]:
    """Return an allocator in which j2 needs the GPUs of j1, and what follows from that."""
    decide = allocator(joined(), nlp=4, vision=0)
    decide(admitted(1, vc="vision", opportunistic=True, gpus=4))
    decide(started("j1"))
    decide(known("j1", can=can))
    return decide, decide(admitted(2, gpus=4))


def test_a_victim_that_can_stands_aside_and_returns_by_itself() -> None:
    decide, effects = preempting(EVERYTHING)
    (command,) = told(effects)
    assert command.change == Suspend(release=True)
    assert not of(effects, JobStopping)
    effects = decide(changed(command))
    assert [fact.job for fact in of(effects, JobBound)] == ["j2"]
    decide(started("j2"))
    effects = decide(exited("j2", outcome=Outcome.SUCCEEDED))
    (command,) = told(effects)
    assert (command.job, command.attempt, command.change) == ("j1", 1, Resume())
    assert ends(decide(changed(command))) == [(Goal.RESUME, Result.DONE)]


@pytest.mark.parametrize("manner", [Manner.FROZEN, Manner.UNCHANGED])
def test_a_victim_that_does_not_give_its_gpus_back_is_stopped(manner: Manner) -> None:
    decide, effects = preempting(EVERYTHING)
    (command,) = told(effects)
    effects = decide(changed(command, manner))
    assert [fact.why for fact in of(effects, JobStopping)] == [Reason.PREEMPTED]
    effects = decide(exited("j1", outcome=Outcome.STOPPED))
    assert [fact.job for fact in of(effects, JobBound)] == ["j2"]


def test_a_victim_that_can_only_be_stored_is_stored_and_stopped() -> None:
    decide, effects = preempting(("suspend", "checkpoint"))
    (command,) = told(effects)
    assert command.change == Checkpoint()
    assert [fact.why for fact in of(decide(changed(command)), JobStopping)] == [Reason.PREEMPTED]


def test_a_victim_that_can_nothing_is_stopped_at_once() -> None:
    _, effects = preempting(("suspend",))
    assert told(effects) == []
    assert [fact.why for fact in of(effects, JobStopping)] == [Reason.PREEMPTED]


def test_times_are_those_of_the_facts() -> None:
    decide = running("node-1")
    (command,) = told(decide(ask(2, AskSuspend(job="j1")), 20))
    (fact,) = of(decide(changed(command), 21), JobChanged)
    assert fact.at == at(21)


def test_a_clock_that_was_wrong_while_a_job_stood_makes_no_time_limit_longer() -> None:
    """It was an hour ahead when the job went on; then it was set right."""
    decide = running("node-1", time=20)
    for number, (stands, goes_on) in enumerate([(10, 3700), (130, 132)]):
        (command,) = told(decide(ask(2 + 2 * number, AskSuspend(job="j1")), stands))
        decide(changed(command), stands)
        (command,) = told(decide(ask(3 + 2 * number, AskResume(job="j1")), goes_on))
        decide(changed(command), goes_on)
        assert state(decide) is State.RUNNING
    stopped = of(decide(Tick(), 132 + 20), JobStopping)
    assert [fact.why for fact in stopped] == [Reason.TIME_LIMIT]


def offered(decide: Driver[AllocatorMachine]) -> tuple[int, ...]:
    return decide.machine.state.jobs["j1"].sizes


def test_a_gang_offers_the_sizes_that_all_its_nodes_offer_of_those_that_name_some() -> None:
    decide = running("node-1", "node-2", elastic=Elastic(min=1, max=8))
    decide(known("j1", "node-1", sizes=(1, 2, 4)))
    assert offered(decide) == (1, 2, 4), "node-2 names none: it is older"
    decide(known("j1", "node-2", sizes=(2, 4, 8)))
    assert offered(decide) == (2, 4)
    decide(known("j1", "node-1"))
    assert offered(decide) == (2, 4, 8)
    decide(known("j1", "node-1", sizes=(1, 3)))
    assert offered(decide) == (2,), "there is none, so it stays as it is"


def test_sizes_are_those_of_the_last_attempt_until_all_nodes_have_said_theirs() -> None:
    decide = allocator(joined("node-1", 4), joined("node-2", 4))
    decide(admitted(1, workers=2, gpus=4))
    for node in ("node-1", "node-2"):
        decide(started("j1", node=node))
    decide(known("j1", "node-1", sizes=(1, 2)))
    assert offered(decide) == ()
    decide(known("j1", "node-2", sizes=(2, 4)))
    assert offered(decide) == (2,)
