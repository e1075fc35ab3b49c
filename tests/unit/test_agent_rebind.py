"""The agent has suspended parts go on with other devices of its node, or says why they cannot."""

import pytest

from skep.machines.agent import AgentMachine, FreezeRun, RunFrozen, RunsListed, RunThawed
from skep.machines.base import Effect, Tick
from skep.wire import talk
from skep.wire.commands import Hold, Resume
from skep.wire.node import Manner, MemberChanged
from skep.wire.part_facts import Stand
from tests.change_kit import (
    EVERYTHING,
    ONE,
    RESUME,
    TWO,
    WHO,
    all_say,
    answer,
    both,
    calls,
    change,
    order,
    running,
    said,
    state,
    suspended,
    told,
    up,
)
from tests.kit import Driver, plans

ABLE = (*EVERYTHING, "rebind")
SWAPPED = Resume(ranks=plans((1,), (3,)))


def away(can: tuple[str, ...] = ABLE) -> Driver[AgentMachine]:
    """Return an agent whose gang stands, its state in the host's memory."""
    decide = running(can=can)
    suspended(decide, release=True)
    return decide


def devices(decide: Driver[AgentMachine]) -> list[tuple[int, ...]]:
    part = decide.machine.parts["j1", 1]
    assert part.command is not None
    assert [rank.plan for rank in part.ranks.values()] == list(part.command.ranks)
    return [plan.devices for plan in part.command.ranks]


def test_every_rank_is_told_with_which_devices_it_goes_on() -> None:
    decide = away()
    decide(change(SWAPPED, 3))
    asked = told(both(decide, RunThawed))
    assert asked == [
        talk.ResumeRank(**WHO, rank=rank, order=order(2, RESUME), devices=devices)
        for rank, devices in enumerate([(1,), (3,)])
    ]
    assert devices(decide) == [(0,), (1,)]
    done = answer(all_say(decide, talk.Resumed, order=order(2, RESUME), step=5))
    assert (done.manner, done.released) == (Manner.BOUNDARY, False)
    assert state(decide) == (Stand.RUNNING, ())
    assert devices(decide) == [(1,), (3,)]
    # Whoever is told anything later is told of these, also by an agent that came back.
    decide.restart(5)
    decide(RunsListed((up(ONE), up(TWO))), 5)
    assert devices(decide) == [(1,), (3,)]
    stray = decide(said(talk.Suspended, 1, order=3, step=9))
    assert [one.devices for one in told(stray)] == [(3,)]  # type: ignore[union-attr]


@pytest.mark.parametrize("can", [EVERYTHING, ("suspend", "release")])
def test_a_job_that_keeps_its_devices_for_life_stays_and_still_holds_none(
    can: tuple[str, ...],
) -> None:
    decide = away(can)
    done = answer(decide(change(SWAPPED, 3)))
    assert done.manner is Manner.UNCHANGED
    assert done.detail == "the job cannot go on with other devices than it has"
    assert done.released, "nobody was told anything: others may use its devices on"
    assert state(decide) == (Stand.SUSPENDED, (Hold.SCHEDULER,))
    # To the devices that it has it returns, however they are named.
    assert told(both_thawed(decide, Resume(ranks=plans((0,), (1,)))))


def both_thawed(decide: Driver[AgentMachine], wanted: Resume) -> list[Effect]:
    decide(change(wanted, 4))
    return both(decide, RunThawed)


def fails(decide: Driver[AgentMachine], *ranks: int) -> MemberChanged:
    """Have these ranks say that they cannot go on, the others that they do."""
    decide(change(SWAPPED, 3))
    both(decide, RunThawed)
    number = order(2, RESUME)
    last: list[Effect] = []
    for rank in range(2):
        last = decide(
            said(talk.Failed, rank, order=number, what="resume", error="no memory there")
            if rank in ranks
            else said(talk.Resumed, rank, order=number, step=5)
        )
    assert calls(last) == [FreezeRun(ONE), FreezeRun(TWO)]
    return answer(both(decide, RunFrozen))


def test_where_no_rank_can_go_on_all_stand_as_before() -> None:
    decide = away()
    done = fails(decide, 0, 1)
    assert (done.manner, done.released) == (Manner.UNCHANGED, True)
    assert devices(decide) == [(0,), (1,)]
    assert state(decide) == (Stand.SUSPENDED, (Hold.SCHEDULER,))


def test_where_one_rank_went_on_its_devices_are_not_free() -> None:
    done = fails(away(), 1)
    assert (done.manner, done.released) == (Manner.UNCHANGED, False)


def test_a_rank_that_says_nothing_may_be_anywhere() -> None:
    decide = away()
    decide(change(SWAPPED, 3, deadline_ms=1000))
    both(decide, RunThawed)
    decide(said(talk.Failed, 0, order=order(2, RESUME), what="resume", error="no memory there"))
    decide(Tick(), 60)
    done = answer(both(decide, RunFrozen))
    assert (done.manner, done.released) == (Manner.UNCHANGED, False)
