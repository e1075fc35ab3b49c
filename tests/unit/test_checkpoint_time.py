"""A job is stored as often as its spec says, and goes on."""

from typing import Any

import pytest

from skep.machines.agent import AgentMachine, RankStats
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.changes import making_room
from skep.machines.allocator.timers import YieldDeadline
from skep.units import seconds
from skep.wire.changes import AskCheckpoint, AskResume, AskSuspend, Goal, JobChanging
from skep.wire.commands import Checkpoint
from skep.wire.node import Manner
from skep.wire.parse import parse_tree
from skep.wire.reasons import Reason
from skep.wire.reports import RankProgress
from tests.change_kit import answer, calls, change
from tests.change_kit import running as agent
from tests.change_kit import told as agent_told
from tests.kit import Driver, at, bind, heartbeat, plans
from tests.unit.test_allocator_changes import ask, changed, ends, of, running, told
from tests.unit.test_hung_jobs import said


def stored(decide: Driver[AllocatorMachine], second: float) -> list[Any]:
    """Return what stores jobs by their time in a tick at a second."""
    for node in decide.machine.state.nodes:
        decide(heartbeat(node), second)
    begun = of(decide.tick(second), JobChanging)
    return [fact for fact in begun if fact.why is Reason.CHECKPOINT_DUE]


def due() -> Driver[AllocatorMachine]:
    """Return an allocator that runs j1 from second 5 on, and is to store it every 60 s."""
    return running("node-1", checkpoint_every=60)


def test_it_is_stored_again_and_again_and_goes_on() -> None:
    decide = due()
    assert stored(decide, 40) == []
    decide(heartbeat(), 59)
    effects = decide.tick(65)
    (command,) = told(effects)
    (fact,) = of(effects, JobChanging)
    assert (fact.goal, fact.why, fact.detail) == (
        Goal.CHECKPOINT,
        Reason.CHECKPOINT_DUE,
        "every 60 s",
    )
    assert command.change == Checkpoint(trains=True)
    assert ends(decide(changed(command), 66)) == [(Goal.CHECKPOINT, "done")]
    assert decide.machine.state.jobs["j1"].change is None
    assert stored(decide, 120) == []
    assert len(stored(decide, 125)) == 1


def test_it_is_looked_at_soon_again_where_something_else_is_under_way() -> None:
    decide = due()
    (command,) = told(decide(ask(2, AskCheckpoint(job="j1")), 50))
    assert stored(decide, 65) == []
    decide(changed(command), 66)
    assert stored(decide, 74) == []
    assert len(stored(decide, 75)) == 1


def test_one_that_is_suspended_is_stored_once_it_goes_on() -> None:
    decide = due()
    (command,) = told(decide(ask(2, AskSuspend(job="j1")), 20))
    decide(changed(command), 20)
    assert stored(decide, 63) == stored(decide, 200) == []
    (command,) = told(decide(ask(3, AskResume(job="j1")), 210))
    decide(changed(command), 210)
    assert stored(decide, 260) == []
    assert len(stored(decide, 271)) == 1


def test_a_new_allocator_begins_to_count_anew() -> None:
    decide = due()
    decide.restart(50)
    assert stored(decide, 105) == []
    assert len(stored(decide, 112)) == 1


@pytest.mark.parametrize("every", [59, "30s", "soon", 31_536_001, True])
def test_a_time_that_cannot_be_is_refused(every: object) -> None:
    tree = {"name": "a", "vc": "lab", "command": "true", "checkpoint_every": every}
    problems: Any = parse_tree(tree)
    assert [each.path for each in problems] == ["$.checkpoint_every"]


def test_text_is_read_as_seconds() -> None:
    tree = {"name": "a", "vc": "lab", "command": "true", "checkpoint_every": "5m"}
    spec: Any = parse_tree(tree)
    assert spec.checkpoint_every == 300


def test_a_victim_that_is_being_stored_makes_room_alive_once_it_is() -> None:
    decide = due()
    decide(heartbeat(), 59)
    (command,) = told(decide.tick(65))
    tx, job = decide.machine.tx, decide.machine.state.jobs["j1"]
    before = len(tx.effects)
    assert making_room.give_way(tx, job, at(66), "for j2", memory=False)
    assert len(tx.effects) == before, "it is not stopped in the middle of it"
    assert YieldDeadline("j1", 1) in tx.soft.timers.due
    assert ends(decide(changed(command), 67)) == [(Goal.CHECKPOINT, "done")]


STEPS = RankProgress(rank=0, steps=9, step_ns=10**9, last_step_at=at(10))


def test_what_may_hang_is_not_stored_by_time_and_still_counts_as_hung() -> None:
    decide: Driver[AgentMachine] = agent(bind(ranks=plans((0,)), hung_s=900), can=("checkpoint",))
    decide(RankStats("j1", 1, STEPS))
    decide.tick(599)
    refused = answer(decide(change(Checkpoint(trains=True))))
    assert (refused.manner, refused.detail) == (
        Manner.UNCHANGED,
        "it has made no mini-batch for 589 s: what was stored before stays",
    )
    assert said(decide.tick(909)) == [()]
    ((part,),) = said(decide.tick(910))
    assert part.silent_ns == seconds(900)
    # A person may want it all the same.
    assert calls(decide(change(Checkpoint(), order=3))) == []


def test_what_trains_is_stored_by_time() -> None:
    decide: Driver[AgentMachine] = agent(bind(ranks=plans((0,))), can=("checkpoint",))
    decide(RankStats("j1", 1, STEPS))
    decide.tick(15)
    assert agent_told(decide(change(Checkpoint(trains=True)))) != []
