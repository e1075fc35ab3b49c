"""The simulated cluster: traces through the production machines, on a virtual clock."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice

import msgspec
import pytest

from skep.units import after, seconds
from skep.wire.admin import DrainNode
from skep.wire.cluster import PersonLimits
from skep.wire.facts import JobRan, JobRequeued
from skep.wire.reasons import Reason
from skep_lab.outcome import RunResult
from skep_lab.simulator.build import of_types, uniform
from skep_lab.simulator.ledger import BEGIN, Ledger
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import AT_ONCE, FIRST_NODE, Costs, Settings
from skep_lab.simulator.work import Work
from skep_lab.simulator.world import World
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Situation, Steady
from skep_services.simulations.order import Order, play


def test_a_run_ends_where_a_job_waits_for_what_its_policy_never_gives() -> None:
    """Two families share eight GPUs, and the larger job is larger than its part for ever."""
    jobs = [
        TraceJob(id=name, at=seconds(0), run_time=seconds(5), gpus=gpus, model=name)
        for name, gpus in (("a", 2), ("b", 8))
    ]
    settings = Settings(policies={"all": ("capacity-per-model", {"shares": [["a", 1], ["b", 1]]})})
    result = run(Trace(name="t", jobs=tuple(jobs)), uniform(1, 8), settings, Steady())
    assert result.cut
    assert [job.ended for job in result.jobs] == [seconds(5), None]


def test_users_of_a_trace_share_by_drf() -> None:
    """The user of a job is the label by which `drf` shares: ada has a GPU, so bo is next."""
    jobs = [
        TraceJob(id=name, at=seconds(at), run_time=seconds(run_s), gpus=1, user=user)
        for name, at, run_s, user in (
            ("a", 0, 100, "ada"),
            ("b", 0, 10, "ada"),
            ("c", 1, 10, "ada"),
            ("d", 2, 10, "bo"),
        )
    ]
    settings = Settings(policies={"all": ("drf", {})})
    result = run(Trace(name="t", jobs=tuple(jobs)), uniform(1, 2), settings, Steady())
    assert [job.began for job in result.jobs] == [0, 0, seconds(20), seconds(10)]


def test_a_job_that_has_begun_makes_room_under_the_limit_of_its_person() -> None:
    """One job of ada may wait: c is refused, as b still does; d is not, as b has begun."""
    cluster = uniform(1, 1)
    limited = msgspec.structs.replace(cluster.vcs["all"], limits=PersonLimits(queued=1))
    cluster = msgspec.structs.replace(cluster, vcs={"all": limited})
    jobs = [
        TraceJob(id=name, at=seconds(at), run_time=seconds(10), gpus=1, user="ada")
        for name, at in (("a", 0), ("b", 1), ("c", 2), ("d", 11))
    ]
    result = run(Trace(name="t", jobs=tuple(jobs)), cluster, Settings(), Steady())
    assert [one.began for one in result.jobs] == [0, seconds(10), None, seconds(20)]
    assert "have not begun" in result.jobs[2].refused


def test_jobs_run_one_after_the_other_where_only_one_fits() -> None:
    trace = Trace(name="two", jobs=(job("a", 0, 100, 8), job("b", 10, 50, 8)))
    result = run(trace, uniform(1, 8), Settings(), Steady())
    first, second = result.jobs
    assert (first.began, first.ended, first.waited) == (0, seconds(100), 0)
    assert (second.began, second.ended, second.waited) == (seconds(100), seconds(150), seconds(90))
    assert [span.spread for span in second.spans] == [(8,)]
    assert (result.events, result.gpus, result.cut) == (4, 8, False)


def test_a_job_larger_than_a_node_gets_whole_nodes() -> None:
    trace = Trace(name="gang", jobs=(job("a", 0, 10, 1), job("b", 0, 10, 16)))
    result = run(trace, uniform(3, 8), Settings(), Steady())
    assert [each.spans[0].spread for each in result.jobs] == [(1,), (8, 8)]


def test_a_start_costs_time_that_is_no_progress() -> None:
    trace = Trace(name="one", jobs=(job("a", 0, 100, 1),))
    result = run(trace, uniform(1, 8), Settings(costs=Costs(start_s=7)), Steady())
    assert result.jobs[0].ended == seconds(107)


def test_what_no_node_can_hold_is_refused_with_the_reason() -> None:
    tied = TraceJob(id="a", at=seconds(0), run_time=seconds(1), gpus=1, gpu_type="h100", tied=True)
    large = job("b", 0, 1, 64)
    result = run(
        Trace(name="bad", jobs=(tied, large)), of_types({"v100": 2, "k80": 2}), Settings(), Steady()
    )
    assert "h100" in result.jobs[0].refused
    assert "64 GPUs" in result.jobs[1].refused
    assert not result.cut


class Halting(Steady):
    """Nothing runs on a K80, not even a mini-batch."""

    def speed(self, job: TraceJob, where: Situation) -> float:
        return float(where.gpu_type != "k80")


@pytest.mark.parametrize("policy", ["fifo", "packing"])
def test_no_job_goes_where_its_speed_is_nothing(policy: str) -> None:
    """It would hold the GPUs for ever."""
    cluster = of_types({"k80": 1, "v100": 1, "p100": 1}, gpus_per_node=1)
    trace = Trace(name="three", jobs=tuple(job(name, 0, 10, 1) for name in "abc"))
    settings = Settings(policies=dict.fromkeys(cluster.vcs, (policy, {})))
    result = run(trace, cluster, settings, Halting())
    assert [each.ended for each in result.jobs] == [seconds(10), seconds(10), seconds(20)]
    (lost,) = run(
        Trace(name="one", jobs=(job("a", 0, 10, 1),)), of_types({"k80": 1}), Settings(), Halting()
    ).jobs
    assert "one on which its speed is not 0" in lost.refused


def test_a_run_that_is_cut_says_so_and_tells_what_ran() -> None:
    trace = Trace(name="long", jobs=(job("a", 0, 100, 8), job("b", 10, 50, 8)))
    result = run(trace, uniform(1, 8), Settings(until=seconds(60)), Steady())
    assert result.cut
    assert result.jobs[0].ended is None
    assert result.jobs[0].spans[0].ended_by == "cut"
    assert result.jobs[1].waited == seconds(50)


@pytest.mark.parametrize("policy", ["fifo", "gandiva", "las"])
def test_a_run_in_which_nothing_more_can_happen_ends(policy: str) -> None:
    """Whatever the policy looks at now and then: the only node is drained, and stays so."""
    trace = Trace(name="stuck", jobs=(job("a", 0, 100, 8), job("b", 10, 50, 8)))
    world = World(
        trace,
        uniform(1, 8),
        Settings(policies={"all": (policy, {})}),
        Steady(),
        [(seconds(5), DrainNode(node="v100-0"))],
    )
    steps = sum(1 for _ in islice(world.steps(), 5000))
    assert (world.ledger.open > 0, world.ledger.running) == (True, 0)
    assert steps < 5000
    assert world.ledger.entries["j2"].queued_at


def test_waiting_while_a_borrower_is_stopped_makes_nobody_worse_off() -> None:
    costs = Settings(costs=Costs(stop_s=60))
    order = Order(
        label="x",
        policy="",
        shape="",
        cluster=uniform(2, 8, vcs={"a": 1, "b": 1}),
        settings=costs,
        audited=True,
    )
    trace = Trace(name="t", jobs=(job("a", 0, 100, 8, vc="a"),))
    found = play(order, trace, Steady(), lambda over, jobs: True).audit
    assert found is not None
    assert found.slack_s == 60


def test_only_who_made_room_was_preempted() -> None:
    ledger = Ledger({"j1": Work(job("a", 0, 100, 8))})
    for number, why in enumerate((Reason.NODE_STOPPED, Reason.PREEMPTED_BY_POLICY), 1):
        ledger.note(JobRan(job="j1", attempt=number, at=BEGIN), after(BEGIN, seconds(number)))
        gone = JobRequeued(job="j1", attempt=number, why=why, counted=False, at=BEGIN)
        ledger.note(gone, after(BEGIN, seconds(number + 0.5)))
    entry = ledger.entries["j1"]
    assert [span.ended_by for span in entry.spans] == ["node-stopped", "preempted"]
    assert entry.preempted == 1


SCRIPT = """
import random, sys
import msgspec
from skep_lab.simulator.build import of_types
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.traces.job import Trace, TraceJob
from skep.units import seconds
from skep_lab.workloads.situation import Steady
rng = random.Random("same bytes")
jobs = [TraceJob(id=f"t{n}", at=seconds(20 * n), run_time=seconds(rng.uniform(1, 900)),
                 gpus=rng.choice((1, 1, 2, 4, 8, 16)), vc=rng.choice("ab"),
                 opportunistic=rng.random() < 0.3) for n in range(80)]
cluster = of_types({"v100": 3, "k80": 2}, vcs={"a": {"v100": 2}, "b": {"v100": 1, "k80": 2}})
settings = Settings(seed=3, noise=0.1, costs=Costs(start_s=5, stop_s=2, checkpoint_every_s=60),
                    sample_every_s=60, samples_by_vc=True)
result = run(Trace(name="t", jobs=tuple(jobs)), cluster, settings, Steady())
sys.stdout.buffer.write(msgspec.json.encode(result))
"""


def test_the_same_run_is_the_same_bytes_whatever_strings_hash_to() -> None:
    first, second = (
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    )
    result = msgspec.json.decode(first, type=RunResult)
    assert first == second
    assert len(result.samples) > 10
    assert any(each.preempted for each in result.jobs)


def test_helios_quirks_decide_whatever_happens_at_one_instant_at_once() -> None:
    """Two jobs end together: the next is placed where it fits best once both are known."""
    jobs = (job("a", 0, 100, 8), job("b", 1, 99, 4), job("c", 2, 200, 2), job("d", 3, 50, 2))
    trace = Trace(name="t", jobs=(*jobs, job("e", 4, 50, 2)))
    plain = run(trace, uniform(2, 8), Settings(), Steady())
    quirky = run(trace, uniform(2, 8), Settings(compat=frozenset({AT_ONCE, FIRST_NODE})), Steady())
    assert plain.jobs[4].ended == quirky.jobs[4].ended
    with pytest.raises(ValueError, match="no compat switch"):
        Settings(compat=frozenset({"helios"}))


def job(name: str, at_s: float, lasts_s: float, gpus: int, vc: str = "") -> TraceJob:
    return TraceJob(id=name, at=seconds(at_s), run_time=seconds(lasts_s), gpus=gpus, vc=vc)
