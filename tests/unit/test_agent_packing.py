"""Jobs packed on one device: who may be there, what is left of it for each, and who is told."""

from typing import Any

import msgspec
import pytest

from skep.machines.agent import (
    AgentMachine,
    FreezeRun,
    PublishEvent,
    RankSaid,
    RunFrozen,
    RunsListed,
    RunThawed,
    StartRank,
    StopRun,
    SweepDevices,
    ThawRun,
)
from skep.machines.agent.change_progress import ORDERS_PER_SERIAL, TOLD_IN, Phase
from skep.machines.agent.parts import DevicesSeen, DeviceUse
from skep.machines.base import Call, Effect, Record
from skep.units import GIB
from skep.wire import talk
from skep.wire.commands import BindJob, Resume, Share, Suspend
from skep.wire.node import Gpu, Manner, MemberExited, Outcome
from skep.wire.part_facts import ChangeTaken, Stand
from skep.wire.runs import RunExited
from tests.change_kit import (
    EVERYTHING,
    ONE,
    RESUME,
    TWO,
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
from tests.kit import Driver, at, bind, joined, plans

SHARE = TOLD_IN[Phase.SHARE]
CAN = (*EVERYTHING, "share")
HALF = Share(share=0.5, beside=("j2",))


def exits(effects: list[Effect]) -> list[MemberExited]:
    return [
        one.command.message
        for one in effects
        if isinstance(one, Call)
        and isinstance(one.command, PublishEvent)
        and isinstance(one.command.message, MemberExited)
    ]


def starts(effects: list[Effect]) -> list[str]:
    return [
        one.command.token
        for one in effects
        if isinstance(one, Call) and isinstance(one.command, StartRank)
    ]


def partner(**fields: Any) -> BindJob:
    given: dict[str, Any] = {"ranks": plans((0,)), **fields}
    return bind("j2", order=given.pop("order", 9), **given)


def alone() -> Driver[AgentMachine]:
    """Return an agent of which j1 has devices 0 and 1, and j3 device 3."""
    decide = running()
    decide(bind("j3", order=2, ranks=plans((3,))))
    return decide


# --- who may be on a device ----------------------------------------------------------------------


def test_a_job_is_put_beside_those_that_its_order_names() -> None:
    decide = alone()
    assert starts(decide(partner(beside=("j1",), share=0.5))) == ["j2.1.0"]
    both_named = partner(order=10, attempt=2, ranks=plans((1,), (3,)), beside=("j1", "j3"), world=2)
    assert starts(decide(both_named)) == ["j2.2.0", "j2.2.1"]


@pytest.mark.parametrize("devices, beside", [((0,), ()), ((0,), ("j3",)), ((1, 3), ("j1",))])
def test_nobody_is_put_beside_those_that_the_order_does_not_name(
    devices: tuple[int, ...], beside: tuple[str, ...]
) -> None:
    decide = alone()
    effects = decide(partner(ranks=plans(devices), beside=beside))
    assert not starts(effects)
    (end,) = exits(effects)
    # Neither the job's fault nor the device's: nobody counts it against them.
    assert (end.job, end.outcome) == ("j2", Outcome.UNKNOWN)
    assert end.detail.startswith("rank 0: device")
    assert "is in use by" in end.detail
    assert not [one for one in calls(effects) if isinstance(one, StopRun)]
    # It is over: no repetition and no restart begins it.
    assert decide(partner(ranks=plans(devices), beside=beside)) == []
    decide.restart()
    again = decide(RunsListed((up(ONE), up(TWO), up("j3.1.0"))))
    assert not starts(again)


def test_who_ended_or_is_away_is_in_nobodys_way() -> None:
    decide = running()
    suspended(decide, release=True)
    assert starts(decide(partner())) == ["j2.1.0"]
    # Coming back, it is.
    decide(change(Resume(), 10))
    assert exits(decide(partner(order=11, attempt=2, beside=("j2",))))

    decide = running(can=(*EVERYTHING, "rebind"))
    suspended(decide, release=True)
    decide(change(Resume(ranks=plans((2,), (3,))), 10))
    assert starts(decide(partner(order=11))) == ["j2.1.0"], "it comes back to other devices"
    assert exits(decide(bind("j4", order=12, ranks=plans((3,)))))

    decide = running()
    for token in (ONE, TWO):
        decide(RunExited(token, 0, at(2)))
    assert starts(decide(partner())) == ["j2.1.0"]


def test_who_is_suspended_with_its_memory_is_still_there() -> None:
    decide = running()
    suspended(decide)
    assert exits(decide(partner()))
    assert starts(decide(partner(order=10, attempt=2, beside=("j1",)))) == ["j2.2.0"]


def test_the_sweep_after_one_partner_knows_of_the_other() -> None:
    decide = running()
    decide(partner(beside=("j1",), share=0.5))
    decide(up("j2.1.0"))
    decide(DevicesSeen((DeviceUse(0, 900), DeviceUse(1, 900))))
    ended = decide(RunExited("j2.1.0", 0, at(3)))
    assert SweepDevices("j2", 1, (0,), shared=(0,)) in calls(ended)
    decide(RunExited(ONE, 0, at(3)))
    ended = decide(RunExited(TWO, 0, at(3)))
    assert SweepDevices("j1", 1, (0, 1)) in calls(ended)


def test_both_partners_count_against_the_hosts_memory() -> None:
    decide = running(budget=250)
    decide(partner(ranks=plans((0,)), beside=("j1",), share=0.5))
    decide(up("j2.1.0"))
    who: dict[str, Any] = {"job": "j2", "attempt": 1, "rank": 0}
    for message in (talk.Hello(**who, token="j2.1.0"), talk.Can(**who, can=CAN)):
        decide(RankSaid(message))
    suspended(decide, release=True)
    decide(change(Suspend(release=True), 20, job="j2"))
    serial = decide.machine.serial
    asked = decide(RankSaid(talk.Suspended(**who, order=order(serial, 1), step=3)))
    (release,) = told(asked)
    assert isinstance(release, talk.ReleaseRank)
    assert release.max_bytes == 250 - 200
    decide(RankSaid(talk.Released(**who, order=order(serial, 2), moved=50, residue=0)))
    assert answer(decide(RunFrozen("j2.1.0"))).released
    assert [part.host_bytes for part in decide.machine.parts.values()] == [200, 50]
    # One of them goes on, and the other stays as it is.
    decide(change(Resume(), 21, job="j2"))
    decide(RunThawed("j2.1.0"))
    decide(RankSaid(talk.Resumed(**who, order=order(decide.machine.serial, RESUME), step=3)))
    stands = {key[0]: part.stand for key, part in decide.machine.parts.items()}
    assert stands == {"j1": Stand.SUSPENDED, "j2": Stand.RUNNING}


# --- a share that changes ------------------------------------------------------------------------


def shared(
    decide: Driver[AgentMachine], share: Share = HALF, number: int = 2, used: int = 5
) -> Any:
    asked = told(decide(change(share, number)))
    number = order(decide.machine.serial, SHARE)
    assert asked == [
        talk.ShareRank(job="j1", attempt=1, rank=rank, order=number, share=share.share)
        for rank in (0, 1)
    ]
    return answer(all_say(decide, talk.Shared, order=number, share=share.share, used=used))


def test_every_rank_is_told_its_share_and_says_what_it_uses() -> None:
    decide = running(can=CAN)
    told_answer = shared(decide)
    assert (told_answer.manner, told_answer.residue, told_answer.detail) == (
        Manner.BOUNDARY,
        10,
        "",
    )
    part = decide.machine.parts["j1", 1]
    assert part.command is not None
    assert (part.command.share, part.command.beside, part.stand) == (0.5, ("j2",), Stand.RUNNING)
    # Told once more, it is answered as before; a later one ends it.
    assert answer([*facts_as_effects(decide), *decide(change(HALF, 2))]) == told_answer
    assert shared(decide, Share(), 3).manner is Manner.BOUNDARY
    assert (part.command.share, part.command.beside) == (0.0, ())


def facts_as_effects(decide: Driver[AgentMachine]) -> list[Effect]:
    return [Record(decide.machine.parts["j1", 1].changed)]


def test_who_uses_more_than_its_share_goes_on_and_it_is_said() -> None:
    gpus = tuple(Gpu(index=index, type="fake", memory=GIB) for index in range(2))
    decide = running(can=CAN, node=msgspec.structs.replace(joined(), gpus=gpus))
    told_answer = shared(decide, used=GIB)
    assert told_answer.manner is Manner.BOUNDARY
    assert told_answer.detail == (
        f"rank 0 uses {GIB} bytes of its device, its share are {GIB // 2}"
    )
    assert shared(decide, Share(), 3, used=GIB).detail == ""


def test_a_rank_that_cannot_keep_to_its_share_goes_on_with_what_it_has() -> None:
    decide = running(can=CAN)
    decide(change(HALF))
    number = order(decide.machine.serial, SHARE)
    decide(said(talk.Failed, 0, order=number, what="share", error="no"))
    result = answer(decide(said(talk.Shared, 1, order=number, share=0.5, used=5)))
    assert (result.manner, result.detail) == (Manner.UNCHANGED, "rank 0: no")
    part = decide.machine.parts["j1", 1]
    assert part.command is not None
    assert (part.stand, part.command.beside) == (Stand.RUNNING, ("j2",))


@pytest.mark.parametrize("can", [(), EVERYTHING])
def test_an_opaque_job_is_told_nothing_and_that_is_the_answer(can: tuple[str, ...]) -> None:
    decide = running(can=can)
    effects = decide(change(HALF))
    assert told(effects) == []
    result = answer(effects)
    assert result.manner is Manner.UNCHANGED
    assert "no limit of memory can be set" in result.detail


def test_a_job_of_which_nothing_is_known_yet_is_waited_for() -> None:
    decide = running(can=None)
    decide(change(HALF, deadline_ms=5000))
    number = order(decide.machine.serial, SHARE)
    heard = decide(said(talk.Hello, 0, pid=1, token=ONE))
    assert [one.order for one in told(heard)] == [number]
    decide(said(talk.Shared, 0, order=number, share=0.5, used=0))
    result = answer(decide.tick(6.5))
    assert result.manner is Manner.UNCHANGED
    assert "no answer from j1.1.1" in result.detail


def test_one_that_stands_frozen_is_told_when_it_goes_on() -> None:
    decide = running(can=CAN)
    suspended(decide)
    noted = decide(change(HALF, 3))
    assert told(noted) == []
    assert answer(noted).manner is Manner.BOUNDARY
    decide(change(Resume(), 4))
    both(decide, RunThawed)
    serial = decide.machine.serial
    asked = all_say(decide, talk.Resumed, order=order(serial, RESUME), step=9)
    # Only now: the state that comes back may be more than the share.
    assert [(type(one), one.order) for one in told(asked)] == [
        (talk.ShareRank, order(serial, SHARE))
    ] * 2
    last = all_say(decide, talk.Shared, order=order(serial, SHARE), share=0.5, used=5)
    assert answer(last).manner is Manner.BOUNDARY
    assert not decide.machine.parts["j1", 1].share_due
    # It is told once: the next time it just goes on.
    suspended(decide, 5)
    decide(change(Resume(), 6))
    both(decide, RunThawed)
    serial = decide.machine.serial
    last = all_say(decide, talk.Resumed, order=order(serial, RESUME), step=9)
    assert answer(last).manner is Manner.BOUNDARY


def test_a_share_that_nobody_confirms_does_not_keep_a_job_suspended() -> None:
    decide = running(can=CAN)
    suspended(decide)
    decide(change(HALF, 3))
    decide(change(Resume(), 4))
    both(decide, RunThawed)
    all_say(decide, talk.Resumed, order=order(decide.machine.serial, RESUME), step=9)
    result = answer(decide.tick(7))
    assert (result.manner, result.detail[:6]) == (Manner.BOUNDARY, "share:")
    assert decide.machine.parts["j1", 1].stand is Stand.RUNNING


def test_an_agent_that_died_tells_the_share_again() -> None:
    decide = running(can=CAN)
    decide(change(HALF))
    before = decide.machine.serial
    decide.restart()
    effects = decide(RunsListed((up(ONE), up(TWO))))
    assert decide.machine.serial > before
    assert calls(effects) == [ThawRun(ONE), ThawRun(TWO)]
    both(decide, RunThawed)
    serial = decide.machine.serial
    asked = all_say(decide, talk.Failed, order=serial * ORDERS_PER_SERIAL, what="resume")
    assert {one.order for one in told(asked)} == {order(serial, SHARE)}
    last = all_say(decide, talk.Shared, order=order(serial, SHARE), share=0.5, used=5)
    assert answer(last).manner is Manner.BOUNDARY


def test_an_agent_that_died_leaves_a_frozen_one_frozen() -> None:
    decide = running(can=CAN)
    suspended(decide)
    decide.facts.append(_taken(decide))
    decide.restart()
    effects = decide(RunsListed((up(ONE, frozen=True), up(TWO, frozen=True))))
    assert calls(effects) == [FreezeRun(ONE), FreezeRun(TWO)]
    assert answer(both(decide, RunFrozen)).manner is Manner.BOUNDARY
    assert decide.machine.parts["j1", 1].stand is Stand.SUSPENDED


def _taken(decide: Driver[AgentMachine]) -> Any:
    return ChangeTaken(command=change(HALF, 3), serial=decide.machine.serial + 1)


def test_ranks_that_join_later_begin_with_the_share() -> None:
    decide = running(can=CAN)
    shared(decide)
    (fact,) = [
        one
        for one in decide.machine.snapshot()
        if hasattr(one, "command") and isinstance(one.command, BindJob)
    ]
    assert (fact.command.share, fact.command.beside) == (0.5, ("j2",))
