"""Decisions at one instant that undo each other: the run ends with an error, and not never."""

from __future__ import annotations

import re
from typing import ClassVar

import pytest

from skep.machines.allocator.policies.policy_memory import Planned
from skep.machines.base import Send
from skep.policy.api import Policy
from skep.policy.plan import Plan, Preempt, Turn
from skep.policy.registry import POLICIES
from skep.policy.view import HOLDING, Phase, VcView
from skep.units import seconds
from skep.wire.reasons import Reason
from skep_lab.simulator.build import uniform
from skep_lab.simulator.circles import EMPTY_MAX, UNWATCHED, CircleError, Circles
from skep_lab.simulator.ledger import BEGIN
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady

CAN = ("suspend", "release")


class Fickle(Policy, frozen=True):
    """Whoever runs has to go, and whoever waits has a turn."""

    name: ClassVar[str] = "fickle"
    source: ClassVar[str] = "a test"

    def plan(self, view: VcView) -> Plan:
        goes = (job.job for job in view.jobs if job.phase is Phase.RUNNING)
        turns = (job.job for job in view.jobs if job.phase not in HOLDING)
        return Plan(
            turns=tuple(Turn(name, Reason.ARRIVAL) for name in turns),
            strict=False,
            actions=tuple(Preempt(name, Reason.OUTRANKED) for name in goes),
        )


@pytest.fixture(autouse=True)
def _tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, Fickle.name, Fickle)


def play() -> list[int]:
    trace = Trace(
        name="t",
        jobs=tuple(
            TraceJob(id=str(n), at=seconds(n), run_time=seconds(20), gpus=4) for n in range(3)
        ),
    )
    ruled = Settings(can=CAN, policies={"all": ("fickle", {})})
    return [job.suspended for job in run(trace, uniform(1, 8), ruled, Steady()).jobs]


def test_jobs_under_a_policy_that_never_lets_them_be_end_all_the_same() -> None:
    """Each runs for a second at least before it has to go again."""
    suspended = play()
    assert max(suspended) > 1
    assert max(suspended) <= 21


def test_a_circle_is_an_error_that_names_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planned, "rests", lambda *_: False)
    with pytest.raises(
        CircleError, match=re.escape("at 0 s of the trace there is no end of changes of j1")
    ):
        play()


def test_an_allocator_that_asks_to_go_on_and_decides_nothing_is_an_error() -> None:
    circles = Circles()
    circles.begin()
    for _ in range(UNWATCHED + EMPTY_MAX):
        circles.note([], BEGIN, asked=True)
    circles.begin()  # Another event.
    for _ in range(UNWATCHED + EMPTY_MAX):
        circles.note([Send("skep", None)], BEGIN, asked=True)
    with pytest.raises(CircleError, match="decides nothing"):
        circles.note([], BEGIN, asked=True)
