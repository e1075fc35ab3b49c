"""Idle GPUs for jobs that wait (`over_quota: auto`), and how they are given back."""

from typing import Any

import pytest

from skep.ledger.job_state import JobState, State
from skep.machines.allocator import AllocatorMachine, outcome
from skep.machines.allocator.placement import lending, placing
from skep.machines.allocator.transaction import Transaction
from skep.machines.base import Effect, Tick
from skep.units import Instant
from skep.wire.changes import AskResume, AskSuspend
from skep.wire.commands import Checkpoint, Suspend
from skep.wire.facts import CellsReserved, JobBound, JobPromoted, JobRequeued, JobStopping
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from tests.kit import Driver, admitted, allocator, cancel_asked, exited, joined, started
from tests.unit.test_allocator_changes import ask, changed, known, of, told

SCRIPT: dict[str, Any] = {"command": None, "script": "train.py"}
STORED = ("suspend", "release", "checkpoint")
RELEASES = ("suspend", "release")
GONE = Outcome.STOPPED


def bound(effects: list[Effect]) -> list[tuple[str, Reason, bool]]:
    """Return the jobs that were bound: why it was their turn, and whether they borrow."""
    return [(fact.job, fact.ranked, not fact.members[0].levels) for fact in of(effects, JobBound)]


def starts(
    decide: Driver[AllocatorMachine],
    number: int,
    can: tuple[str, ...] | None = STORED,
    **fields: Any,
) -> str:
    """Have a job of one node start, and say what it can; return its node."""
    decide(admitted(number, **{**SCRIPT, **fields}))
    return runs(decide, number, can)


def runs(
    decide: Driver[AllocatorMachine],
    number: int,
    can: tuple[str, ...] | None = STORED,
    attempt: int = 1,
) -> str:
    job = f"j{number}"
    (node,) = decide.machine.state.jobs[job].members
    decide(started(job, attempt=attempt, node=node))
    if can is not None and attempt == 1:
        decide(known(job, node, can))
    return node


def blocked(**fields: Any) -> Driver[AllocatorMachine]:
    """Return an allocator with j1 on 2 of 4 GPUs, and j2, which waits for all 4."""
    decide = allocator(joined())
    starts(decide, 1, gpus=2)
    assert not of(decide(admitted(2, gpus=4, **fields)), JobBound)
    return decide


def lent_one(can: tuple[str, ...] | None = STORED) -> Driver[AllocatorMachine]:
    """Return the same with j3 on one of the idle GPUs."""
    decide = blocked()
    starts(decide, 3, can, gpus=1)
    assert list(decide.machine.state.borrowed) == ["j3"]
    return decide


def test_a_later_job_has_idle_gpus_while_the_head_waits() -> None:
    decide = blocked()
    effects = decide(admitted(3, gpus=1, **SCRIPT))
    assert bound(effects) == [("j3", Reason.LENT_MEANWHILE, True)]
    effects = decide(admitted(4, gpus=1, **SCRIPT))
    assert bound(effects) == [("j4", Reason.LENT_MEANWHILE, True)]
    assert not bound(decide(admitted(5, gpus=1, **SCRIPT))), "no GPU is idle any more"


@pytest.mark.parametrize(
    "fields", [{}, {**SCRIPT, "over_quota": "wait"}, {**SCRIPT, "over_quota": "refuse"}]
)
def test_a_job_that_may_not_or_could_not_give_gpus_back_waits(fields: dict[str, Any]) -> None:
    decide = blocked()
    assert not bound(decide(admitted(3, gpus=1, **fields)))


def test_the_head_takes_the_gpus_back_and_nothing_is_lost() -> None:
    decide = lent_one()
    effects = decide(exited("j1"))
    assert [fact.victims for fact in of(effects, CellsReserved)] == [("j3",)]
    (command,) = told(effects)
    assert command.change == Checkpoint()
    (stopping,) = of(decide(changed(command)), JobStopping)
    assert (stopping.job, stopping.why) == ("j3", Reason.PREEMPTED)
    effects = decide(exited("j3", outcome=GONE))
    assert [(fact.job, fact.counted) for fact in of(effects, JobRequeued)] == [("j3", False)]
    assert bound(effects) == [("j2", Reason.ARRIVAL, False)]
    assert bound(decide(exited("j2"))) == [("j3", Reason.ARRIVAL, False)]


def test_the_head_has_idle_gpus_of_another_tenant() -> None:
    decide = allocator(joined("node-1"), joined("node-2"), nlp=4, vision=4)
    starts(decide, 1, gpus=2)
    # 6 of 8 GPUs would be idle: the head does not fit its cells, nor the next one before it.
    assert bound(decide(admitted(2, gpus=4, **SCRIPT))) == [("j2", Reason.LENT_MEANWHILE, True)]
    assert bound(decide(admitted(3, gpus=2, **SCRIPT))) == [("j3", Reason.LENT_MEANWHILE, True)]
    assert bound(decide(admitted(4, gpus=4, vc="vision", **SCRIPT))) == []
    assert decide.machine.state.jobs["j4"].state is State.RESERVED, "its cells are its own at once"


def test_a_job_is_promoted_where_it_is_at_its_turn() -> None:
    decide = lent_one()
    effects = decide(cancel_asked(2))
    assert [fact.job for fact in of(effects, JobPromoted)] == ["j3"]
    assert not decide.machine.state.borrowed


def test_later_jobs_wait_for_one_that_leaves_for_its_cells() -> None:
    """Its turn has come, but its VC's cells are elsewhere: no later job gets them meanwhile."""
    decide = allocator(joined("node-1"), joined("node-2"), nlp=4, vision=4)
    home = starts(decide, 1, gpus=3)
    assert starts(decide, 2, gpus=1) == home
    away = starts(decide, 3, gpus=2)
    assert away != home
    assert not bound(decide(admitted(4, gpus=1, over_quota="wait")))
    effects = decide(exited("j1", node=home))
    assert not bound(effects), "j3 comes first"
    (command,) = told(effects)
    assert (command.job, command.change) == ("j3", Checkpoint())
    (stopping,) = of(decide(changed(command)), JobStopping)
    assert (stopping.job, stopping.why) == ("j3", Reason.TO_OWN_CELLS)
    effects = decide(exited("j3", node=away, outcome=GONE))
    assert bound(effects) == [("j3", Reason.ARRIVAL, False), ("j4", Reason.ARRIVAL, False)]
    assert list(decide.machine.state.jobs["j3"].members) == [home]


def test_a_job_that_was_taken_back_keeps_its_place_in_the_order() -> None:
    decide = allocator(joined("node-1"), joined("node-2"), nlp=4, vision=4)
    home = starts(decide, 1, gpus=4)
    away = starts(decide, 2, gpus=2)
    assert not of(decide(admitted(3, gpus=4, over_quota="wait")), JobBound)
    (command,) = told(decide(admitted(4, gpus=4, vc="vision", over_quota="wait")))
    decide(changed(command))
    effects = decide(exited("j2", node=away, outcome=GONE))
    assert bound(effects) == [("j4", Reason.ARRIVAL, False)]
    effects = decide(exited("j1", node=home))
    assert bound(effects) == [("j2", Reason.ARRIVAL, False)], "and j3 waits behind it"


def test_a_script_that_cannot_give_gpus_back_is_stopped_once_and_not_lent_any_again() -> None:
    decide = lent_one(can=())
    effects = decide(exited("j1"))
    assert [(fact.job, fact.why) for fact in of(effects, JobStopping)] == [("j3", Reason.PREEMPTED)]
    assert bound(decide(exited("j3", outcome=GONE))) == [("j2", Reason.ARRIVAL, False)]
    decide(exited("j2"))
    runs(decide, 3, None, attempt=2)
    assert not decide.machine.state.borrowed
    # Its second attempt is stopped by its node; meanwhile a larger job has come before it.
    decide(admitted(5, gpus=4, priority=1))
    effects = decide(exited("j3", attempt=2, outcome=GONE))
    assert decide.machine.state.jobs["j3"].gives_back is False
    assert "j3" not in [job for job, _, _ in bound(effects)]


def test_a_job_that_can_only_be_suspended_stands_until_its_turn() -> None:
    decide = lent_one(can=("suspend", "release"))
    (command,) = told(decide(exited("j1")))
    assert command.change == Suspend(release=True)
    assert bound(decide(changed(command))) == [("j2", Reason.ARRIVAL, False)]
    assert decide.machine.state.jobs["j3"].away
    effects = decide(exited("j2"))
    assert [fact.job for fact in of(effects, JobPromoted)] == ["j3"]
    assert not of(effects, JobStopping)


def test_a_restart_forgets_nothing_of_it() -> None:
    decide = lent_one()
    decide.restart(50)
    assert bound(decide(admitted(4, gpus=1, **SCRIPT))) == [("j4", Reason.LENT_MEANWHILE, True)]
    decide.restart(60)
    effects = decide(exited("j1"))
    assert [sorted(fact.victims) for fact in of(effects, CellsReserved)] == [["j3", "j4"]]


def test_many_shapes_that_find_nothing_are_tried_in_bounded_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide = blocked()
    monkeypatch.setattr(lending, "LOOKS_MAX", 3)
    looks: list[str] = []
    place = placing.lend

    def look(tx: Transaction, job: JobState, now: Instant, room: int) -> outcome.Outcome:
        looks.append(job.job)
        return place(tx, job, now, room)

    monkeypatch.setattr(placing, "lend", look)
    for number in range(3, 11):
        decide(admitted(number, gpus=1, cpus=1000 + number, **SCRIPT))
    looks.clear()
    decide(admitted(11, gpus=1, cpus=2000, **SCRIPT))
    assert len(looks) <= 3
    for _ in range(5):
        decide(Tick())
    looks.clear()
    decide(admitted(12, gpus=1, cpus=1003, **SCRIPT))
    assert not looks, "what found nothing is not tried again before something comes free"


def test_a_borrowing_job_takes_no_cells_before_a_lent_one_that_comes_first() -> None:
    decide = allocator(*(joined(f"node-{number}", gpus=2) for number in range(1, 7)), nlp=4, cv=8)
    starts(decide, 1, gpus=2, priority=9)
    starts(decide, 2, gpus=2, priority=9)
    starts(decide, 3, gpus=2, over_quota="opportunistic")
    decide(admitted(4, **SCRIPT, gpus=2, workers=2, priority=5))
    for node in decide.machine.state.jobs["j4"].live:
        decide(started("j4", node=node))
        decide(known("j4", node, STORED))
    assert list(decide.machine.state.borrowed) == ["j3", "j4"]
    decide(exited("j1", node="node-1"))
    assert list(decide.machine.state.borrowed) == ["j3", "j4"], "j4 needs both cells of nlp"
    decide(exited("j2", node="node-2"))
    assert list(decide.machine.state.borrowed) == ["j3"]


def lends_gang(decide: Driver[AllocatorMachine], number: int, *nodes: str) -> None:
    """Have a gang be lent these nodes; its turn is before jobs of no priority."""
    decide(admitted(number, **SCRIPT, gpus=2, workers=2, priority=5))
    assert list(decide.machine.state.jobs[f"j{number}"].live) == list(nodes)
    for node in nodes:
        decide(started(f"j{number}", node=node))
        decide(known(f"j{number}", node, STORED))


def test_a_suspended_job_takes_no_gpus_back_before_a_lent_one_that_comes_first() -> None:
    decide = allocator(*(joined(f"node-{number}", gpus=2) for number in range(1, 5)), nlp=4, cv=4)
    starts(decide, 1, RELEASES, gpus=2)
    starts(decide, 2, gpus=2, priority=9)
    lends_gang(decide, 3, "node-3", "node-4")
    (command,) = told(decide(ask(10, AskSuspend(job="j1", release=True))))
    decide(changed(command))
    assert starts(decide, 11, vc="cv", gpus=2, opportunistic=True) == "node-1"
    assert not told(decide(ask(12, AskResume(job="j1")))), "j3 needs both cells of nlp"
    decide(exited("j2", node="node-2"))
    assert not decide.machine.state.borrowed, "j3 has them"
    (command,) = told(decide(exited("j3", node="node-3")) + decide(exited("j3", node="node-4")))
    assert (command.job, command.change) == ("j11", Suspend(release=True)), "j1 is the next one"


def test_a_lent_job_that_goes_on_while_others_leave_for_a_later_one_comes_first() -> None:
    decide = allocator(*(joined(f"node-{number}", gpus=2) for number in range(1, 7)), nlp=4, cv=8)
    home, _ = [starts(decide, number, gpus=2, priority=9) for number in (1, 2)]
    away = starts(decide, 3, RELEASES, gpus=2)
    lends_gang(decide, 4, "node-4", "node-5")
    # Two jobs of cv take the node of j3. When one of its GPUs is free again, a third borrows that.
    decide(admitted(5, vc="cv", gpus=2))
    effects = decide(admitted(6, vc="cv", gpus=1)) + decide(admitted(7, vc="cv", gpus=1))
    (command,) = told(effects)
    assert (command.job, command.change) == ("j3", Suspend(release=True))
    decide(changed(command))
    for name in ("j6", "j7"):
        decide(started(name, node=away))
    decide(exited("j6", node=away))
    assert starts(decide, 8, RELEASES, vc="cv", gpus=1, opportunistic=True) == away
    decide(exited("j7", node=away))
    for command in told(decide(ask(10, AskSuspend(job="j4")))):
        decide(changed(command))
    (leaves,) = told(decide(exited("j1", node=home)))
    assert (leaves.job, leaves.change) == ("j8", Suspend(release=True)), "j3 has its turn"
    for command in told(decide(ask(11, AskResume(job="j4")))):
        decide(changed(command))
    decide(changed(leaves))
    assert sorted(decide.machine.state.borrowed) == ["j3", "j4"], (
        "j3 has idle GPUs, no cells of nlp"
    )
