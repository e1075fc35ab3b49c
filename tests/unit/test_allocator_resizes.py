"""Growing and shrinking a running gang: what is claimed and freed when, and what wins over it."""

from __future__ import annotations

from typing import Any

import pytest

from skep.ids import AttemptId
from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.changes import resizing
from skep.machines.base import Effect, Restarted, Send, Tick
from skep.wire.changes import AskMigrate, AskOver, AskResize, AskSuspend, Goal, Result
from skep.wire.commands import BindJob, ChangeJob, RankPlan, Resize
from skep.wire.facts import JobBound, JobEnded, JobPromoted, JobRequeued, JobStopping
from skep.wire.node import Manner, Outcome
from skep.wire.reasons import Reason
from skep.wire.resizes import GangNarrowed, GangWidened
from skep.wire.spec import Elastic
from tests.kit import Driver, admitted, allocator, cancel_asked, exited, joined, started
from tests.unit.test_allocator_changes import ask, changed, ends, known, of, over, running, told

CAN = ("suspend", "release", "resize")
SIZES = Elastic(min=1, max=3)


def elastic(workers: int = 1, **more: Any) -> Driver[AllocatorMachine]:
    """Return an allocator that runs the elastic job j1 on the four GPUs of node-1."""
    given = {"gpus": 1, "workers": workers, "elastic": SIZES, **more}
    decide = allocator(joined("node-1", 4))
    decide(admitted(1, **given))
    decide(started("j1"))
    decide(known("j1", can=CAN))
    return decide


def resize(decide: Driver[AllocatorMachine], workers: int, number: int = 2) -> list[Effect]:
    return decide(ask(number, AskResize(job="j1", workers=workers)))


def resized(decide: Driver[AllocatorMachine], workers: int, number: int = 2) -> list[Effect]:
    (command,) = told(resize(decide, workers, number))
    return decide(changed(command))


def held(decide: Driver[AllocatorMachine]) -> tuple[int, ...]:
    """Return the GPUs of node-1 that j1 holds, having checked that all agree on them."""
    machine = decide.machine
    devices = machine.state.nodes["node-1"].holdings["j1", machine.state.jobs["j1"].attempt].devices
    hold = machine.state.cells.holds[AttemptId(f"j1.{machine.state.jobs['j1'].attempt}")]
    assert hold.gpus == len(devices)
    return devices


def test_a_size_that_the_job_does_not_offer_is_refused_before_anything_is_told() -> None:
    decide = elastic(workers=2, elastic=Elastic(min=1, max=4))
    decide(known("j1", can=CAN, sizes=(1, 2, 4)))
    effects = resize(decide, 3)
    (refused,) = [each for each in of(effects, AskOver) if each.number == 2]
    assert (refused.result, refused.why) == (Result.REFUSED, Reason.SIZE_NOT_OFFERED)
    assert refused.detail == "3 workers; ask for 1, 2 or 4"
    assert (told(effects), of(effects, GangWidened)) == ([], [])
    assert told(resize(decide, 4, 3)), "one that it offers is tried"


def test_many_sizes_are_named_in_part() -> None:
    assert resizing.one_of((3,)) == "3"
    assert resizing.one_of(tuple(range(1, 15))).endswith("11, 12 or one of 2 more")


def test_a_gang_grows_and_shrinks() -> None:
    decide = elastic()
    effects = resize(decide, 3)
    (more,) = of(effects, GangWidened)
    assert (more.member.first_rank, more.member.devices) == (1, ((1,), (2,)))
    (command,) = told(effects)
    grow = command.change
    assert isinstance(grow, Resize)
    assert (grow.world, grow.generation, grow.step) == (3, command.order, 0)
    assert grow.ranks == tuple(RankPlan(rank=i, local_rank=i, devices=(i,)) for i in range(3))
    assert grow.master_address == decide.machine.state.nodes["node-1"].joined.address
    job = decide.machine.state.jobs["j1"]
    assert (held(decide), job.size) == ((0, 1, 2), 1)
    effects = decide(changed(command))
    assert (ends(effects), over(effects)) == (
        [(Goal.RESIZE, Result.DONE)],
        [(2, Result.DONE, None)],
    )
    assert not of(effects, GangNarrowed)
    assert (held(decide), job.size) == ((0, 1, 2), 3)
    # Nobody else gets them.
    assert not of(decide(admitted(3, gpus=2)), JobBound)

    (command,) = told(resize(decide, 1, 4))
    shrink = command.change
    assert isinstance(shrink, Resize)
    assert (shrink.world, len(shrink.ranks)) == (1, 1)
    assert shrink.generation > grow.generation
    assert shrink.master_port == grow.master_port
    assert held(decide) == (0, 1, 2), "they are there until the node says that they are gone"
    effects = decide(changed(command))
    assert [fact.workers for fact in of(effects, GangNarrowed)] == [1]
    assert (held(decide), job.size) == ((0,), 1)
    assert [fact.job for fact in of(effects, JobBound)] == ["j3"], "who waited has them at once"
    assert len(of(decide(exited("j1")), JobEnded)) == 1


def test_the_meeting_place_is_a_port_of_its_own() -> None:
    decide = elastic()
    (command,) = told(resize(decide, 2))
    meets = command.change.master_port  # type: ignore[union-attr]
    held_there = decide.machine.state.nodes["node-1"].holdings["j1", 1]
    assert (held_there.meets, meets != held_there.port) == (meets, True)
    (bound,) = of(decide(admitted(3)), JobBound)
    assert bound.master_port not in (meets, held_there.port)


def test_what_fails_gives_back_what_it_claimed() -> None:
    decide = elastic()
    (command,) = told(resize(decide, 2))
    effects = decide(changed(command, Manner.UNCHANGED, detail="rank 1: no group"))
    assert over(effects) == [(2, Result.UNDONE, Reason.NOT_TAKEN)]
    assert [fact.workers for fact in of(effects, GangNarrowed)] == [1]
    assert (held(decide), decide.machine.state.jobs["j1"].size) == ((0,), 1)
    assert over(resized(decide, 2, 3)) == [(3, Result.DONE, None)]


def test_a_shrink_that_fails_keeps_everything() -> None:
    decide = elastic(workers=3)
    (command,) = told(resize(decide, 2))
    effects = decide(changed(command, Manner.UNCHANGED))
    assert not of(effects, GangNarrowed)
    assert (held(decide), decide.machine.state.jobs["j1"].size) == ((0, 1, 2), 3)


def test_what_is_not_free_now_is_refused_and_nothing_waits() -> None:
    decide = elastic()
    decide(admitted(2, gpus=2))
    assert over(resize(decide, 3, 3)) == [(3, Result.REFUSED, Reason.NO_ROOM)]
    assert held(decide) == (0,)
    assert over(resized(decide, 2, 4)) == [(4, Result.DONE, None)]


def test_cpus_count_as_well() -> None:
    decide = elastic(cpus=joined().cpus // 2 + 1)
    assert over(resize(decide, 2)) == [(2, Result.REFUSED, Reason.NO_ROOM)]


@pytest.mark.parametrize(
    "workers, changes, why",
    [(4, {}, Reason.BAD_VALUE), (0, {}, Reason.BAD_VALUE), (2, {"elastic": None}, Reason.CANNOT)],
)
def test_what_the_spec_does_not_allow_is_refused(
    workers: int, changes: dict[str, Any], why: Reason
) -> None:
    assert over(resize(elastic(**changes), workers)) == [(2, Result.REFUSED, why)]


def test_who_cannot_or_stands_still_is_refused() -> None:
    decide = running("node-1", gpus=1, can=("suspend",), elastic=SIZES)
    assert over(resize(decide, 2)) == [(2, Result.REFUSED, Reason.CANNOT)]
    (command,) = told(decide(ask(3, AskSuspend(job="j1"))))
    decide(changed(command))
    assert over(resize(decide, 2, 4)) == [(4, Result.REFUSED, Reason.NOT_RUNNING)]


def test_the_size_it_has_is_done_at_once() -> None:
    effects = resize(elastic(), 1)
    assert (told(effects), over(effects)) == ([], [(2, Result.DONE, None)])


def test_a_resized_gang_moves_with_the_size_it_has() -> None:
    decide = elastic()
    decide(known("j1", can=("migrate", *CAN)))
    resized(decide, 2)
    decide(joined("node-2"))
    effects = decide(ask(3, AskMigrate(job="j1")))
    (bind,) = [
        effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, BindJob)
    ]
    assert (bind.node, bind.world, [plan.rank for plan in bind.ranks]) == ("node-2", 2, [0, 1])


def test_it_is_repeated_until_it_is_answered_also_after_a_crash() -> None:
    decide = elastic()
    (command,) = told(resize(decide, 2))
    assert told(decide(Tick(), 23)) == [command]
    (again,) = told(decide(Restarted(2), 24))
    assert (again.order, again.change) == (command.order, command.change)
    assert over(decide(changed(again), 25)) == [(2, Result.DONE, None)]
    assert held(decide) == (0, 1)


def open_growth() -> tuple[Driver[AllocatorMachine], ChangeJob]:
    decide = elastic()
    (command,) = told(resize(decide, 3))
    return decide, command


def test_cancellation_wins_and_frees_everything_when_all_are_gone() -> None:
    decide, command = open_growth()
    effects = decide(cancel_asked(1))
    assert over(effects) == [(2, Result.OVERTAKEN, Reason.OVERTAKEN)]
    assert len(of(effects, JobStopping)) == 1
    assert decide(changed(command)) == []
    assert held(decide) == (0, 1, 2), "its newcomers may still be there"
    decide(exited("j1", outcome=Outcome.STOPPED))
    assert decide.machine.state.nodes["node-1"].holdings == {}
    assert decide.machine.state.cells.holds == {}
    assert len(of(decide(admitted(3, gpus=4)), JobBound)) == 1


def test_the_next_attempt_begins_with_the_workers_of_the_spec() -> None:
    decide = elastic(retries=1)
    resized(decide, 3)
    effects = decide(exited("j1", outcome=Outcome.EXITED, detail="rank 1"))
    assert len(of(effects, JobRequeued)) == 1
    (bound,) = of(effects, JobBound)
    assert [len(one.devices) for one in bound.members] == [1]
    assert decide.machine.state.jobs["j1"].size == 1
    assert decide.machine.state.nodes["node-1"].holdings["j1", 2].meets == 0


def test_a_lost_node_wins() -> None:
    decide, _ = open_growth()
    effects = decide.tick(60)
    assert over(effects) == [(2, Result.OVERTAKEN, Reason.OVERTAKEN)]
    assert len(of(effects, JobRequeued)) == 1
    assert held_by_ghost(decide) == (0, 1, 2)
    decide(exited("j1", outcome=Outcome.STOPPED), 61)
    assert decide.machine.state.cells.holds == {}


def held_by_ghost(decide: Driver[AllocatorMachine]) -> tuple[int, ...]:
    return decide.machine.state.nodes["node-1"].holdings["j1", 1].devices


def test_a_suspended_gang_has_the_size_it_was_given() -> None:
    decide = elastic()
    resized(decide, 3)
    (command,) = told(decide(ask(3, AskSuspend(job="j1", release=True))))
    decide(changed(command))
    assert decide.machine.state.jobs["j1"].released
    assert decide.machine.state.cells.holds == {}
    assert decide.machine.state.jobs["j1"].size == 3


def test_who_borrows_grows_borrowed_and_is_promoted_whole() -> None:
    decide = allocator(joined("node-1", 4), nlp=2, other=2)
    decide(admitted(1, gpus=2))
    decide(admitted(2, elastic=SIZES, over_quota="opportunistic"))
    decide(started("j2"))
    decide(known("j2", can=CAN))
    (command,) = told(decide(ask(3, AskResize(job="j2", workers=2))))
    decide(changed(command))
    assert not decide.machine.state.cells.holds[AttemptId("j2.1")].guaranteed
    effects = decide(exited("j1"))
    (fact,) = of(effects, JobPromoted)
    assert len(fact.levels) == 2
    assert decide.machine.state.jobs["j2"].state is State.RUNNING
