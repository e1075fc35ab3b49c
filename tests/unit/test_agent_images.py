"""The agent stores images of the processes of jobs that store nothing themselves."""

import pytest

from skep.machines.agent import AgentMachine, DumpRun, RunDumped, RunsListed
from skep.machines.agent.capabilities import KNOWN_AFTER
from skep.units import after, in_seconds
from skep.wire import talk
from skep.wire.commands import BindJob, Checkpoint
from skep.wire.node import Manner, Tier
from skep.wire.part_facts import Stand
from tests.change_kit import ONE, answer, calls, change, running, said, state, told, up
from tests.kit import Driver, at, bind, plans

DUMP = DumpRun(ONE, "j1", 1, 0, (0,))


def observed(command: BindJob | None = None, tier: str = "observed") -> Driver[AgentMachine]:
    """Return an agent whose job says what a script of plain PyTorch does."""
    decide = running(command or bind(), can=None)
    decide.machine.changes.abilities.dumps = True
    decide(said(talk.Hello, pid=10, token=ONE))
    decide(said(talk.Can, tier=tier, can=("suspend",)))
    return decide


def can(decide: Driver[AgentMachine]) -> tuple[str, ...]:
    known = decide.machine.parts["j1", 1].known
    return () if known is None else known.known.can


def test_it_is_offered_for_one_process_tree_that_is_the_whole_job() -> None:
    assert can(observed()) == ("checkpoint", "suspend")
    assert can(observed(tier="cooperative")) == ("suspend",), "what cooperates knows better"
    assert can(observed(bind(ranks=plans((0,)), world=2, nodes=2))) == ("suspend",)
    assert can(observed(bind(image="i"))) == ("suspend",)
    assert can(observed(bind(distributed=True))) == ("suspend",)


def test_a_job_that_says_nothing_is_stored_as_well() -> None:
    decide = running(bind(), can=None)
    decide.machine.changes.abilities.dumps = True
    decide.tick(in_seconds(after(at(1), KNOWN_AFTER) - at(0)))
    known = decide.machine.parts["j1", 1].known
    assert known is not None
    assert (known.known.tier, known.known.can) == (Tier.OPAQUE, ("checkpoint",))
    assert calls(decide(change(Checkpoint()))) == [DUMP]


def test_the_processes_are_stored_wherever_they_are_and_told_nothing() -> None:
    decide = observed()
    effects = decide(change(Checkpoint()))
    assert (calls(effects), told(effects)) == ([DUMP], [])
    done = answer(decide(RunDumped(ONE, 700, 90)))
    assert (done.manner, done.moved, done.pause_ns) == (Manner.BOUNDARY, 700, 90)
    assert state(decide)[0] is Stand.RUNNING


def test_what_cannot_be_stored_runs_on_and_says_why() -> None:
    decide = observed()
    decide(change(Checkpoint()))
    effects = decide(RunDumped(ONE, trouble="the disk is full"))
    done = answer(effects)
    assert (done.manner, done.detail) == (Manner.UNCHANGED, "the disk is full")
    assert told(effects) == [], "its ranks were told nothing that is to be undone"
    assert state(decide)[0] is Stand.RUNNING


def test_an_agent_that_comes_back_stores_again() -> None:
    decide = observed()
    decide(change(Checkpoint()))
    decide.restart(5)
    decide.machine.changes.abilities.dumps = True
    assert DUMP in calls(decide(RunsListed((up(ONE),))))


@pytest.mark.parametrize("allowed", [True, False])
def test_without_the_operators_word_the_rank_is_asked(allowed: bool) -> None:
    decide = observed()
    decide.machine.changes.abilities.dumps = allowed
    effects = decide(change(Checkpoint()))
    assert bool(calls(effects)) == allowed
