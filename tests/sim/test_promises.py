"""Promises in simulated clusters: kept, with a cause where not, and at no other VC's cost."""

from __future__ import annotations

import pytest

from skep.units import seconds
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Settings
from skep_lab.studies.promises import CAN, COSTS, JUDGED, KEPT_LEAST, KINDS, play
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady
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


def test_an_elastic_job_makes_room_for_a_promise_and_is_not_stopped() -> None:
    nodes = (NodeCell(node="n0"),)
    chain = Chain(
        gpu="v100", levels=(Level(name="node", fanout=8),), node_level="node", nodes=nodes
    )
    vc = VirtualCluster(cells=(Quota(chain="v100", level="node", count=1),), policy="deadline")
    wide = TraceJob(
        id="wide",
        at=seconds(0),
        gpus=8,
        workers=8,
        workers_min=2,
        workers_max=8,
        vc="a",
        run_time=seconds(7200),
        mini_batches=7200,
    )
    promised = TraceJob(
        id="promised",
        at=seconds(600),
        gpus=4,
        vc="a",
        run_time=seconds(1200),
        said_time=seconds(1200),
        deadline=seconds(3000),
    )
    settings = Settings(
        costs=COSTS, deadlines="spec", can=(*CAN, "resize"), over_quota="wait", hints="none"
    )
    trace = Trace(name="shrink", jobs=(wide, promised))
    cluster = Cluster(chains={"v100": chain}, vcs={"a": vc})
    first, second = run(trace, cluster, settings, Steady()).jobs
    assert [span.gpus for span in first.spans] == [8, 4, 8]
    assert (first.preempted, first.suspended, first.resized) == (0, 0, 2)
    assert second.ended is not None
    assert promised.deadline is not None
    assert second.ended <= promised.deadline
