"""A simulation is given a policy made in Python: it has no name in a cluster file."""

from __future__ import annotations

from typing import ClassVar

import pytest

from skep.policy.api import Policy
from skep.policy.parts import queued
from skep.policy.plan import Plan, Turn
from skep.policy.registry import POLICIES
from skep.policy.view import VcView
from skep.units import seconds
from skep.wire.reasons import Reason
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady


class LastFirst(Policy, frozen=True):
    """The job that came last goes first."""

    name: ClassVar[str] = "last-first"
    source: ClassVar[str] = "this test"

    def plan(self, view: VcView) -> Plan:
        turns = [Turn(job.job, Reason.ARRIVAL) for job in reversed(queued(view))]
        return Plan(turns=tuple(turns))


def trace() -> Trace:
    jobs = [TraceJob(id=f"t{n}", at=seconds(n), run_time=seconds(100), gpus=8) for n in range(4)]
    return Trace(name="four", jobs=tuple(jobs))


def begins(**given: Policy) -> list[float]:
    found = run(trace(), uniform(1, 8), Settings(), Steady(), policies=given)
    assert not found.cut
    return [job.began / 1e9 for job in found.jobs if job.began is not None]


def test_a_given_policy_decides_instead_of_the_clusters_and_needs_no_name() -> None:
    assert begins() == [0.0, 100.0, 200.0, 300.0]
    assert begins(**{ALL: LastFirst()}) == [0.0, 300.0, 200.0, 100.0]
    assert LastFirst.name not in POLICIES
    found = run(trace(), uniform(1, 8), Settings(), Steady(), policies={ALL: LastFirst()})
    assert found.policy == "last-first"


def test_a_policy_is_given_to_a_vc_that_exists() -> None:
    with pytest.raises(ValueError, match="no VC is called 'some'; there are: all"):
        begins(some=LastFirst())
