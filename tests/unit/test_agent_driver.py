"""The agent has the driver move an opaque job's device memory away, and puts back what fails."""

import pytest

from skep.machines.agent import (
    AgentMachine,
    EvictRun,
    FreezeRun,
    RestoreRun,
    RunEvicted,
    RunFrozen,
    RunRestored,
    RunsListed,
    RunThawed,
    ThawRun,
)
from skep.machines.agent.capabilities import KNOWN_AFTER
from skep.units import after, in_seconds
from skep.wire.commands import BindJob, Resume, Suspend
from skep.wire.node import Manner, Tier
from skep.wire.part_facts import Stand
from tests.change_kit import ONE, answer, calls, change, running, state, up
from tests.kit import Driver, at, bind, facts_of, plans

BUDGET = 1000


def opaque(
    command: BindJob | None = None, *, allowed: bool = True, budget: int = BUDGET
) -> Driver[AgentMachine]:
    """Return an agent with a job that said nothing for so long that it is opaque."""
    decide = running(command or bind(), can=None, budget=budget)
    decide.machine.changes.abilities.evicts = allowed
    (fact,) = facts_of(decide.tick(in_seconds(after(at(1), KNOWN_AFTER) - at(0))))
    assert fact.known.tier is Tier.OPAQUE
    return decide


def evicted(decide: Driver[AgentMachine], number: int = 2) -> None:
    """Suspend the job without anything on its device."""
    asked = decide(change(Suspend(release=True), number))
    assert calls(asked) == [EvictRun(ONE, (0,), BUDGET)]
    assert calls(decide(RunEvicted(ONE, 600))) == [FreezeRun(ONE)]
    done = answer(decide(RunFrozen(ONE)))
    assert (done.manner, done.released, done.moved) == (Manner.FROZEN, True, 600)


def can(decide: Driver[AgentMachine]) -> tuple[str, ...]:
    known = decide.machine.parts["j1", 1].known
    assert known is not None
    return known.known.can


def test_it_is_offered_where_it_is_allowed_for_one_process_on_one_device() -> None:
    assert can(opaque()) == ("release",)
    assert can(opaque(allowed=False)) == ()
    assert can(opaque(bind(ranks=plans((0, 1))))) == ()
    assert can(opaque(bind(ranks=plans((0,), (1,)), world=2))) == ()
    assert can(opaque(bind(world=2, nodes=2))) == ()


def test_memory_leaves_before_the_freeze_and_returns_after_the_thaw() -> None:
    decide = opaque()
    evicted(decide)
    part = decide.machine.parts["j1", 1]
    assert (part.stand, part.released, part.host_bytes) == (Stand.FROZEN, True, 600)
    assert calls(decide(change(Resume(), 3))) == [ThawRun(ONE)]
    assert calls(decide(RunThawed(ONE))) == [RestoreRun(ONE)]
    assert answer(decide(RunRestored(ONE))).manner is Manner.BOUNDARY
    assert (part.stand, part.released, part.host_bytes) == (Stand.RUNNING, False, 0)


def test_what_is_frozen_already_is_thawed_to_be_evicted() -> None:
    decide = opaque()
    assert calls(decide(change(Suspend()))) == [FreezeRun(ONE)]
    assert not answer(decide(RunFrozen(ONE))).released
    assert calls(decide(change(Suspend(release=True), 3))) == [ThawRun(ONE)]
    assert calls(decide(RunThawed(ONE))) == [EvictRun(ONE, (0,), BUDGET)]
    decide(RunEvicted(ONE, 600))
    assert answer(decide(RunFrozen(ONE))).released
    again = answer(decide(change(Suspend(release=True), 4)))
    assert (again.manner, again.released) == (Manner.FROZEN, True), "it stands so already"


def test_what_cannot_be_evicted_is_frozen_with_its_device() -> None:
    decide = opaque()
    decide(change(Suspend(release=True)))
    assert calls(decide(RunEvicted(ONE, trouble="it uses UVM"))) == [FreezeRun(ONE)]
    done = answer(decide(RunFrozen(ONE)))
    assert (done.manner, done.released, done.detail) == (Manner.FROZEN, False, "it uses UVM")
    assert state(decide)[0] is Stand.FROZEN


def test_a_full_budget_asks_nothing_of_the_driver() -> None:
    decide = opaque(budget=-1)
    assert calls(decide(change(Suspend(release=True)))) == [FreezeRun(ONE)]
    done = answer(decide(RunFrozen(ONE)))
    assert not done.released
    assert done.detail.startswith("device memory was kept")


@pytest.mark.parametrize("trouble", ["", "no memory left"])
def test_what_cannot_be_frozen_gets_its_memory_back(trouble: str) -> None:
    decide = opaque()
    decide(change(Suspend(release=True)))
    decide(RunEvicted(ONE, 600))
    assert calls(decide(RunFrozen(ONE, "no control group"))) == [ThawRun(ONE)]
    assert calls(decide(RunThawed(ONE))) == [RestoreRun(ONE)]
    done = answer(decide(RunRestored(ONE, trouble)))
    assert done.manner is Manner.UNCHANGED
    assert done.detail == "; ".join(filter(None, ("no control group", trouble)))
    assert state(decide)[0] is Stand.RUNNING


def test_what_cannot_be_restored_stays_suspended_and_released() -> None:
    decide = opaque()
    evicted(decide)
    decide(change(Resume(), 3))
    decide(RunThawed(ONE))
    assert calls(decide(RunRestored(ONE, "no memory left"))) == [FreezeRun(ONE)]
    done = answer(decide(RunFrozen(ONE)))
    assert (done.manner, done.detail) == (Manner.UNCHANGED, "no memory left")
    part = decide.machine.parts["j1", 1]
    assert (part.stand, part.released, part.host_bytes) == (Stand.FROZEN, True, 600)


@pytest.mark.parametrize("after_it", [False, True])
def test_an_agent_that_dies_meanwhile_asks_again(after_it: bool) -> None:
    decide = opaque()
    decide(change(Suspend(release=True)))
    if after_it:
        decide(RunEvicted(ONE, 600))
    decide.restart()
    decide.machine.host_budget = BUDGET
    assert calls(decide(RunsListed((up(ONE),)))) == [ThawRun(ONE)]
    assert calls(decide(RunThawed(ONE))) == [EvictRun(ONE, (0,), BUDGET)]
    decide(RunEvicted(ONE, 600))
    assert answer(decide(RunFrozen(ONE))).released
