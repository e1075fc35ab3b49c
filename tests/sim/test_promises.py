"""Promises in simulated clusters: kept, with a cause where not, and at no other VC's cost."""

from __future__ import annotations

import pytest

from skep_lab.studies.promises import JUDGED, KEPT_LEAST, KINDS, play
from tests import effort

WORKLOADS = [("all", 9), ("right", 0), ("faults", 3), ("bursts", 2)]


@pytest.mark.parametrize("workload", effort.slow_after(1, WORKLOADS), ids=str)
def test_promises_are_kept_and_cost_other_tenants_nothing(workload: tuple[str, int]) -> None:
    found = play(*workload)
    assert found.promises > 50, workload
    assert found.kept >= KEPT_LEAST * found.promises, (workload, found.told)
    assert sum(found.broken.values()) == len(found.told)
    assert found.unfinished == 0
    assert found.anomalies == 0


def test_a_tenant_to_which_all_is_urgent_stays_within_its_budget() -> None:
    found = play("greedy", 6)
    urgent = found.urgent
    assert urgent is not None
    assert urgent.made_normal > 100
    assert urgent.within >= 0.9 * urgent.promised > 0, urgent
    assert 0.03 < found.used["urgent"] < 0.055, found.used


def test_the_judged_workloads_are_not_those_for_tuning() -> None:
    assert len(JUDGED) >= 10
    assert {kind for kind, _ in JUDGED} == set(KINDS)
    assert all(seed >= 100 for _, seed in JUDGED)
