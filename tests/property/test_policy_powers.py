"""What policies say that they do and go by is what they do and go by."""

from typing import Any

import pytest
from hypothesis import given, settings

from skep.policy.plan import Migrate, Pack, Preempt, Resize, Suspend
from skep.policy.registry import make
from skep.policy.view import VcView
from skep.units import seconds
from skep_lab.outcome import RunResult
from skep_lab.simulator.build import uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import EVERYTHING, Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady
from tests.policy_kit import shown
from tests.property.test_policies import VARIANTS, views

NEEDS = {"suspends": Suspend, "moves": Migrate, "packs": Pack, "resizes": Resize}


@pytest.mark.parametrize("name, options", VARIANTS)
@settings(max_examples=12)
@given(seen=views())
def test_a_plan_asks_for_nothing_that_is_not_said(
    name: str, options: dict[str, Any], seen: VcView
) -> None:
    policy = make(name, options)
    powers = policy.powers
    jobs = {each.job: each.spec.priority for each in seen.jobs}
    for action in shown(policy, seen).actions:
        if isinstance(action, Preempt):
            most = max(jobs[turn.job] for turn in shown(policy, seen).turns)
            outranked = powers.priority == "takes" and jobs[action.job] < most
            assert powers.suspends or outranked
        for said, kind in NEEDS.items():
            assert getattr(powers, said) or not isinstance(action, kind), action
    assert policy.sees_rates == powers.rates


def played(
    name: str, options: dict[str, Any], *jobs: TraceJob, hints: Any = "exact", gpus: int = 8
) -> RunResult:
    trace = Trace(name="t", jobs=jobs)
    policies = {"all": (name, options)}
    asked = Settings(policies=policies, can=EVERYTHING, hints=hints)
    return run(trace, uniform(1, gpus), asked, Steady())


def lasting(name: str, at: int, length: int, gpus: int, priority: int = 0) -> TraceJob:
    return TraceJob(id=name, at=seconds(at), run_time=seconds(length), gpus=gpus, priority=priority)


@pytest.mark.parametrize("name, options", VARIANTS)
def test_a_higher_priority_counts_as_much_as_is_said(name: str, options: dict[str, Any]) -> None:
    """A job holds all GPUs for 1,000 s. Another of its kind waits, then one of high priority."""
    jobs = lasting("a", 0, 1000, 8), lasting("b", 10, 1000, 8), lasting("c", 20, 1000, 8, 5)
    began = {each.job.id: each.began for each in played(name, options, *jobs).jobs}
    if began["c"] is None:
        parts = name == "capacity-per-model" or "by_model" in options
        assert parts, "it has no part of the GPUs for it"
        return
    powers = make(name, options).powers
    waits_for = {"takes": 400, "first": 1001, "ignored": 2001}[powers.priority]
    assert seconds(20) <= began["c"] <= seconds(waits_for)
    if powers.priority != "takes" and not powers.resizes:  # Else the first one is made smaller.
        assert began["c"] >= seconds(1000)
    if powers.priority == "ignored":
        assert began["b"] is not None
        assert began["c"] > began["b"]


@pytest.mark.parametrize("name, options", VARIANTS)
def test_who_is_passed_over_is_said(name: str, options: dict[str, Any]) -> None:
    """Half of the GPUs are taken. One job wants all, and a later one that lasts longer a half."""
    jobs = lasting("a", 0, 100, 4), lasting("b", 10, 100, 8), lasting("c", 20, 9000, 4)
    found = {each.job.id: each.began for each in played(name, options, *jobs).jobs}
    if name != "lrf" and found["c"] is not None:  # By size the last one comes first.
        at_once = found["c"] < seconds(100)
        assert at_once == make(name, options).powers.passes


@pytest.mark.parametrize("name, options", VARIANTS)
def test_run_times_matter_only_where_it_is_said(name: str, options: dict[str, Any]) -> None:
    """Six jobs on two GPUs whose lengths fall, with what owners say and without."""
    jobs = [lasting(f"j{n}", n, 400 - 50 * n, 1) for n in range(6)]
    ends = [
        [each.ended for each in played(name, options, *jobs, hints=hints, gpus=2).jobs]
        for hints in ("exact", "none")
    ]
    if not make(name, options).powers.run_times:
        assert ends[0] == ends[1]
    elif not make(name, options).powers.resizes:
        assert ends[0] != ends[1]
