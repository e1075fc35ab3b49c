"""The agent changes running parts: whole lists of effects, phase by phase."""

import pytest

from skep.machines.agent import FreezeRun, PublishEvent, RankStats, RunFrozen, RunThawed, ThawRun
from skep.machines.agent.capabilities import KNOWN_AFTER
from skep.machines.agent.change_progress import STRAY
from skep.machines.base import Call
from skep.units import after, in_seconds
from skep.wire import talk
from skep.wire.commands import Change, Checkpoint, Hold, Move, Resize, Resume, Suspend
from skep.wire.node import Door, Manner, MemberKnown, MemberLoaded, MemberReady, Tier
from skep.wire.part_facts import ChangeTaken, ChangeTried, Stand
from skep.wire.reports import RankProgress
from tests.change_kit import (
    EVERYTHING,
    MOVE,
    ONE,
    RELEASE,
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
    state,
    suspended,
    told,
)
from tests.kit import at, bind, facts_of, others, plans

# --- what ranks can do ---------------------------------------------------------------------------


def test_what_all_ranks_can_do_is_told_once_all_have_said_so() -> None:
    decide = running(can=None)
    decide(said(talk.Can, 0, tier="cooperative", can=("suspend", "checkpoint")))
    effects = decide(said(talk.Can, 1, tier="observed", can=("suspend", "release")))
    known = MemberKnown(
        node="node-1", identity="id-node-1", **WHO, tier=Tier.OBSERVED, can=("suspend",), at=at(1)
    )
    assert others(effects) == [
        Call(PublishEvent(3, "skep.v1.node.node-1.known", "id-node-1:3", known))
    ]
    assert decide(said(talk.Can, 1, tier="observed", can=("suspend", "release"))) == []
    more = facts_of(decide(said(talk.Can, 1, tier="cooperative", can=EVERYTHING)))
    assert [(fact.known.tier, fact.known.can) for fact in more] == [
        (Tier.COOPERATIVE, ("checkpoint", "suspend"))
    ]


def test_sizes_are_those_that_every_rank_can_be_one_of() -> None:
    decide = running(can=None)
    decide(said(talk.Can, 0, can=("resize",), sizes=(1, 2, 4)))
    (fact,) = facts_of(decide(said(talk.Can, 1, can=("resize",), sizes=(1, 2, 3))))
    assert fact.known.sizes == (1, 2)
    (fact,) = facts_of(decide(said(talk.Can, 1, can=("resize",))))
    assert fact.known.sizes == (1, 2, 4), "one that names none can be one of any"


@pytest.mark.parametrize("greets, tier", [(False, Tier.OPAQUE), (True, Tier.OBSERVED)])
def test_a_job_that_says_nothing_is_opaque_after_a_while(greets: bool, tier: Tier) -> None:
    decide = running(can=None)
    if greets:
        for rank in range(2):
            decide(said(talk.Hello, rank, token=f"j1.1.{rank}"))
    due = after(at(1), KNOWN_AFTER)
    decide.tick(in_seconds(due - at(0)) - 1)
    (fact,) = facts_of(decide.tick(in_seconds(due - at(0))))
    assert (fact.known.tier, fact.known.can) == (tier, ())


# --- suspend and resume --------------------------------------------------------------------------


def test_suspended_at_a_common_step_then_frozen() -> None:
    decide = running(steps=10)
    asked = decide(change(Suspend()))
    serial = decide.machine.serial
    assert facts_of(asked) == [ChangeTaken(command=change(Suspend()), serial=1)]
    assert told(asked) == [
        talk.SuspendRank(**WHO, rank=rank, order=order(serial, STOP), step=12) for rank in (0, 1)
    ]
    assert decide(said(talk.Suspended, 0, order=order(serial, STOP), step=12)) == []
    last = decide(said(talk.Suspended, 1, order=order(serial, STOP), step=12))
    assert last == [Call(FreezeRun(ONE)), Call(FreezeRun(TWO))]
    assert decide(RunFrozen(ONE)) == []
    done = answer(decide(RunFrozen(TWO)))
    assert (done.manner, done.step, done.order, done.detail) == (Manner.BOUNDARY, 12, 2, "")
    assert state(decide) == (Stand.SUSPENDED, (Hold.SCHEDULER,))


def test_a_rank_alone_needs_no_common_step() -> None:
    decide = running(bind())
    assert told(decide(change(Suspend()))) == [
        talk.SuspendRank(**WHO, rank=0, order=order(1, STOP))
    ]


def test_state_leaves_the_devices_while_it_stands() -> None:
    decide = running()
    done = suspended(decide, release=True)
    assert (done.moved, done.residue) == (200, 14)
    assert decide.machine.parts["j1", 1].host_bytes == 200
    effects = decide(change(Resume(), 3))
    assert calls(effects) == [ThawRun(ONE), ThawRun(TWO)]
    resume = both(decide, RunThawed)
    number = order(decide.machine.serial, RESUME)
    assert told(resume) == [
        talk.ResumeRank(**WHO, rank=rank, order=number, devices=(rank,)) for rank in (0, 1)
    ]
    last = all_say(decide, talk.Resumed, order=number, step=2, pause_ns=50)
    done = answer(last)
    assert (done.manner, done.pause_ns) == (Manner.BOUNDARY, 50)
    part = decide.machine.parts["j1", 1]
    assert (part.stand, part.holds, part.host_bytes) == (Stand.RUNNING, (), 0)


def test_a_step_that_is_past_is_agreed_on_anew_further_ahead() -> None:
    decide = running(steps=10)
    decide(change(Suspend()))
    decide(said(talk.Suspended, 0, order=order(1, STOP), step=12))
    again = decide(said(talk.Past, 1, order=order(1, STOP), step=13))
    assert facts_of(again) == [ChangeTried(**WHO, serial=2)]
    assert told(again) == [
        talk.ResumeRank(**WHO, rank=rank, order=order(2, UNDO), devices=(rank,)) for rank in (0, 1)
    ]
    decide(said(talk.Resumed, 0, order=order(2, UNDO)))
    # Rank 1 stands nowhere: it says that it cannot resume, and is believed to go on.
    retold = decide(said(talk.Failed, 1, order=order(2, UNDO), what="resume", error="not now"))
    assert told(retold) == [
        talk.SuspendRank(**WHO, rank=rank, order=order(2, STOP), step=21) for rank in (0, 1)
    ]
    assert decide(said(talk.Suspended, 1, order=order(1, STOP), step=12)) == []


def test_a_step_that_others_agreed_on_is_kept_to() -> None:
    decide = running(steps=10)
    asked = decide(change(Suspend(step=15)))
    assert [one.step for one in told(asked)] == [15, 15]  # type: ignore[union-attr]
    undo = decide(said(talk.Past, 0, order=order(1, STOP), step=16))
    assert calls(undo) == [ThawRun(ONE), ThawRun(TWO)]
    both(decide, RunThawed)
    done = answer(all_say(decide, talk.Resumed, order=order(2, UNDO)))
    assert (done.manner, done.detail) == (Manner.UNCHANGED, "a rank was past step 15")
    assert state(decide) == (Stand.RUNNING, ())


def test_no_boundary_in_time_freezes_the_tree_where_it_is() -> None:
    decide = running()
    decide(change(Suspend(release=True), deadline_ms=2000))
    decide(said(talk.Suspended, 0, order=order(1, STOP), step=2))
    assert calls(decide.tick(3)) == [FreezeRun(ONE), FreezeRun(TWO)]
    done = answer(both(decide, RunFrozen))
    assert done.manner is Manner.FROZEN
    assert "j1.1.1" in done.detail
    # Thawed, what the ranks were told before is withdrawn: only who stands is waited for.
    decide(change(Resume(), 3))
    resume = both(decide, RunThawed)
    assert [one.order for one in told(resume)] == [order(2, RESUME)] * 2
    done = answer(decide(said(talk.Resumed, 0, order=order(2, RESUME))))
    assert done.manner is Manner.BOUNDARY


def test_an_opaque_job_is_frozen_at_once() -> None:
    decide = running(can=None)
    assert calls(decide(change(Suspend()))) == [FreezeRun(ONE), FreezeRun(TWO)]
    done = answer(both(decide, RunFrozen))
    assert (done.manner, done.detail) == (Manner.FROZEN, "the job knows no boundary")
    assert calls(decide(change(Resume(), 3))) == [ThawRun(ONE), ThawRun(TWO)]
    answer(both(decide, RunThawed))
    assert state(decide) == (Stand.RUNNING, ())


def test_what_cannot_be_frozen_goes_on() -> None:
    decide = running(can=None)
    decide(change(Suspend()))
    assert calls(decide(RunFrozen(ONE, "no engine"))) == [ThawRun(ONE), ThawRun(TWO)]
    done = answer(both(decide, RunThawed))
    assert (done.manner, done.detail) == (Manner.UNCHANGED, "no engine")


def test_it_goes_on_once_nobody_holds_it() -> None:
    decide = running()
    suspended(decide)
    again = answer(decide(change(Suspend(hold=Hold.USER), 3)))
    assert again.manner is Manner.BOUNDARY
    assert state(decide)[1] == (Hold.SCHEDULER, Hold.USER)
    still = answer(decide(change(Resume(), 4)))
    assert (still.manner, still.detail) == (Manner.UNCHANGED, "still suspended by: user")
    assert state(decide) == (Stand.SUSPENDED, (Hold.USER,))
    assert calls(decide(change(Resume(hold=Hold.USER), 5))) == [ThawRun(ONE), ThawRun(TWO)]


def test_a_suspended_part_gives_its_memory_back_later() -> None:
    decide = running()
    suspended(decide)
    assert calls(decide(change(Suspend(release=True), 3))) == [ThawRun(ONE), ThawRun(TWO)]
    asked = told(both(decide, RunThawed))
    assert [type(one) for one in asked] == [talk.ReleaseRank] * 2
    last = all_say(decide, talk.Released, order=order(2, RELEASE), moved=9, residue=0)
    assert calls(last) == [FreezeRun(ONE), FreezeRun(TWO)]
    done = answer(both(decide, RunFrozen))
    assert (done.manner, done.moved, done.residue, done.step) == (Manner.BOUNDARY, 18, 0, 2)


def test_a_resume_that_fails_leaves_it_suspended() -> None:
    decide = running()
    suspended(decide)
    decide(change(Resume(), 3))
    both(decide, RunThawed)
    decide(said(talk.Failed, 0, order=order(2, RESUME), what="resume", error="no memory"))
    failed = decide(said(talk.Failed, 1, order=order(2, RESUME), what="resume", error="no memory"))
    assert calls(failed) == [FreezeRun(ONE), FreezeRun(TWO)]
    done = answer(both(decide, RunFrozen))
    assert (done.manner, done.detail) == (Manner.UNCHANGED, "rank 1: no memory")
    assert state(decide) == (Stand.SUSPENDED, (Hold.SCHEDULER,))
    assert not done.released


def test_who_stands_though_nobody_wants_it_is_told_to_go_on() -> None:
    decide = running()
    stray = decide(said(talk.Suspended, 1, order=3, step=5))
    assert told(stray) == [talk.ResumeRank(**WHO, rank=1, order=STRAY, devices=(1,))]


def test_a_rank_that_returns_is_told_again() -> None:
    decide = running()
    asked = told(decide(change(Suspend())))
    assert told(decide(said(talk.Hello, 1, token=TWO))) == [asked[1]]
    all_say(decide, talk.Suspended, order=order(1, STOP), step=2)
    assert told(decide(said(talk.Hello, 1, token=TWO))) == []


# --- the host's memory ---------------------------------------------------------------------------


def test_no_more_state_than_the_host_has_room_for() -> None:
    decide = running(budget=1000)
    for rank in range(2):
        decide(RankStats("j1", 1, RankProgress(rank=rank, steps=1, memory=600)))
    decide(change(Suspend(release=True)))
    last = all_say(decide, talk.Suspended, order=order(1, STOP), step=3)
    assert calls(last) == [FreezeRun(ONE), FreezeRun(TWO)]
    done = answer(both(decide, RunFrozen))
    assert done.manner is Manner.BOUNDARY
    assert (done.moved, done.residue) == (0, -1)
    assert done.detail == (
        "device memory was kept: 0 of 1000 bytes for suspended state are taken, and 1200 would come"
    )
    assert not decide.machine.parts["j1", 1].released


def test_every_rank_gets_its_share_of_the_room() -> None:
    decide = running(budget=1001)
    decide(change(Suspend(release=True)))
    last = all_say(decide, talk.Suspended, order=order(1, STOP), step=3)
    assert [one.max_bytes for one in told(last)] == [500, 500]  # type: ignore[union-attr]
    decide(said(talk.Released, 0, order=order(1, RELEASE), moved=400, residue=1))
    decide(said(talk.Failed, 1, order=order(1, RELEASE), what="release", error="over the budget"))
    done = answer(both(decide, RunFrozen))
    assert (done.moved, done.detail) == (400, "rank 1: over the budget")
    assert decide.machine.parts["j1", 1].host_bytes == 400


# --- checkpoint and move -------------------------------------------------------------------------


def test_a_checkpoint_of_every_rank() -> None:
    decide = running(steps=10)
    asked = told(decide(change(Checkpoint())))
    assert asked == [
        talk.CheckpointRank(**WHO, rank=rank, order=order(1, WORK), step=12) for rank in (0, 1)
    ]
    done = answer(
        all_say(decide, talk.Checkpointed, order=order(1, WORK), step=12, bytes=5, pause_ns=3)
    )
    assert (done.manner, done.step, done.moved, done.pause_ns) == (Manner.BOUNDARY, 12, 10, 3)


def test_one_failed_checkpoint_is_none() -> None:
    decide = running()
    decide(change(Checkpoint()))
    undo = decide(said(talk.Failed, 1, order=order(1, WORK), what="checkpoint", error="disk full"))
    assert [type(one) for one in told(undo)] == [talk.ResumeRank] * 2
    decide(said(talk.Failed, 0, order=order(2, UNDO), what="resume"))
    done = answer(decide(said(talk.Failed, 1, order=order(2, UNDO), what="resume")))
    assert (done.manner, done.detail) == (Manner.UNCHANGED, "rank 1: disk full")


@pytest.mark.parametrize(
    "what, text",
    [
        (Checkpoint(), "cannot checkpoint"),
        (Move(targets=()), "cannot migrate"),
        (Resize(generation=1, world=1, ranks=(), master_address="a", master_port=1), "resize"),
    ],
)
def test_what_the_job_cannot_do_is_refused(what: Change, text: str) -> None:
    decide = running(can=("suspend",))
    done = answer(decide(change(what)))
    assert done.manner is Manner.UNCHANGED
    assert text in done.detail


def test_a_move_waits_for_what_becomes_of_it() -> None:
    decide = running()
    asked = told(decide(change(MOVE)))
    assert asked[1] == talk.MoveRank(
        **WHO, rank=1, order=order(1, WORK), step=2, host="h", port=2, token="s"
    )
    done = answer(all_say(decide, talk.Sent, order=order(1, WORK), step=2, bytes=50))
    assert (done.manner, done.moved) == (Manner.BOUNDARY, 100)
    assert state(decide) == (Stand.SENT, ())
    assert told(decide(said(talk.Hello, 0, token=ONE))) == []
    resume = decide(change(Resume(), 3))
    assert [one.order for one in told(resume)] == [order(2, RESUME)] * 2
    done = answer(all_say(decide, talk.Resumed, order=order(2, RESUME), step=2))
    assert done.manner is Manner.BOUNDARY
    assert state(decide) == (Stand.RUNNING, ())


def test_a_move_that_fails_leaves_all_going_on() -> None:
    decide = running()
    decide(change(MOVE))
    decide(said(talk.Sent, 0, order=order(1, WORK), step=2, bytes=50))
    decide.tick(6)
    done = answer(all_say(decide, talk.Resumed, order=order(2, UNDO), step=2))
    assert done.manner is Manner.UNCHANGED
    assert "j1.1.1" in done.detail


def test_a_successor_trains_only_when_resumed() -> None:
    decide = running(bind(ranks=plans((0,), (1,)), world=2, awaits="secret"))
    assert facts_of(decide(RankStats("j1", 1, RankProgress(rank=0, steps=1)))) == []
    early = answer(decide(change(Resume(), 2)))
    assert (early.manner, early.detail) == (Manner.UNCHANGED, "its state has not arrived yet")
    decide(said(talk.Ready, 0, port=5))
    (ready,) = facts_of(decide(said(talk.Ready, 1, port=6)))
    doors = (Door(rank=0, host="10.0.0.1", port=5), Door(rank=1, host="10.0.0.1", port=6))
    assert ready.ready == MemberReady(
        node="node-1", identity="id-node-1", **WHO, at=at(1), doors=doors
    )
    decide(said(talk.Loaded, 1, step=8))
    (loaded,) = facts_of(decide(said(talk.Loaded, 0, step=8)))
    assert loaded.loaded == MemberLoaded(
        node="node-1", identity="id-node-1", **WHO, at=at(1), step=8
    )
    resume = decide(change(Resume(), 3))
    assert [type(one) for one in told(resume)] == [talk.ResumeRank] * 2
    answer(all_say(decide, talk.Resumed, order=order(2, RESUME), step=8))
    stepped = facts_of(decide(RankStats("j1", 1, RankProgress(rank=0, steps=9))))
    assert [type(fact).__name__ for fact in stepped] == ["PartStepped"]
