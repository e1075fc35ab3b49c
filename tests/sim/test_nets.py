"""Bugs planted in the machines: the simulator must notice each. It proves that the nets hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.cells.nodes import NodeState
from skep.machines.admission import AdmissionMachine
from skep.machines.agent import AgentMachine
from skep.machines.allocator import AllocatorMachine, dispatch
from skep.sim.history import run_seed
from skep.sim.world import Settings
from skep.wire.facts import MemberGone, StopTaken

SEEDS_MAX = 60
"""Within how many histories a planted bug must show."""


def noticed() -> str:
    """Return the first broken invariant, over as many seeds as it takes."""
    for seed in range(SEEDS_MAX):
        result = run_seed(seed, Settings())
        if result.violation:
            return result.invariant
    return ""


def test_commands_that_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.Soft, "remind", lambda *_: None)
    assert noticed() == "I10"


def test_commands_that_are_forgotten_in_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "restarted", lambda machine, now: None)
    assert noticed() == "I10"


def test_keys_that_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = AdmissionMachine._answered

    def forgetful(self: AdmissionMachine, job: str, vc: str, key: str) -> None:
        del key
        answered(self, job, vc, "")

    monkeypatch.setattr(AdmissionMachine, "_answered", forgetful)
    assert noticed() == "I9"


def test_gpus_of_a_lost_node_that_count_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    record = AllocatorMachine.record

    def careless(self: AllocatorMachine, fact: Any) -> None:
        if isinstance(fact, MemberGone) and not fact.free:
            fact = msgspec.structs.replace(fact, free=True)
        record(self, fact)

    monkeypatch.setattr(AllocatorMachine, "record", careless)
    assert noticed() in {"I2", "I4"}


def test_a_floor_that_the_agent_does_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = AgentMachine._bind

    def trusting(self: AgentMachine, command: Any) -> None:
        floor, self.floor = self.floor, 0
        bind(self, command)
        self.floor = max(floor, self.floor)

    monkeypatch.setattr(AgentMachine, "_bind", trusting)
    assert noticed() in {"I0", "I2", "I4"}


def test_a_name_taken_back_that_is_used_before_it_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeState, "usable", property(lambda node: not (node.lost or node.drained)))
    assert noticed() == "I2"


def test_a_stop_for_an_unknown_attempt_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = AgentMachine._stop

    def lazy(self: AgentMachine, command: Any, now: Any) -> None:
        if (command.job, command.attempt) in self.parts:
            stop(self, command, now)

    monkeypatch.setattr(AgentMachine, "_stop", lazy)
    assert noticed() == "I10"


def test_a_snapshot_that_leaves_something_out(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = AgentMachine.snapshot

    def short(self: AgentMachine) -> list[Any]:
        return [fact for fact in snapshot(self) if not isinstance(fact, StopTaken)]

    monkeypatch.setattr(AgentMachine, "snapshot", short)
    assert noticed() in {"I0", "I7"}


def test_a_gpu_counted_in_no_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AllocatorMachine, "_count", lambda *_: None)
    monkeypatch.setattr(AllocatorMachine, "check", lambda _: None)
    assert noticed() == "I8"


def test_processes_that_are_never_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentMachine, "_stop_ranks", lambda *_: None)
    assert noticed() == "I10"
