"""Turns that begin an elastic job with another number of workers than its spec says."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from skep.ledger.job_state import State
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Restarted, Send
from skep.policy.api import Policy
from skep.policy.plan import Plan, Turn
from skep.policy.registry import POLICIES
from skep.policy.view import Phase, VcView
from skep.wire.admin import SetVcs
from skep.wire.changes import AskResize
from skep.wire.cluster import VirtualCluster
from skep.wire.commands import BindJob
from skep.wire.facts import CellsAlarm, JobBound, JobRequeued
from skep.wire.node import Outcome
from skep.wire.reasons import Reason
from skep.wire.spec import Elastic
from tests.kit import Driver, admitted, allocator, exited, facts_of, joined, started
from tests.unit.test_allocator_changes import ask, changed, known, told


class Begins(Policy, frozen=True):
    """Every waiting job begins with `workers`."""

    name: ClassVar[str] = "begins"
    source: ClassVar[str] = "a test"
    workers: int = 1

    def plan(self, view: VcView) -> Plan:
        waiting = [job for job in view.jobs if job.phase is Phase.WAITING]
        return Plan(turns=tuple(Turn(job.job, Reason.ARRIVAL, (), self.workers) for job in waiting))


class Splits(Policy, frozen=True):
    """Every waiting job begins with `workers` on `nodes`, with `each` of them on a node."""

    name: ClassVar[str] = "splits"
    source: ClassVar[str] = "a test"
    nodes: tuple[str, ...] = ()
    workers: int = 1
    each: int = 0

    def plan(self, view: VcView) -> Plan:
        waiting = [job for job in view.jobs if job.phase is Phase.WAITING]
        return Plan(
            turns=tuple(
                Turn(job.job, Reason.ARRIVAL, self.nodes, self.workers, self.each)
                for job in waiting
            )
        )


@pytest.fixture(autouse=True)
def _tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, Begins.name, Begins)
    monkeypatch.setitem(POLICIES, Splits.name, Splits)


def placed(each: int, *, busy: int = 0, workers: int = 4) -> dict[str, int]:
    """Return the GPUs by node of a job that begins on two nodes of four GPUs.

    Args:
        each: How many workers a node may have.
        busy: GPUs of the first node that another job has.
        workers: How many workers it begins with.
    """
    decide = allocator(joined("node-1", 4), joined("node-2", 4))
    if busy:
        given: dict[str, Any] = {"gpus": busy, "workers": 1}
        decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=1000)}))
        decide(admitted(1, **given))
    options = {"nodes": ["node-1", "node-2"], "workers": workers, "each": each}
    decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=1000, policy="splits", options=options)}))
    decide(admitted(2, gpus=1, workers=1, elastic=Elastic(min=1, max=8)))
    decide.machine.check()
    members = decide.machine.state.jobs["j2"].members
    return {name: sum(map(len, member.devices)) for name, member in members.items()}


@pytest.mark.parametrize("busy", [0, 1, 2])
def test_a_turn_may_ask_for_equally_many_workers_on_each_node(busy: int) -> None:
    assert placed(2, busy=busy) == {"node-1": 2, "node-2": 2}


def test_without_that_the_cells_choose_how_many() -> None:
    assert placed(0) == {"node-1": 4}


def test_a_turn_on_nodes_with_too_little_room_waits_for_them() -> None:
    assert placed(2, busy=3) == {}


def test_more_workers_than_the_spec_has_may_be_on_a_node_of_the_turn() -> None:
    assert placed(0, workers=6) == {"node-1": 4, "node-2": 2}


def under(workers: int, **more: Any) -> tuple[Driver[AllocatorMachine], list[Any]]:
    """Return an allocator of four GPUs, and what followed from the job j1 of three workers."""
    decide = allocator(joined("node-1", 4))
    options = {"workers": workers}
    decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=1000, policy="begins", options=options)}))
    given: dict[str, Any] = {"gpus": 1, "workers": 3, "elastic": Elastic(min=1, max=4)} | more
    return decide, decide(admitted(1, **given))


def test_a_job_begins_with_the_workers_of_its_turn_and_is_resized_from_there() -> None:
    decide, effects = under(1)
    (bound,) = (fact for fact in facts_of(effects) if isinstance(fact, JobBound))
    assert [member.devices for member in bound.members] == [((0,),)]
    (bind,) = (each.message for each in effects if isinstance(each, Send))
    assert isinstance(bind, BindJob)
    assert len(bind.ranks) == 1
    job = decide.machine.state.jobs["j1"]
    assert job.size == 1
    assert next(iter(decide.machine.state.cells.holds.values())).gpus == 1
    decide(started("j1"))
    decide(known("j1", can=("resize",)))
    (command,) = told(decide(ask(2, AskResize(job="j1", workers=4))))
    decide(changed(command))
    assert job.size == 4
    decide.machine.check()


def test_the_next_attempt_has_the_workers_of_its_own_turn() -> None:
    decide, _ = under(2)
    decide(started("j1"))
    effects = decide(exited("j1", outcome=Outcome.PORT_BUSY))
    assert [type(fact) for fact in facts_of(effects)][-2:] == [JobRequeued, JobBound]
    assert decide.machine.state.jobs["j1"].size == 2


def test_a_restart_knows_how_many_workers_began() -> None:
    decide, _ = under(2)
    again = AllocatorMachine()
    for fact in decide.machine.snapshot():
        again.apply(fact)
    again.decide(Restarted(1), decide.now)
    job = again.state.jobs["j1"]
    assert (job.state, job.size) == (State.BOUND, 2)
    again.check()


@pytest.mark.parametrize("workers, more", [(5, {}), (2, {"elastic": None})])
def test_a_size_that_the_spec_does_not_allow_is_told_as_the_policys_mistake(
    workers: int, more: dict[str, Any]
) -> None:
    decide, effects = under(workers, **more)
    (alarm,) = (fact for fact in facts_of(effects) if isinstance(fact, CellsAlarm))
    assert alarm.rule is Reason.NOT_ITS_JOB
    assert f"its spec does not allow {workers} workers" in alarm.text
    assert decide.machine.state.jobs["j1"].state is State.QUEUED
