"""Changes that meet one another, ends of ranks, restarts of the agent; gangs of other sizes."""

from typing import Any

import pytest

from skep.machines.agent import (
    AgentMachine,
    FreezeRun,
    PublishEvent,
    RankStats,
    RunFrozen,
    RunsListed,
    RunThawed,
    StartRank,
    StopRun,
    ThawRun,
)
from skep.machines.agent.change_progress import common_step
from skep.machines.base import Call, Effect, Record
from skep.units import Instant
from skep.wire import talk
from skep.wire.commands import Resize, Resume, Suspend
from skep.wire.facts import RankDown
from skep.wire.node import Manner, MemberChanged, MemberExited, Outcome
from skep.wire.part_facts import ChangeTried, RankJoins
from skep.wire.reports import RankProgress
from skep.wire.runs import RunExited
from tests.change_kit import (
    GANG,
    MOVE,
    ONE,
    RESUME,
    STOP,
    TWO,
    UNDO,
    WHO,
    WORK,
    all_say,
    answer,
    both,
    calls,
    change,
    order,
    running,
    said,
    suspended,
    told,
    up,
)
from tests.kit import Driver, agent, at, bind, facts_of, others, plans, stop

# --- resize --------------------------------------------------------------------------------------

GROWN = Resize(
    generation=1, world=3, ranks=plans((0,), (1,), (2,)), master_address="m", master_port=7
)
SHRUNK = Resize(generation=2, world=1, ranks=plans((0,)), master_address="m", master_port=8)
THREE = "j1.1.2"


def published(effects: list[Effect]) -> list[Any]:
    return [
        one.command.message
        for one in others(effects)
        if isinstance(one, Call) and isinstance(one.command, PublishEvent)
    ]


def grown(decide: Driver[AgentMachine]) -> MemberChanged:
    effects = decide(change(GROWN))
    assert RankJoins(token=THREE, plan=GROWN.ranks[2]) in facts_of(effects)
    (start,) = calls(effects)
    assert isinstance(start, StartRank)
    assert (start.token, start.command.world, start.command.awaits) == (THREE, 3, "generation-1")
    decide(up(THREE))
    asked = told(decide(said(talk.Ready, 2, port=9)))
    assert [(one.rank, one.leaves, one.world) for one in asked] == [  # type: ignore[union-attr]
        (0, False, 3),
        (1, False, 3),
        (2, False, 3),
    ]
    effects = []
    for rank in range(3):
        number = order(decide.machine.serial, WORK)
        effects = decide(said(talk.Rescaled, rank, order=number, generation=1, step=4))
    return answer(effects)


def test_a_gang_on_parameter_servers_meets_nowhere() -> None:
    decide = running(steps=3)
    where = decide.machine.joined.address
    wish = Resize(
        generation=1,
        world=3,
        ranks=plans((0,), (1,), (2,)),
        master_address=where,
        master_port=7,
        servers=4,
    )
    (start,) = calls(decide(change(wish)))  # No place is opened for it.
    assert isinstance(start, StartRank)
    decide(up(THREE))
    asked = told(decide(said(talk.Ready, 2, port=0)))
    assert [one.servers for one in asked] == [4, 4, 4]  # type: ignore[union-attr]


def test_a_gang_grows_and_shrinks() -> None:
    decide = running(steps=3)
    assert grown(decide).manner is Manner.BOUNDARY
    part = decide.machine.parts["j1", 1]
    assert (list(part.ranks), part.command and part.command.world) == ([ONE, TWO, THREE], 3)
    asked = told(decide(change(SHRUNK, 3)))
    assert [one.leaves for one in asked] == [False, True, True]  # type: ignore[union-attr]
    number = order(decide.machine.serial, WORK)
    decide(said(talk.Rescaled, 0, order=number, step=9))
    decide(said(talk.Rescaled, 1, order=number, step=9))
    decide(RankStats("j1", 1, RankProgress(rank=2, steps=1, step_ns=10**9, last_step_at=at(1))))
    (fact,) = facts_of(decide(RunExited(THREE, 0, at(2))))[1:]
    assert fact.changed.manner is Manner.BOUNDARY
    assert others(decide(change(SHRUNK, 3))) == [], "told once the leavers' GPUs are free"
    assert calls(decide.tick(5.9)) == []
    assert StopRun(TWO, 0.0) in calls(decide.tick(6.0))
    effects = decide(RunExited(TWO, -9, at(41), asked=True))
    assert facts_of(effects) == [RankDown(token=TWO, code=-9, stopped=True)]
    assert published(effects) == [fact.changed]
    assert list(part.ranks) == [ONE]
    assert list(decide.machine.progress["j1", 1]) == [0], "nobody waits for who has left"
    (over,) = facts_of(decide(RunExited(ONE, 0, at(42))))[1:]
    assert over.exited.outcome is Outcome.SUCCEEDED


def test_a_newcomer_that_dies_harms_nobody() -> None:
    decide = running()
    decide(change(GROWN))
    decide(up(THREE))
    effects = decide(RunExited(THREE, 1, at(2)))
    assert not [fact for fact in facts_of(effects) if isinstance(fact, MemberExited)]
    decide(said(talk.Failed, 0, order=order(1, UNDO), what="resume"))
    done = answer(decide(said(talk.Failed, 1, order=order(1, UNDO), what="resume")))
    assert done.manner is Manner.UNCHANGED
    part = decide.machine.parts["j1", 1]
    assert (list(part.ranks), part.grace_s) == ([ONE, TWO], None)


def test_what_failed_is_told_once_the_newcomers_are_gone() -> None:
    decide = running()
    decide(change(GROWN))
    decide(up(THREE))
    decide(said(talk.Ready, 2, port=9))
    number = order(decide.machine.serial, WORK)
    effects = decide(said(talk.Failed, 2, order=number, what="rescale", error="no"))
    assert StopRun(THREE, 0.0) in calls(effects)
    undo = order(decide.machine.serial, UNDO)
    for rank in range(3):
        effects = decide(said(talk.Failed, rank, order=undo, what="resume"))
    assert published(effects) == []
    again = published(decide.restart(3))
    assert not any(isinstance(one, MemberChanged) for one in again)
    (done,) = published(decide(RunExited(THREE, -9, at(4), asked=True)))
    assert (done.manner, done.detail) == (Manner.UNCHANGED, "rank 2: no")


def test_a_gang_of_which_a_rank_has_ended_keeps_its_size() -> None:
    decide = running()
    decide(RunExited(TWO, 0, at(2)))
    done = answer(decide(change(GROWN)))
    assert (done.manner, done.detail) == (Manner.UNCHANGED, "rank 1 has ended")


def test_newcomers_are_ended_when_their_gang_has() -> None:
    decide = running()
    decide(change(GROWN))
    decide(up(THREE))
    decide(RunExited(ONE, 0, at(2)))
    effects = decide(RunExited(TWO, 0, at(2)))
    assert calls(effects)[0] == StopRun(THREE, 0.0)
    effects = decide(RunExited(THREE, -9, at(3), asked=True))
    assert published(effects)[-1].outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("heard", [0, 1, 2])
@pytest.mark.parametrize("begun", [False, True])
def test_newcomers_of_a_gang_that_ended_while_the_agent_was_away_end(
    heard: int, begun: bool
) -> None:
    """`heard`: the ends that the agent hears of before it is told what runs."""
    decide = running()
    decide(change(GROWN))
    decide.restart(3)
    ends = [RunExited(token, 0, at(3)) for token in (ONE, TWO)]
    for end in ends[:heard]:
        decide(end)
    effects = decide(RunsListed((*ends[heard:], *((up(THREE),) if begun else ()))))
    assert not any(isinstance(one, StartRank) for one in calls(effects))
    if begun:
        assert StopRun(THREE, 0.0) in calls(effects)
        effects = decide(RunExited(THREE, -9, at(4), asked=True))
    assert published(effects)[-1].outcome is Outcome.SUCCEEDED


def restarted_while_it_grew() -> Driver[AgentMachine]:
    """Return an agent that came back when a newcomer had been started, all ranks connected."""
    decide = running()
    decide(change(GROWN))
    decide(up(THREE))
    decide.restart(3)
    decide(RunsListed(tuple(up(token) for token in (ONE, TWO, THREE))))
    for rank, token in enumerate((ONE, TWO, THREE)):
        decide(said(talk.Hello, rank, pid=10, token=token))
    for token in (ONE, TWO, THREE):
        decide(RunThawed(token))
    undo = order(decide.machine.serial, UNDO)
    effects: list[Effect] = []
    for rank in range(3):
        effects = decide(said(talk.Failed, rank, order=undo, what="resume"))
    assert told(effects) == [], "it may still make ready, and the others would stand meanwhile"
    return decide


def test_after_a_restart_a_newcomer_that_makes_ready_is_waited_for() -> None:
    decide = restarted_while_it_grew()
    asked = told(decide(said(talk.Ready, 2, port=9)))
    assert [one.rank for one in asked] == [0, 1, 2]


def test_after_a_restart_who_trains_has_joined_and_need_not_be_ready() -> None:
    decide = restarted_while_it_grew()
    for steps in (0, 4):
        stats = RankProgress(rank=2, steps=steps, step_ns=10**9, last_step_at=at(3))
        asked = told(decide(RankStats("j1", 1, stats)))
        assert [one.rank for one in asked] == ([0, 1, 2] if steps else [])
    number = order(decide.machine.serial, WORK)
    effects: list[Effect] = []
    for rank in range(3):
        effects = decide(said(talk.Rescaled, rank, order=number, generation=1, step=4))
    assert answer(effects).manner is Manner.BOUNDARY


def test_a_gang_that_changed_by_half_is_ended() -> None:
    decide = running()
    decide(change(SHRUNK))
    decide(said(talk.Rescaled, 0, order=order(1, WORK), step=9))
    effects = decide(said(talk.Failed, 1, order=order(1, WORK), what="rescale", error="no group"))
    done = answer(effects)
    assert done.detail == "some ranks changed and some did not: rank 1: no group"
    assert calls(effects) == [StopRun(ONE, 5.0), StopRun(TWO, 5.0)]
    decide(RunExited(ONE, -15, at(2), asked=True))
    over = facts_of(decide(RunExited(TWO, -15, at(2), asked=True)))[-1]
    assert (over.exited.outcome, over.exited.detail) == (Outcome.EXITED, done.detail)


# --- orders, ends and restarts -------------------------------------------------------------------


def test_a_change_is_taken_once_and_its_answer_repeated() -> None:
    decide = running()
    done = suspended(decide)
    repeated = decide(change(Suspend()))
    assert facts_of(repeated) == []
    (publish,) = others(repeated)
    assert isinstance(publish, Call)
    assert publish.command.message == done
    assert decide(change(Resume(), 1)) == []
    assert decide(change(Resume(), 3, epoch=0)) == []
    assert decide(change(Resume(), 3, job="j9")) == []


def test_a_later_change_takes_the_place_of_one_under_way() -> None:
    decide = running()
    decide(change(Suspend()))
    effects = decide(change(Resume(), 3))
    assert calls(effects) == [ThawRun(ONE), ThawRun(TWO)]
    done = both(decide, RunThawed)
    assert [one.order for one in told(done)] == [order(2, RESUME)] * 2
    assert answer(done).order == 3


def test_the_end_of_a_rank_ends_the_waiting_for_it() -> None:
    decide = running()
    decide(change(Suspend()))
    decide(said(talk.Suspended, 0, order=order(1, STOP), step=2))
    effects = decide(RunExited(TWO, 0, at(2)))
    assert FreezeRun(ONE) in calls(effects)
    assert answer(decide(RunFrozen(ONE))).manner is Manner.BOUNDARY


def test_a_stop_ends_a_suspended_part() -> None:
    decide = running()
    suspended(decide)
    assert calls(decide(stop(order=3))) == [StopRun(ONE, 10.0), StopRun(TWO, 10.0)]
    assert decide(change(Resume(), 4)) == []


def test_leftovers_are_named_in_the_end() -> None:
    decide = running(bind())
    effects = decide(RunExited(ONE, 0, at(2), leftovers=1, left=("77: sleep 9",)))
    assert facts_of(effects)[-1].exited.leftovers == ("77: sleep 9",)


def test_a_suspended_part_stays_so_when_the_agent_returns() -> None:
    decide = running()
    done = suspended(decide)
    effects = decide.restart(2)
    assert done in [
        one.command.message
        for one in others(effects)
        if isinstance(one, Call) and isinstance(one.command, PublishEvent)
    ]
    assert calls(decide(RunsListed((up(ONE, frozen=True), up(TWO, frozen=True))))) == []
    assert told(decide(said(talk.Hello, 0, token=ONE))) == []
    # Whoever thawed it meanwhile was not asked to.
    decide.restart(3)
    thawed = calls(decide(RunsListed((up(ONE), up(TWO, frozen=True)))))
    assert thawed == [FreezeRun(ONE)]


def test_who_was_frozen_when_the_agent_returned_is_asked_how_it_stands_before_it_is_told_more() -> (
    None
):
    """One of them stands by its own word: told to share before it went on, it would stand on."""
    decide = running()
    decide(change(Suspend(), deadline_ms=2000))
    decide(said(talk.Suspended, 0, order=order(1, STOP), step=2))
    decide.tick(3)
    assert answer(both(decide, RunFrozen)).manner is Manner.FROZEN
    decide.restart(4)
    decide(RunsListed((up(ONE, frozen=True), up(TWO, frozen=True))))
    decide(change(Resume(), 3))
    resume = both(decide, RunThawed)
    assert facts_of(resume) == []
    asked = told(resume)
    assert [type(one) for one in asked] == [talk.ResumeRank] * 2
    assert told(decide(said(talk.Hello, 0, token=ONE))) == [asked[0]]
    assert answer(all_say(decide, talk.Resumed, order=asked[0].order)).manner is Manner.BOUNDARY


def test_a_change_under_way_is_tried_anew_when_the_agent_returns() -> None:
    decide = running()
    decide(change(Suspend()))
    decide.restart(2)
    effects = decide(RunsListed((up(ONE, frozen=True), up(TWO))))
    assert facts_of(effects) == [ChangeTried(**WHO, serial=2)]
    assert calls(effects) == [ThawRun(ONE), ThawRun(TWO)]
    undo = told(both(decide, RunThawed))
    assert [one.order for one in undo] == [order(2, UNDO)] * 2
    for rank in range(2):
        assert told(decide(said(talk.Hello, rank, token=f"j1.1.{rank}"))) == [undo[rank]]
    decide(said(talk.Failed, 0, order=order(2, UNDO), what="resume"))
    asked = told(decide(said(talk.Resumed, 1, order=order(2, UNDO))))
    assert [type(one) for one in asked] == [talk.SuspendRank] * 2


def test_a_move_under_way_is_undone_when_the_agent_returns() -> None:
    decide = running()
    decide(change(MOVE))
    decide.restart(2)
    effects = decide(RunsListed((up(ONE), up(TWO))))
    assert [type(one) for one in told(effects)] == [talk.ResumeRank] * 2
    done = answer(all_say(decide, talk.Resumed, order=order(2, UNDO), step=2))
    assert (done.manner, done.detail) == (Manner.UNCHANGED, "the agent restarted during the move")


def test_a_tree_left_frozen_by_a_crash_goes_on() -> None:
    decide = running()
    decide.restart(2)
    assert calls(decide(RunsListed((up(ONE, frozen=True), up(TWO))))) == [ThawRun(ONE)]


def test_the_common_step_lies_ahead_of_the_furthest() -> None:
    slow = RankProgress(rank=0, steps=10, step_ns=10**9, last_step_at=Instant(0))
    fast = RankProgress(rank=1, steps=10, step_ns=10**7, last_step_at=at(0))
    assert common_step([slow], 1, at(5)) == 12
    assert common_step([slow, fast], 1, at(1)) == 10 + 100 + 2 + 10
    assert common_step([slow, fast], 2, at(1)) == 10 + 100 + 4 * 12
    assert common_step([], 1, at(1)) == 2
    assert common_step([fast], 1, at(1), 7) == 7


def test_a_change_before_the_part_runs_waits() -> None:
    decide = agent()
    decide(GANG)
    assert decide(change(Suspend())) == []
    assert not [one for one in decide.facts if isinstance(one, Record)]
