"""Moving a running job: what is recorded when, what every failure leaves, and who may train."""

from __future__ import annotations

from typing import Any

import pytest

from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.dispatch import READY_WITHIN
from skep.machines.allocator.jobs import State
from skep.machines.base import Effect, Restarted, Send, Tick
from skep.units import NS_PER_SECOND
from skep.wire.changes import AskMigrate, Goal, JobChanged, Result
from skep.wire.commands import BindJob, ChangeJob, Move, Resume, StopJob
from skep.wire.facts import GhostGone, JobBound, JobEnded, JobStopping
from skep.wire.moves import JobMoved, SuccessorBound, SuccessorDropped
from skep.wire.node import Door, Manner, MemberLoaded, MemberReady, Outcome
from skep.wire.reasons import Reason
from tests.kit import T0, Driver, admitted, cancel_asked, exited, heartbeat, joined, started
from tests.unit.test_allocator_changes import ask, changed, ends, known, of, over, running, told

MOVES = ("suspend", "release", "migrate")


def commands(effects: list[Effect], kind: type) -> list[Any]:
    return [effect.message for effect in effects
            if isinstance(effect, Send) and isinstance(effect.message, kind)]  # fmt: skip


def ready(bind: BindJob) -> MemberReady:
    return MemberReady(node=bind.node, identity=bind.identity, job=bind.job, attempt=bind.attempt,
                       doors=(Door(rank=0, host="10.0.0.2", port=31_000),), at=T0)  # fmt: skip


def loaded(bind: BindJob, step: int = 120) -> MemberLoaded:
    return MemberLoaded(node=bind.node, identity=bind.identity, job=bind.job, step=step,
                        attempt=bind.attempt, at=T0)  # fmt: skip


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
        (31_000, bind.awaits)]  # fmt: skip
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
    job = decide.machine.jobs["j1"]
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
    assert decide.machine.jobs["j1"].attempt == 1
    # Its number is not used again.
    (bind,) = commands(decide(ask(3, AskMigrate(job="j1")), 13), BindJob)
    assert bind.attempt == 3


def test_a_successor_that_ends_while_it_is_sent_to_has_the_source_go_on() -> None:
    decide, _, move = moving()
    effects = decide(exited("j1", attempt=2, node="node-2", outcome=Outcome.EXITED), 21)
    put_back(effects)
    (resume,) = told(effects)
    assert (resume.node, resume.attempt, resume.change) == ("node-1", 1, Resume())
    assert resume.order > move.order
    assert decide(changed(move), 22) == []
    assert ends(decide(changed(resume), 23)) == [(Goal.MIGRATE, Result.UNDONE)]
    assert decide.machine.jobs["j1"].state is State.RUNNING


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
    assert decide.machine.jobs["j1"].state is State.RUNNING


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
    assert decide.machine.jobs["j1"].can == MOVES
    decide(started("j1", attempt=2, node="node-2"))
    decide(changed(move), 21)
    (resume,) = told(decide(loaded(bind), 22))
    (fact,) = of(decide(changed(resume), 23), JobChanged)
    assert fact.attempt == 2


def test_secrets_differ_with_the_key_of_the_process() -> None:
    secrets = set()
    for key in (b"one", b"two"):
        decide = running("node-1", can=MOVES)
        decide.machine.key = key
        decide(joined("node-2"))
        (bound,) = of(decide(ask(2, AskMigrate(job="j1"))), SuccessorBound)
        secrets.add(bound.secret)
    assert len(secrets) == 2
