"""Moving a running job: what is recorded when, what every failure leaves, and who may train."""

from __future__ import annotations

from typing import Any

import pytest

from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.settings import READY_WITHIN
from skep.machines.base import Effect, Restarted, Send, Tick
from skep.units import NS_PER_SECOND
from skep.wire.changes import AskMigrate, AskResume, AskSuspend, Goal, JobChanged, Result
from skep.wire.commands import BindJob, ChangeJob, Move, Resume, StopJob, Suspend
from skep.wire.facts import GhostGone, JobBound, JobEnded, JobStopping, JobWaits
from skep.wire.moves import JobMoved, SuccessorBound, SuccessorDropped
from skep.wire.node import Door, Manner, MemberLoaded, MemberReady, Outcome
from skep.wire.reasons import Reason
from tests.kit import T0, Driver, admitted, cancel_asked, exited, heartbeat, joined, started
from tests.unit.test_allocator_changes import ask, changed, ends, known, of, over, running, told

MOVES = ("suspend", "release", "migrate")


def commands(effects: list[Effect], kind: type) -> list[Any]:
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, kind)
    ]


def ready(bind: BindJob) -> MemberReady:
    return MemberReady(
        node=bind.node,
        identity=bind.identity,
        job=bind.job,
        attempt=bind.attempt,
        doors=(Door(rank=0, host="10.0.0.2", port=31_000),),
        at=T0,
    )


def loaded(bind: BindJob, step: int = 120) -> MemberLoaded:
    return MemberLoaded(
        node=bind.node, identity=bind.identity, job=bind.job, step=step, attempt=bind.attempt, at=T0
    )


def asked(to: str = "", can: tuple[str, ...] = MOVES) -> tuple[Driver[AllocatorMachine], Any]:
    """Return an allocator with j1 on node-1 and a successor bound to node-2, and its BindJob."""
    decide = running("node-1", can=can)
    decide(joined("node-2"))
    effects = decide(ask(2, AskMigrate(job="j1", to=to)), 10)
    (bind,) = commands(effects, BindJob)
    return decide, bind


def moving() -> tuple[Driver[AllocatorMachine], BindJob, ChangeJob]:
    """Return the same once the source was told to send its state."""
    decide, bind = asked()
    (move,) = told(decide(ready(bind), 20))
    return decide, bind, move


def test_a_job_moves_in_one_fact() -> None:
    decide, bind = asked(to="node-2")
    assert (bind.node, bind.attempt) == ("node-2", 2)
    assert len(bind.awaits) == 64
    (move,) = told(decide(ready(bind), 20))
    assert (move.node, move.attempt) == ("node-1", 1)
    assert isinstance(move.change, Move)
    assert [(target.port, target.token) for target in move.change.targets] == [
        (31_000, bind.awaits)
    ]
    # Neither of the two is enough: that the state was sent, or that it has arrived.
    assert not told(decide(changed(move), 21))
    effects = decide(loaded(bind), 22)
    (fact,) = of(effects, JobMoved)
    assert (fact.attempt, fact.source, fact.step) == (2, 1, 120)
    (resume,) = told(effects)
    assert (resume.node, resume.attempt, resume.change) == ("node-2", 2, Resume())
    (stop,) = commands(effects, StopJob)
    assert (stop.node, stop.attempt) == ("node-1", 1)
    assert over(decide(changed(resume), 23)) == [(2, Result.DONE, None)]
    job = decide.machine.state.jobs["j1"]
    assert (job.state, job.attempt, list(job.members)) == (State.RUNNING, 2, ["node-2"])
    # The source's GPUs are free once it is gone.
    effects = decide(exited("j1", outcome=Outcome.STOPPED), 24)
    assert len(of(effects, GhostGone)) == 1
    assert [fact.job for fact in of(decide(admitted(3, gpus=4)), JobBound)] == ["j3"]
    assert len(of(decide(exited("j1", attempt=2, node="node-2")), JobEnded)) == 1


def test_the_order_of_the_two_last_answers_does_not_matter() -> None:
    decide, bind, move = moving()
    assert not of(decide(loaded(bind)), JobMoved)
    assert len(of(decide(changed(move)), JobMoved)) == 1


def test_everything_is_repeated_until_it_is_answered() -> None:
    decide, bind, move = moving()
    assert told(decide(Tick(), 23)) == [move]
    again = decide(Restarted(2), 24)
    assert [one.order for one in told(again)] == [move.order]
    decide(changed(move), 25)
    (resume,) = told(decide(loaded(bind), 26))
    effects = decide(Restarted(3), 27)
    assert [one.order for one in told(effects)] == [resume.order]
    assert [one.attempt for one in commands(effects, StopJob)] == [1]


def put_back(effects: list[Effect]) -> None:
    """Assert that a successor is stopped and nothing has moved."""
    assert not of(effects, JobMoved)
    assert [fact.attempt for fact in of(effects, SuccessorDropped)] == [2]


def test_a_successor_that_ends_costs_nothing_before_the_source_stops() -> None:
    decide, _ = asked()
    effects = decide(exited("j1", attempt=2, node="node-2", outcome=Outcome.EXITED), 12)
    put_back(effects)
    assert not told(effects)
    assert over(effects) == [(2, Result.UNDONE, Reason.NOT_TAKEN)]
    assert decide.machine.state.jobs["j1"].attempt == 1
    # Its number is not used again.
    (bind,) = commands(decide(ask(3, AskMigrate(job="j1")), 13), BindJob)
    assert bind.attempt == 3


def test_what_was_asked_meanwhile_follows_when_a_move_is_given_up() -> None:
    decide, _ = asked()
    assert not told(decide(ask(3, AskSuspend(job="j1")), 11))
    effects = decide(exited("j1", attempt=2, node="node-2", outcome=Outcome.EXITED), 12)
    put_back(effects)
    (suspend,) = told(effects)
    assert (suspend.node, suspend.change) == ("node-1", Suspend())


def test_a_successor_that_ends_while_it_is_sent_to_has_the_source_go_on() -> None:
    decide, _, move = moving()
    effects = decide(exited("j1", attempt=2, node="node-2", outcome=Outcome.EXITED), 21)
    put_back(effects)
    (resume,) = told(effects)
    assert (resume.node, resume.attempt, resume.change) == ("node-1", 1, Resume())
    assert resume.order > move.order
    assert decide(changed(move), 22) == []
    assert ends(decide(changed(resume), 23)) == [(Goal.MIGRATE, Result.UNDONE)]
    assert decide.machine.state.jobs["j1"].state is State.RUNNING


def test_a_source_that_cannot_send_goes_on_and_the_successor_is_stopped() -> None:
    decide, bind, move = moving()
    effects = decide(changed(move, Manner.UNCHANGED, detail="rank 0: no way"), 21)
    put_back(effects)
    assert [one.node for one in commands(effects, StopJob)] == ["node-2"]
    assert over(effects) == [(2, Result.UNDONE, Reason.NOT_TAKEN)]
    assert decide(loaded(bind), 22) == []


def test_a_source_that_ends_takes_its_successor_with_it() -> None:
    decide, _ = asked()
    effects = decide(exited("j1"), 12)
    put_back(effects)
    assert over(effects) == [(2, Result.OVERTAKEN, Reason.OVERTAKEN)]
    assert len(of(effects, JobEnded)) == 1


def test_a_cancellation_stops_both() -> None:
    decide, _ = asked()
    effects = decide(cancel_asked(1), 12)
    put_back(effects)
    assert sorted(one.node for one in commands(effects, StopJob)) == ["node-1", "node-2"]


def test_a_successor_that_is_never_ready_is_given_up() -> None:
    decide, _ = asked()
    effects: list[Effect] = []
    for second in range(10, READY_WITHIN // NS_PER_SECOND + 40, 30):
        for node in ("node-1", "node-2"):
            decide(heartbeat(node), second)
        effects += decide(Tick(), second)
    put_back(effects)
    assert not of(effects, JobStopping)


def test_a_lost_destination_has_the_source_go_on() -> None:
    decide, _ = asked()
    effects: list[Effect] = []
    for second in range(10, 70, 10):
        decide(heartbeat("node-1"), second)
        effects += decide(Tick(), second)
    put_back(effects)
    assert not of(effects, JobStopping)
    assert decide.machine.state.jobs["j1"].state is State.RUNNING


def test_whoever_needs_the_successors_gpus_gets_them() -> None:
    decide = running("node-1", can=MOVES, opportunistic=True)
    decide(joined("node-2"))
    decide(ask(2, AskMigrate(job="j1")), 10)
    effects = decide(admitted(3, gpus=4), 11) + decide(admitted(4, gpus=4), 12)
    assert [fact.attempt for fact in of(effects, SuccessorDropped)] == [2]


@pytest.mark.parametrize("to", ["", "node-1"])
def test_without_room_elsewhere_a_move_is_refused(to: str) -> None:
    decide = running("node-1", can=MOVES)
    effects = decide(ask(2, AskMigrate(job="j1", to=to)))
    assert over(effects) == [(2, Result.REFUSED, Reason.NO_ROOM)]


def test_what_a_successor_can_do_counts_once_it_is_the_job() -> None:
    decide, bind, move = moving()
    decide(known("j1", "node-2", can=("suspend",)), 20)  # Attempt 1 was never there.
    assert decide.machine.state.jobs["j1"].can == MOVES
    decide(started("j1", attempt=2, node="node-2"))
    decide(changed(move), 21)
    (resume,) = told(decide(loaded(bind), 22))
    (fact,) = of(decide(changed(resume), 23), JobChanged)
    assert fact.attempt == 2


def test_secrets_differ_with_the_key_of_the_process() -> None:
    secrets = set()
    for key in (b"one", b"two"):
        decide = running("node-1", can=MOVES)
        decide.machine.settings.key = key
        decide(joined("node-2"))
        (bound,) = of(decide(ask(2, AskMigrate(job="j1"))), SuccessorBound)
        secrets.add(bound.secret)
    assert len(secrets) == 2


# --- gangs on several nodes --------------------------------------------------------------------


def rank_door(bind: BindJob) -> MemberReady:
    rank = bind.ranks[0].rank
    door = Door(rank=rank, host="10.0.0.2", port=31_000 + rank)
    return MemberReady(
        node=bind.node,
        identity=bind.identity,
        job=bind.job,
        attempt=bind.attempt,
        doors=(door,),
        at=T0,
    )


def gang(to: str = "") -> tuple[Driver[AllocatorMachine], list[BindJob]]:
    """Return an allocator with a gang on two nodes, and the BindJobs of its successor on two."""
    decide = running("node-1", "node-2", can=MOVES)
    for name in ("node-3", "node-4"):
        decide(joined(name))
    return decide, commands(decide(ask(2, AskMigrate(job="j1", to=to)), 10), BindJob)


def standing(decide: Driver[AllocatorMachine], binds: list[BindJob]) -> list[ChangeJob]:
    """Return the orders to send, once all of the gang stands after the second step named."""
    decide(rank_door(binds[0]), 20)
    first = told(decide(rank_door(binds[1]), 20))
    assert {(one.node, one.change) for one in first} == {
        ("node-1", Suspend(step=1)),
        ("node-2", Suspend(step=1)),
    }
    decide(changed(first[0], step=1), 21)
    (back,) = told(decide(changed(first[1], Manner.UNCHANGED, step=9), 21))
    assert (back.node, back.change) == (first[0].node, Resume())
    again = told(decide(changed(back), 22))
    assert {one.change for one in again} == {Suspend(step=11)}
    assert not told(decide(changed(again[0], step=11), 23))
    sent = told(decide(changed(again[1], step=11), 23))
    assert all(isinstance(one.change, Move) for one in sent)
    return sent


def test_a_gang_on_several_nodes_stands_after_one_mini_batch_before_any_state_is_sent() -> None:
    decide, binds = gang()
    assert [bind.node for bind in binds] == ["node-3", "node-4"]
    sent = standing(decide, binds)
    assert [one.node for one in sent] == ["node-1", "node-2"]
    effects: list[Effect] = []
    for event in (changed(sent[0]), loaded(binds[0]), changed(sent[1])):
        effects += decide(event, 24)
    assert not of(effects, JobMoved), "a part of the successor has nothing yet"
    effects = decide(loaded(binds[1]), 25)
    assert len(of(effects, JobMoved)) == 1
    assert [(one.node, one.change) for one in told(effects)] == [
        ("node-3", Resume()),
        ("node-4", Resume()),
    ]
    assert [one.node for one in commands(effects, StopJob)] == ["node-1", "node-2"]
    for resume in told(effects):
        effects = decide(changed(resume), 26)
    assert over(effects) == [(2, Result.DONE, None)]


def test_all_of_a_gang_goes_on_if_one_part_cannot_send() -> None:
    decide, binds = gang()
    sent = standing(decide, binds)
    decide(changed(sent[0]), 24)
    decide(loaded(binds[0]), 24)
    effects = decide(changed(sent[1], Manner.UNCHANGED, detail="no way"), 24)
    put_back(effects)
    back = told(effects)
    # Also the one that refused: it stood before it was asked.
    assert [(one.node, one.change) for one in back] == [("node-1", Resume()), ("node-2", Resume())]
    for one in back:
        effects = decide(changed(one), 25)
    assert over(effects) == [(2, Result.UNDONE, Reason.NOT_TAKEN)]
    assert decide.machine.state.jobs["j1"].state is State.RUNNING


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_successor_that_ends_while_a_gang_comes_to_stand_has_all_of_it_go_on(rounds: int) -> None:
    decide, binds = gang()
    decide(rank_door(binds[0]), 20)
    first = told(decide(rank_door(binds[1]), 20))
    open_ = first
    if rounds:  # It ends in the middle of having those go on that stopped in vain.
        decide(changed(first[0], step=1), 21)
        open_ = told(decide(changed(first[1], Manner.UNCHANGED, step=9), 21))
    effects = decide(exited("j1", attempt=2, node="node-3", outcome=Outcome.EXITED), 22)
    put_back(effects)
    back = told(effects)
    assert [one.node for one in back] == [one.node for one in open_]
    for one in back:
        effects = decide(changed(one), 23)
    assert over(effects) == [(2, Result.UNDONE, Reason.NOT_TAKEN)]


def test_a_part_that_comes_to_no_boundary_ends_the_move() -> None:
    decide, binds = gang()
    decide(rank_door(binds[0]), 20)
    first = told(decide(rank_door(binds[1]), 20))
    decide(changed(first[0], step=1), 21)
    effects = decide(changed(first[1], Manner.FROZEN), 51)
    put_back(effects)
    assert {one.change for one in told(effects)} == {Resume()}


def test_a_gang_moves_to_the_nodes_that_are_named() -> None:
    decide, binds = gang("node-4, node-3")
    assert sorted(bind.node for bind in binds) == ["node-3", "node-4"]
    decide, binds = gang("node-1,node-3")
    assert binds == []  # Its own GPUs on node-1 are not idle.
    assert not decide.machine.state.jobs["j1"].asked


# --- suspended jobs -----------------------------------------------------------------------------


def suspended(*, release: bool) -> tuple[Driver[AllocatorMachine], BindJob, ChangeJob]:
    """Return an allocator that moves a job which a tenant suspended, and its order to send."""
    decide = running("node-1", can=MOVES)
    decide(joined("node-2"))
    (suspend,) = told(decide(ask(2, AskSuspend(job="j1", release=release)), 10))
    decide(changed(suspend, released=release), 11)
    (bind,) = commands(decide(ask(3, AskMigrate(job="j1")), 12), BindJob)
    (move,) = told(decide(ready(bind), 13))
    assert (move.node, move.attempt, type(move.change)) == ("node-1", 1, Move)
    return decide, bind, move


@pytest.mark.parametrize("release", [False, True])
def test_a_suspended_job_moves_and_is_suspended_there(release: bool) -> None:
    decide, bind, move = suspended(release=release)
    decide(changed(move), 14)
    effects = decide(loaded(bind), 15)
    assert len(of(effects, JobMoved)) == 1
    (stay,) = told(effects)
    assert (stay.node, stay.attempt) == ("node-2", 2)
    assert stay.change == Suspend(release=release)
    effects = decide(changed(stay, released=release), 16)
    assert over(effects) == [(3, Result.DONE, None)]
    job = decide.machine.state.jobs["j1"]
    assert (job.state, job.released, job.attempt) == (State.SUSPENDED, release, 2)
    decide(exited("j1", outcome=Outcome.STOPPED), 17)
    (resume,) = told(decide(ask(4, AskResume(job="j1")), 18))
    assert (resume.node, resume.change) == ("node-2", Resume())
    assert over(decide(changed(resume), 19)) == [(4, Result.DONE, None)]


@pytest.mark.parametrize("release", [False, True])
def test_a_suspended_job_that_could_not_move_stands_where_it_was(release: bool) -> None:
    decide, _, _ = suspended(release=release)
    effects = decide(exited("j1", attempt=2, node="node-2", outcome=Outcome.EXITED), 14)
    put_back(effects)
    (stay,) = told(effects)
    assert (stay.node, stay.attempt, stay.change) == ("node-1", 1, Suspend())
    effects = decide(changed(stay), 15)
    assert over(effects) == [(3, Result.UNDONE, Reason.NOT_TAKEN)]
    job = decide.machine.state.jobs["j1"]
    assert (job.state, job.released) == (State.SUSPENDED, release)


def test_a_job_without_gpus_waits_for_some_elsewhere() -> None:
    decide = running("node-1", can=MOVES)
    (suspend,) = told(decide(ask(2, AskSuspend(job="j1", release=True)), 10))
    decide(changed(suspend, released=True), 11)
    effects = decide(ask(3, AskMigrate(job="j1", to="")), 12)
    assert not over(effects)
    (waits,) = of(effects, JobWaits)
    assert waits.why is Reason.WAITS_FOR_GPUS
    (bind,) = commands(decide(joined("node-2"), 13), BindJob)
    assert (bind.node, bind.attempt) == ("node-2", 2)


def test_a_gang_without_gpus_may_move_in_part_to_some_of_its_own() -> None:
    decide = running("node-1", "node-2", can=MOVES)
    commands_ = told(decide(ask(2, AskSuspend(job="j1", release=True)), 10))
    for one in commands_:
        decide(changed(one, step=1, released=True), 11)
    assert decide.machine.state.jobs["j1"].released
    decide(joined("node-3"), 12)
    binds = commands(decide(ask(3, AskMigrate(job="j1", to="node-1,node-3")), 12), BindJob)
    assert sorted(bind.node for bind in binds) == ["node-1", "node-3"]
    decide(rank_door(binds[0]), 13)
    sent = told(decide(rank_door(binds[1]), 13))
    assert [one.node for one in sent] == ["node-1", "node-2"]
    effects: list[Effect] = []
    for event in (changed(sent[0]), loaded(binds[0]), changed(sent[1]), loaded(binds[1])):
        effects = decide(event, 14)
    assert len(of(effects, JobMoved)) == 1
    assert sorted(one.node for one in commands(effects, StopJob)) == ["node-1", "node-2"]


def test_a_job_that_only_made_room_goes_on_where_it_moved() -> None:
    decide = running("node-1", can=MOVES, opportunistic=True)
    (suspend,) = told(decide(admitted(3, gpus=4), 10))
    decide(changed(suspend, released=True), 11)
    decide(started("j3", node="node-1"), 12)
    decide(joined("node-2"), 12)
    (bind,) = commands(decide(ask(4, AskMigrate(job="j1")), 13), BindJob)
    (move,) = told(decide(ready(bind), 14))
    decide(changed(move), 15)
    (resume,) = told(decide(loaded(bind), 16))
    assert (resume.node, resume.change) == ("node-2", Resume())
    assert over(decide(changed(resume), 17)) == [(4, Result.DONE, None)]
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
