"""Packing a job with one that runs: one hold for both, who keeps it, and what is refused why."""

from __future__ import annotations

from typing import Any

import pytest

from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.changes.packing import JOBS_PER_GPU_MAX
from skep.machines.base import Effect, Restarted, Send, Tick
from skep.wire.admin import DrainNode, SetVcs
from skep.wire.changes import (
    AskCheckpoint,
    AskMigrate,
    AskPack,
    AskResize,
    AskSuspend,
    AskUnpack,
    Goal,
    GpusRegained,
    Result,
)
from skep.wire.commands import BindJob, Checkpoint, Resume, Share, Suspend
from skep.wire.facts import (
    CellsReserved,
    JobBound,
    JobDemoted,
    JobEnded,
    JobPromoted,
    JobRequeued,
    JobStopping,
    NodeLost,
    ReservationDropped,
)
from skep.wire.node import Manner, Outcome
from skep.wire.packs import GpusShared, Mode
from skep.wire.reasons import Reason
from skep.wire.spec import Elastic
from tests.kit import (
    Driver,
    admitted,
    allocator,
    cancel_asked,
    exited,
    heartbeat,
    joined,
    started,
    vcs,
)
from tests.unit.test_allocator_changes import EVERYTHING, ask, changed, ends, known, of, over, told

PACK = 50
"""The numbers of requests: jobs have those below."""


def full(
    size: int = 2, *, can: tuple[str, ...] = EVERYTHING, **more: Any
) -> Driver[AllocatorMachine]:
    """Return an allocator whose only node, and VC, is used up by j1, and on which j2 waits."""
    decide = allocator(joined(gpus=size), nlp=size)
    decide(admitted(1, gpus=size))
    decide(started("j1"))
    decide(known("j1", can=can))
    decide(admitted(2, **{"gpus": 1, **more}))
    assert decide.machine.state.jobs["j2"].state is State.QUEUED
    return decide


def pack(
    decide: Driver[AllocatorMachine],
    job: str = "j2",
    beside: str = "j1",
    number: int = PACK,
    **more: Any,
) -> list[Effect]:
    return decide(ask(number, AskPack(job=job, beside=beside, **more)))


def packed(*, answer: bool = True, guest: bool = True, **more: Any) -> Driver[AllocatorMachine]:
    """Return an allocator on which j2 runs beside j1."""
    decide = full(**more)
    effects = pack(decide)
    assert over(effects) == [(PACK, Result.DONE, None)]
    for command in told(effects) if answer else ():
        decide(changed(command))
    if guest:
        decide(started("j2"))
        decide(known("j2"))
    return decide


def held(decide: Driver[AllocatorMachine]) -> dict[str, list[int]]:
    """Return who is on which GPUs by the cells, and check that one hold is there for all."""
    cells = decide.machine.state.cells
    (chain,) = cells.chains.values()
    holds = {id(hold) for hold in chain.user if hold is not None}
    assert len(holds) == len([hold for hold in cells.holds.values() if not hold.claims])
    names = cells.users(portion for hold in cells.holds.values() for portion in hold.portions)
    return {name.rpartition(".")[0]: list(cells.leaves_of(name)) for name in names}


def quota_used(decide: Driver[AllocatorMachine]) -> int:
    return sum(hold.gpus for hold in decide.machine.state.cells.holds.values() if hold.guaranteed)


def sent(effects: list[Effect], kind: type) -> list[Any]:
    return [
        one.message for one in effects if isinstance(one, Send) and isinstance(one.message, kind)
    ]


# --- packing -------------------------------------------------------------------------------------


def test_a_job_that_waits_is_bound_beside_another() -> None:
    decide = full()
    effects = pack(decide)
    (fact,) = of(effects, GpusShared)
    assert (fact.mode, fact.job, fact.beside, fact.devices) == (Mode.PACK, "j2", (("j1", 1),), (0,))
    (bound,) = of(effects, JobBound)
    assert (bound.job, bound.why, bound.members[0].devices) == ("j2", Reason.PACKED, ((0,),))
    (bind,) = sent(effects, BindJob)
    assert (bind.job, bind.share, bind.beside) == ("j2", 0.5, ("j1",))
    (share,) = told(effects)
    assert (share.job, share.change) == ("j1", Share(share=0.5, beside=("j2",)))
    assert over(effects) == [(PACK, Result.DONE, None)]
    assert held(decide) == {"j1": [0, 1], "j2": [0]}
    assert quota_used(decide) == 2
    # Its command is repeated as it was.
    decide.tick()
    assert sent(decide(Restarted(2)), BindJob)[0].share == 0.5


def test_gpus_with_fewest_jobs_are_taken_and_what_was_said_is_kept() -> None:
    decide = packed()
    decide(admitted(3))
    effects = pack(decide, "j3", number=51, share=0.25)
    (fact,) = of(effects, GpusShared)
    decide(changed(told(effects)[0]))
    assert (fact.devices, fact.share, fact.told) == ((1,), 0.25, 0.25)
    assert decide.machine.state.jobs["j1"].told == (0.5, ("j2", "j3"))
    decide(started("j3"))
    decide(admitted(4, gpus=2))
    effects = pack(decide, "j4", number=52)
    # Three on each GPU: one of them was told a quarter, so that the others share the rest.
    assert of(effects, GpusShared)[0].told == 0.3333
    assert {one.job: one.change for one in told(effects)} == {
        "j1": Share(share=0.3333, beside=("j2", "j4", "j3")),
        "j2": Share(share=0.3333, beside=("j1", "j4")),
        "j3": Share(share=0.25, beside=("j1", "j4")),
    }


def test_a_partner_that_cannot_lower_its_share_stays_packed() -> None:
    decide = full()
    (command,) = told(pack(decide))
    effects = decide(changed(command, Manner.UNCHANGED, detail="it holds 60 of 80 GB"))
    assert ends(effects) == [(Goal.SHARE, Result.UNDONE)]
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    assert not told(decide.tick()), "it is told once"
    assert held(decide) == {"j1": [0, 1], "j2": [0]}


def test_who_waits_behind_others_or_for_victims_is_packed_all_the_same() -> None:
    decide = full()
    decide(admitted(3))
    assert of(pack(decide, "j3"), JobBound)
    decide = allocator(joined(gpus=2), nlp=2, lab=0)
    decide(admitted(1))
    decide(started("j1"))
    decide(admitted(2, opportunistic=True, vc="lab"))
    assert of(decide(admitted(3, gpus=1)), CellsReserved)
    effects = pack(decide, "j3")
    assert (len(of(effects, ReservationDropped)), len(of(effects, JobBound))) == (1, 1)
    assert held(decide) == {"j1": [0], "j2": [1], "j3": [0]}


def test_a_suspended_job_comes_back_beside_who_has_its_gpus() -> None:
    decide = full()
    (command,) = told(decide(ask(PACK, AskSuspend(job="j1", release=True))))
    decide(changed(command))
    assert decide.machine.state.jobs["j2"].state is State.BOUND
    decide(started("j2"))
    # It has two GPUs, and j2 one of them.
    assert over(pack(decide, "j1", "j2", 51)) == [(51, Result.REFUSED, Reason.TIED_ELSEWHERE)]
    decide(cancel_asked(2))
    decide(exited("j2", outcome=Outcome.STOPPED))
    decide(admitted(3, gpus=2))
    decide(started("j3"))
    effects = pack(decide, "j1", "j3", 52)
    assert of(effects, GpusRegained)
    assert [type(one.change) for one in told(effects) if one.job == "j1"] == [Resume]
    assert held(decide) == {"j3": [0, 1], "j1": [0, 1]}
    resume = next(one for one in told(effects) if one.job == "j1")
    back = decide(changed(resume))
    assert over(back) == [(52, Result.DONE, None)]
    assert decide.machine.state.jobs["j1"].state is State.RUNNING
    # Its processes are those from before: what is theirs now is told once they go on.
    (share,) = told(back)
    assert (share.job, share.change) == ("j1", Share(share=0.5, beside=("j3",)))
    decide(changed(next(one for one in told(effects) if one.job == "j3")))
    # It ends: the other has them alone, and is told so.
    (share,) = told(decide(exited("j1")))
    assert (share.job, share.change) == ("j3", Share())


@pytest.mark.parametrize(
    "spec, reason",
    [
        ({"gpus": 3}, Reason.PARTNER_TOO_SMALL),
        ({"gpu_type": "k80"}, Reason.OTHER_GPU_TYPE),
        ({"cpus": 1000}, Reason.HOST_FULL),
        ({"pinned": "corner"}, Reason.TIED_ELSEWHERE),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(spec: dict[str, Any], reason: Reason) -> None:
    decide = full(**spec)
    effects = pack(decide)
    assert over(effects) == [(PACK, Result.REFUSED, reason)]
    assert not of(effects, JobBound)
    assert held(decide) == {"j1": [0, 1]}


def test_only_with_a_job_of_its_vc_that_runs_and_is_left_alone() -> None:
    decide = full()
    decide(admitted(3, vc="lab"))
    why = [
        over(pack(decide, "j2", beside, 50 + i))[0][2]
        for i, beside in enumerate(("j3", "j9", "j2"))
    ]
    assert why == [Reason.UNKNOWN_JOB, Reason.UNKNOWN_JOB, Reason.PARTNER_NOT_RUNNING]
    assert over(pack(decide, "j1", "j2", 60))[0][2] is Reason.NOT_WAITING
    (command,) = told(decide(ask(61, AskCheckpoint(job="j1"))))
    assert over(pack(decide, number=62))[0][2] is Reason.PARTNER_CHANGING
    decide(changed(command))
    (command,) = told(decide(ask(63, AskSuspend(job="j1"))))
    decide(changed(command))
    assert over(pack(decide, number=64))[0][2] is Reason.PARTNER_NOT_RUNNING


def test_not_on_a_node_that_takes_no_further_work() -> None:
    decide = full()
    decide(DrainNode(node="node-1", drain=True))
    assert over(pack(decide)) == [(PACK, Result.REFUSED, Reason.NODE_CLOSED)]


def test_not_with_a_gang_on_several_nodes() -> None:
    decide = allocator(joined("node-1", 1), joined("node-2", 1), nlp=2)
    decide(admitted(1, workers=2))
    for node in ("node-1", "node-2"):
        decide(started("j1", node=node))
    decide(admitted(2))
    assert over(pack(decide)) == [(PACK, Result.REFUSED, Reason.PARTNER_SPANS_NODES)]


def test_no_more_than_a_whole_device_is_shared_out_and_not_among_too_many() -> None:
    decide = full(1)
    assert of(pack(decide, share=0.9), JobBound)
    decide(started("j2"))
    decide(admitted(3))
    assert over(pack(decide, "j3", number=51, share=0.2))[0][2] is Reason.SHARE_TAKEN
    for number in range(3, JOBS_PER_GPU_MAX + 1):
        decide(admitted(number + 10))
        assert of(pack(decide, f"j{number + 10}", number=50 + number), JobBound), number
        decide(started(f"j{number + 10}"))
    assert over(pack(decide, "j3", number=70))[0][2] is Reason.GPUS_CROWDED


def test_a_request_that_is_read_again_does_nothing() -> None:
    decide = packed()
    assert not of(pack(decide), JobBound)


# --- leaving -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order", [("j1", "j2", "j3"), ("j3", "j1", "j2"), ("j2", "j3", "j1"), ("j1", "j3", "j2")]
)
def test_partners_end_in_any_order_and_the_hold_stays_with_who_is_left(
    order: tuple[str, ...],
) -> None:
    decide = packed(size=2)
    decide(admitted(3, gpus=2))
    pack(decide, "j3", number=51)
    decide(started("j3"))
    used = {"j1": {0, 1}, "j2": {0}, "j3": {0, 1}}
    for job in order:
        decide(exited(job))
        del used[job]
        assert held(decide) == {name: sorted(gpus) for name, gpus in used.items()}
        # The VC owns both GPUs and whoever is left holds its own as guaranteed ones.
        assert quota_used(decide) == len(set().union(*used.values()))
    assert not decide.machine.state.cells.holds
    assert not decide.machine.state.cells.sets


def test_while_the_first_is_stopped_the_other_holds_the_cells() -> None:
    decide = packed(size=1)
    assert quota_used(decide) == 1
    effects = decide(cancel_asked(1))
    assert of(effects, JobStopping)
    assert quota_used(decide) == 1
    decide(admitted(3))
    assert decide.machine.state.jobs["j3"].state is State.QUEUED, "no cell came free"
    effects = decide(exited("j1", outcome=Outcome.STOPPED))
    assert [one.change for one in told(effects)] == [Share()]
    assert not of(effects, JobBound)
    assert of(decide(exited("j2")), JobBound)


def test_an_opportunistic_guest_keeps_the_gpu_and_not_the_cell() -> None:
    decide = packed(size=1, opportunistic=True)
    decide(exited("j1"))
    assert (held(decide), quota_used(decide)) == ({"j2": [0]}, 0)
    assert of(decide(admitted(3)), CellsReserved), "the VC's cell is its own again"


def test_a_guaranteed_guest_of_a_borrower_is_promoted() -> None:
    decide = allocator(joined(gpus=2), nlp=1, lab=1)
    decide(admitted(1, opportunistic=True))
    decide(started("j1"))
    decide(admitted(2, vc="lab"))
    decide(admitted(3))
    # j3 has its VC's cell; j4 waits, and is packed with who borrows.
    decide = allocator(joined(gpus=2), nlp=1, lab=1)
    decide(admitted(1, opportunistic=True))
    decide(started("j1"))
    decide(admitted(3))
    decide(started("j3"))
    decide(admitted(4))
    assert of(pack(decide, "j4"), JobBound)
    assert "j4" in decide.machine.state.borrowed
    assert [fact.job for fact in of(decide(exited("j3")), JobPromoted)] == ["j4"]
    assert quota_used(decide) == 1


def test_who_is_asked_to_leave_is_suspended_and_waits_for_its_gpus() -> None:
    decide = packed(size=1)
    effects = decide(ask(51, AskUnpack(job="j2")))
    (command,) = told(effects)
    assert command.change == Suspend(release=True)
    effects = decide(changed(command))
    assert over(effects) == [(51, Result.DONE, None)]
    assert [one.change for one in told(effects)] == [Share()]
    job = decide.machine.state.jobs["j2"]
    assert (job.state, job.held, job.released) == (State.SUSPENDED, Reason.UNPACKED, True)
    effects = decide(exited("j1"))
    assert of(effects, GpusRegained), "it comes back by itself"
    assert held(decide) == {"j2": [0]}
    (resume,) = told(effects)
    (share,) = told(decide(changed(resume)))
    assert (share.job, share.change) == ("j2", Share()), "its processes still keep to a half"
    assert of(decide(ask(52, AskUnpack(job="j2"))), type(None)) == []
    assert decide.machine.state.jobs["j2"].told == (0.0, ())


def test_who_brought_the_gpus_may_leave_as_well() -> None:
    decide = packed(size=1)
    (command,) = told(decide(ask(51, AskUnpack(job="j1"))))
    decide(changed(command))
    assert (held(decide), quota_used(decide)) == ({"j2": [0]}, 1)


@pytest.mark.parametrize(
    "can, first", [(("suspend", "checkpoint"), Checkpoint), (("suspend",), None), ((), None)]
)
def test_who_cannot_leave_alive_stores_its_state_or_is_stopped(
    can: tuple[str, ...], first: type | None
) -> None:
    decide = packed(size=1, guest=False)
    decide(started("j2"))
    decide(ask(51, AskUnpack(job="j2")))
    effects = decide(known("j2", can=can))
    if first is not None:
        (command,) = told(effects)
        assert isinstance(command.change, first)
        effects = decide(changed(command))
    assert over(effects) == [(51, Result.DONE, None)]
    assert [fact.why for fact in of(effects, JobStopping)] == [Reason.UNPACKED]
    (requeued,) = of(decide(exited("j2", outcome=Outcome.STOPPED)), JobRequeued)
    assert (requeued.why, requeued.counted) == (Reason.UNPACKED, False)
    assert decide.machine.state.jobs["j2"].losses == 0
    assert of(decide(exited("j1")), JobBound)


def test_a_guest_that_keeps_its_memory_is_stopped_unless_it_is_alone_by_then() -> None:
    decide = packed(size=1)
    (command,) = told(decide(ask(51, AskUnpack(job="j2"))))
    effects = decide(changed(command, released=False))
    assert [fact.why for fact in of(effects, JobStopping)] == [Reason.UNPACKED]

    decide = packed(size=1)
    (command,) = told(decide(ask(51, AskUnpack(job="j2"))))
    decide(exited("j1"))
    effects = decide(changed(command, released=False))
    assert not of(effects, JobStopping)
    assert [type(one.change) for one in told(effects)] == [Resume]


def test_who_shares_with_nobody_has_nobody_to_leave() -> None:
    decide = full()
    assert over(decide(ask(51, AskUnpack(job="j1")))) == [(51, Result.REFUSED, Reason.NOT_PACKED)]
    assert over(decide(ask(52, AskUnpack(job="j2")))) == [(52, Result.REFUSED, Reason.NOT_RUNNING)]


# --- what else happens to a set ------------------------------------------------------------------


def test_all_of_a_set_make_room_together() -> None:
    decide = allocator(joined(gpus=1), nlp=1, lab=1)
    decide(SetVcs(vcs=vcs(nlp=1, lab=0)))
    decide(admitted(1, opportunistic=True, vc="lab"))
    decide(started("j1"))
    decide(known("j1"))
    decide(admitted(2, opportunistic=True, vc="lab"))
    for command in told(pack(decide)):
        decide(changed(command))
    decide(started("j2"))
    decide(known("j2", can=()))
    effects = decide(admitted(3))
    (reserved,) = of(effects, CellsReserved)
    assert reserved.victims == ("j1", "j2")
    (command,) = told(effects)
    assert (command.job, command.change) == ("j1", Suspend(release=True))
    assert [fact.job for fact in of(effects, JobStopping)] == ["j2"]
    assert not of(decide(changed(command)), JobBound), "one of them is there"
    assert of(decide(exited("j2", outcome=Outcome.STOPPED)), JobBound)


def test_a_victim_that_is_being_told_its_share_is_suspended_and_not_killed() -> None:
    decide = allocator(joined(gpus=1), nlp=1, lab=0)
    decide(admitted(1, opportunistic=True, vc="lab"))
    decide(started("j1"))
    decide(known("j1"))
    decide(admitted(2, opportunistic=True, vc="lab"))
    pack(decide)
    effects = decide(admitted(3))
    assert (Goal.SHARE, Result.OVERTAKEN) in ends(effects)
    assert [one.change for one in told(effects) if one.job == "j1"] == [Suspend(release=True)]


def test_the_loss_of_a_victim_is_that_of_its_whole_set() -> None:
    decide = allocator(joined(gpus=2), nlp=2, lab=0)
    for number in (1, 2):
        decide(admitted(number, opportunistic=True, vc="lab"), number)
        decide(started(f"j{number}"))
    # j2 began last and alone would lose least; together with j3 it loses more than j1.
    decide(admitted(3, opportunistic=True, vc="lab"), 3)
    pack(decide, "j3", "j2")
    decide(started("j3"), 4)
    (reserved,) = of(decide(admitted(4), 60), CellsReserved)
    assert reserved.victims == ("j1",)


def test_only_those_on_the_gpus_that_are_needed_make_room() -> None:
    decide = allocator(joined(gpus=2), nlp=1, lab=0)
    decide(admitted(1, gpus=2, opportunistic=True, vc="lab"))
    decide(started("j1"))
    for number in (2, 3):
        decide(admitted(number, opportunistic=True, vc="lab"))
        pack(decide, f"j{number}", number=50 + number)
        decide(started(f"j{number}"))
    assert held(decide) == {"j1": [0, 1], "j2": [0], "j3": [1]}
    effects = decide(admitted(4))
    (reserved,) = of(effects, CellsReserved)
    (gpu,) = reserved.members[0].devices[0]
    assert reserved.victims == ("j1", f"j{2 + gpu}")
    decide(exited("j1", outcome=Outcome.STOPPED))
    assert of(decide(exited(f"j{2 + gpu}", outcome=Outcome.STOPPED)), JobBound)
    assert sorted(held(decide)) == sorted([f"j{3 - gpu}", "j4"])


def test_a_lost_node_loses_all_of_a_set_and_frees_it_when_all_are_gone() -> None:
    decide = packed(size=1)
    lost = decide(Tick(), 100)
    assert of(lost, NodeLost)
    assert sorted(fact.job for fact in of(lost, JobRequeued)) == ["j1", "j2"]
    assert quota_used(decide) == 0
    decide(heartbeat())
    assert held(decide) == {"j1": [0], "j2": [0]}
    decide(exited("j1", outcome=Outcome.STOPPED))
    assert held(decide) == {"j2": [0]}
    assert of(decide(exited("j2", outcome=Outcome.STOPPED)), JobBound)


def test_a_change_of_the_cells_carries_a_set_over() -> None:
    decide = packed(size=2)
    effects = decide(SetVcs(vcs=vcs(lab=2)))
    assert (held(decide), quota_used(decide)) == ({"j1": [0, 1], "j2": [0]}, 0)
    del effects
    effects = decide(SetVcs(vcs=vcs(nlp=2)))
    assert [fact.job for fact in of(effects, JobPromoted)] == ["j1"]
    assert quota_used(decide) == 2


def test_a_set_that_makes_room_has_no_right_to_cells_of_another_cluster() -> None:
    decide = packed(size=1, can=())
    decide(known("j2", can=()))
    (reserved,) = of(decide(admitted(3, priority=5)), CellsReserved)
    assert reserved.victims == ("j1", "j2")
    decide(SetVcs(vcs=vcs(nlp=1, lab=0)))
    assert sorted(held(decide)) == ["j1", "j2"]
    decide(exited("j1", outcome=Outcome.STOPPED))
    assert of(decide(exited("j2", outcome=Outcome.STOPPED)), JobBound)


def test_a_set_is_demoted_as_one() -> None:
    decide = allocator(joined("node-1", 1), joined("node-2", 1), nlp=1, lab=1)
    decide(admitted(1, demotable=True))
    decide(started("j1"))
    decide(admitted(2, demotable=True))
    pack(decide)
    decide(started("j2"))
    effects = decide(admitted(3, priority=5))
    assert [fact.job for fact in of(effects, JobDemoted)] == ["j1"]
    assert of(effects, JobBound)
    assert quota_used(decide) == 1


def test_it_moves_alone_and_the_others_keep_the_gpus() -> None:
    decide = allocator(joined("node-1", 1), joined("node-2", 1), nlp=1)
    decide(admitted(1))
    decide(started("j1"))
    decide(known("j1"))
    decide(admitted(2))
    for command in told(pack(decide)):
        decide(changed(command))
    decide(started("j2"))
    decide(known("j2", can=(*EVERYTHING, "migrate")))
    decide(ask(51, AskMigrate(job="j2")))
    assert decide.machine.state.jobs["j2"].successor is not None
    decide(exited("j1"))
    assert held(decide)["j2"] == [0]


def test_a_gang_that_shares_keeps_its_size() -> None:
    decide = allocator(joined(gpus=4), nlp=4)
    decide(admitted(1, elastic=Elastic(min=1, max=3)))
    decide(started("j1"))
    decide(known("j1", can=(*EVERYTHING, "resize")))
    decide(admitted(2, gpus=4))
    decide(admitted(3))
    for command in told(pack(decide, "j3")):
        decide(changed(command))
    refused = over(decide(ask(51, AskResize(job="j1", workers=2))))
    assert refused == [(51, Result.REFUSED, Reason.PACKED)]


def test_a_request_waits_for_the_word_on_the_share() -> None:
    decide = packed(answer=False, size=1)
    assert not told(decide(ask(51, AskCheckpoint(job="j1"))))
    (change,) = [job.change for job in decide.machine.state.jobs.values() if job.change is not None]
    effects = decide(changed(_command(decide)))
    assert change.goal is Goal.SHARE
    assert [type(one.change) for one in told(effects)] == [Checkpoint]


def _command(decide: Driver[AllocatorMachine]) -> Any:
    return next(one for one in told(decide(Restarted(2))) if isinstance(one.change, Share))


def test_after_a_restart_whoever_was_not_told_its_share_is() -> None:
    decide = packed(size=1)
    decide(exited("j2"))
    # Its word may have been lost with the process: the command is owed until it is answered.
    effects = decide.restart()
    assert [one.change for one in told(effects)] == [Share()]
    assert not told(decide(changed(told(effects)[0])))


def test_a_job_that_ends_beside_others_says_nothing_about_the_gpu() -> None:
    decide = packed(size=1)
    decide(exited("j2", outcome=Outcome.SIGNALLED))
    assert not decide.machine.state.suspicion.signs
    assert len(of(decide(exited("j1", outcome=Outcome.SIGNALLED)), JobEnded)) == 1
    assert not decide.machine.state.suspicion.signs
