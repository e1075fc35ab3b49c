"""What the stages of a decision report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.changes import packing
from skep.machines.allocator.placement.placing import MEMBERS_BOUND_MAX
from skep.machines.allocator.schedule import STAGES, any_input
from skep.machines.allocator.stages import Stage
from skep.machines.allocator.transaction import Transaction
from skep.machines.base import Effect, Record
from skep.wire.facts import JobBound, JobEnded, JobQueued, MemberGone, NodeAdded
from tests.kit import Driver, admitted, allocator, exited, joined, started


def reported(decide: Driver[AllocatorMachine], effects: list[Effect]) -> dict[Stage, list[Any]]:
    """Return the kinds of facts by stage; every fact is in the report of one stage."""
    reports = decide.machine.tx.reports()
    facts = [effect.fact for effect in effects if isinstance(effect, Record)]
    assert [fact for report in reports for fact in report.facts] == facts
    return {
        report.stage: [type(fact) for fact in report.facts] for report in reports if report.facts
    }


def test_each_fact_is_in_the_report_of_its_stage() -> None:
    decide = allocator(nlp=4)
    assert reported(decide, decide(joined()))[Stage.INTAKE][0] is NodeAdded
    found = reported(decide, decide(admitted(1)))
    assert (found[Stage.INTAKE], found[Stage.GUARANTEED]) == ([JobQueued], [JobBound])
    found = reported(decide, decide(admitted(2, opportunistic=True)))
    assert found[Stage.OPPORTUNISTIC] == [JobBound]
    decide(started("j1", 1, "node-1"))
    found = reported(decide, decide(exited("j1", 1, "node-1")))
    assert found[Stage.INTAKE] == [MemberGone, JobEnded]


def test_a_stage_without_room_is_full_and_the_last_one() -> None:
    decide = allocator(nlp=1000)
    decide.thorough = False
    for number in range(1, 251):
        decide(admitted(number))
    decide(joined(gpus=300, cpus=0, ports=(20000, 20999)))
    reports = {report.stage: report.progress for report in decide.machine.tx.reports()}
    assert reports[Stage.GUARANTEED] == (MEMBERS_BOUND_MAX, True)
    assert Stage.IDLE not in reports  # Though jobs wait.
    decide.tick()
    reports = {report.stage: report.progress for report in decide.machine.tx.reports()}
    assert reports[Stage.GUARANTEED] == (250 - MEMBERS_BOUND_MAX, False)


def test_an_error_names_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = allocator(nlp=4)

    def broken(*_: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(packing, "follow", broken)
    decide.machine.tx.soft.reshare = dict.fromkeys(["j1"])
    with pytest.raises(AssertionError) as caught:
        decide(joined())
    assert caught.value.__notes__ == [f"in the stage SHARING: {Stage.SHARING.value}"]


def test_the_stages_come_in_the_order_in_which_they_are_described() -> None:
    order = list(Stage)
    named = [stage for stage, _, _ in STAGES]
    assert named == [stage for stage in order if stage in named]


def test_no_stage_has_input_where_the_quick_look_says_so() -> None:
    """`any_input` stands for all stages: each collection that has something in it is tried."""
    job = SimpleNamespace()

    def stages(part: str, name: str, value: object) -> tuple[bool, bool]:
        tx = Transaction()
        tx.soft.planned_for = tx.state.cells.cluster
        if name:
            setattr(getattr(tx, part), name, value)
        tx.state.borrowed |= tx.state.lent  # A job that was lent GPUs borrows them.
        return any(has_input(tx) for _, has_input, _ in STAGES), any_input(tx)

    fresh = Transaction()
    assert stages("", "", None) == (False, False)
    seen = 0
    for part in ("soft", "state"):
        for name, value in vars(getattr(fresh, part)).items():
            if isinstance(value, dict):
                some, quick = stages(part, name, {"x": job})
                assert quick or not some, name
                seen += some
    assert stages("soft", "advice_until", 1) == (True, True)
    assert seen >= 6
