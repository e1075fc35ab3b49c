"""Gandiva's time-slicing in the simulated cluster: production allocator, with what swaps cost.

A suspension costs 0.65 s and a return 0.21 s: the slowest of those measured for 209 MB of state.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from skep.units import seconds
from skep.wire.cluster import Cluster
from skep_lab.measures.job import hundred
from skep_lab.outcome import RunResult
from skep_lab.simulator.build import uniform
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady

COSTS = Costs(suspend_s=0.65, resume_s=0.21)
LONG = 10**6
HOURS = 4 * 3600


def job(name: str, at: float = 0, run_time: float = LONG, gpus: int = 1, **more: Any) -> TraceJob:
    return TraceJob(id=name, at=seconds(at), run_time=seconds(run_time), gpus=gpus, **more)


def sliced(
    jobs: list[TraceJob],
    cluster: Cluster,
    until: float = HOURS,
    policy: str = "gandiva",
    can: tuple[str, ...] | None = None,
    *,
    lent: bool = False,
) -> RunResult:
    settings = Settings(
        policies=dict.fromkeys(cluster.vcs, (policy, {})),
        costs=COSTS,
        until=seconds(until),
        can=can,
        over_quota="opportunistic" if lent else "wait",
    )
    return run(Trace(name="t", jobs=tuple(jobs)), cluster, settings, Steady())


def had(result: RunResult, begin: float = 0, end: float = HOURS) -> list[float]:
    """Return for what part of the time each job had GPUs."""
    window = seconds(begin), seconds(end)
    return [
        sum(max(0, min(span.ended, window[1]) - max(span.began, window[0])) for span in each.spans)
        / (window[1] - window[0])
        for each in result.jobs
    ]


def test_six_jobs_on_four_gpus_share_and_lose_less_than_two_per_cent() -> None:
    """Gandiva, figure 9, for four hours."""
    result = sliced([job(f"j{number}") for number in range(6)], uniform(1, 4))
    assert had(result) == pytest.approx([4 / 6] * 6, rel=0.01)
    done = sum(
        span.ended - span.began if span.useful is None else span.useful
        for each in result.jobs
        for span in each.spans
    )
    assert done / (4 * seconds(HOURS)) >= 0.98


def test_figure_nine() -> None:
    """Two short jobs come at 25 min: all have 4/6 soon, and the others everything after them."""
    long = [job(f"l{number}") for number in range(4)]
    short = [job(f"s{number}", at=1500, run_time=1200) for number in range(2)]
    result = sliced([*long, *short], uniform(1, 4))
    assert had(result, 0, 1500) == [1.0] * 4 + [0.0] * 2
    assert had(result, 2100, 3000) == pytest.approx([4 / 6] * 6, rel=0.03)
    last = max(each.ended for each in result.jobs if each.ended is not None)
    assert had(result, last / 1e9 + 60)[:4] == [1.0] * 4
    assert all(
        each.began - each.job.at <= seconds(61) for each in result.jobs if each.began is not None
    )


def test_gangs_on_two_nodes_swap_as_one() -> None:
    """Three gangs of two, on nodes of one GPU: only whole gangs come and go, at one instant."""
    gangs = [job(f"g{number}", gpus=2, workers=2) for number in range(3)]
    result = sliced(gangs, uniform(2, 1))
    assert had(result) == pytest.approx([1 / 3] * 3, rel=0.03)
    spans = sorted((span for each in result.jobs for span in each.spans), key=lambda s: s.began)
    assert all(span.spread == (1, 1) for span in spans)
    assert all(one.ended <= other.began for one, other in pairwise(spans))


def test_no_gpu_stands_idle_where_jobs_need_the_very_gpus_they_had() -> None:
    """As jobs on CUDA do. Two GPUs have two jobs each, which share them alike."""
    result = sliced(
        [job(f"j{number}") for number in range(6)], uniform(1, 4), can=("suspend", "release")
    )
    assert sorted(had(result)) == pytest.approx([0.5] * 4 + [1.0] * 2, rel=0.02)


def test_a_suspended_job_moves_to_a_gpu_that_was_vacated() -> None:
    """The cluster's height falls to 1 with the departure."""
    jobs = [job("a"), job("b", run_time=600), job("c", at=30)]
    result = sliced(jobs, uniform(2, 1))
    gone = result.jobs[1].ended
    assert gone == seconds(600)  # It shared with nobody.
    assert had(result, 60, 600) == pytest.approx([0.5, 1, 0.5], rel=0.15)
    assert had(result, 610) == [1.0, 0.0, 1.0]
    assert [each.migrated for each in result.jobs].count(1) == 1


def test_priorities_go_first_and_the_rest_is_shared() -> None:
    low = [job(f"l{number}") for number in range(4)]
    high = [job(f"h{number}", at=1000, priority=5) for number in range(3)]
    result = sliced([*low, *high], uniform(1, 4))
    assert had(result, 1100) == pytest.approx([0.25] * 4 + [1.0] * 3, rel=0.03)


def test_other_sizes_take_turns_too() -> None:
    """Five small ones are never all due at once: a gang of four comes within two slices."""
    small = [job(f"s{number}") for number in range(5)]
    result = sliced([*small, job("g", at=100, gpus=4)], uniform(1, 4))
    began = result.jobs[5].began
    assert began is not None
    assert began <= seconds(100 + 121)
    assert had(result) == pytest.approx([4 / 9] * 6, rel=0.03)


def test_a_vc_is_none_of_another_ones_business() -> None:
    """However many take turns in one, each job of the other is alone with its cells."""
    crowd = [job(f"c{number}", at=number, vc="a") for number in range(9)]
    alone = [job(f"o{number}", at=100, vc="b") for number in range(4)]
    result = sliced([*crowd, *alone], uniform(2, 4, vcs={"a": 1, "b": 1}))
    assert had(result, 101)[9:] == pytest.approx([1.0] * 4)
    assert had(result)[:9] == pytest.approx([4 / 9] * 9, rel=0.02)


def test_early_feedback() -> None:
    """Time to 100 mini-batches of jobs that find everything taken, against a queue."""
    old = [job(f"o{number}", run_time=7200, mini_batches=7200) for number in range(8)]
    new = [
        job(f"n{number}", at=600 + 300 * number, run_time=600, mini_batches=600)
        for number in range(8)
    ]
    means = {}
    for policy in ("gandiva", "fifo"):
        result = sliced([*old, *new], uniform(2, 4), until=20_000, policy=policy)
        times = [took for each in result.jobs[8:] if (took := hundred(each)) is not None]
        assert len(times) == len(new)
        means[policy] = sum(times) / len(times)
    assert means["gandiva"] <= 0.1 * means["fifo"]


def test_who_borrows_has_its_first_turn_at_home_as_soon_as_alone() -> None:
    """The owners come back at once: who is put out is as new in its VC as if it had not run."""
    crowd = [job(f"c{number}", vc="a", mini_batches=10 * LONG) for number in range(8)]
    owners = [job(f"o{number}", at=5, vc="b") for number in range(4)]
    result = sliced([*crowd, *owners], uniform(2, 4, vcs={"a": 1, "b": 1}), 600, lent=True)
    alone = sliced(crowd, uniform(1, 4, vcs={"a": 1}), 600)
    assert had(result, 5, 600)[8:] == pytest.approx([1] * 4, abs=0.01)
    assert had(result, 6, 600)[:8] == pytest.approx(had(alone, 6, 600), abs=0.02)
    for ours, theirs in zip(result.jobs, alone.jobs, strict=False):
        soon, as_alone = hundred(ours), hundred(theirs)
        assert soon is not None
        assert as_alone is not None
        assert soon <= as_alone


def test_a_gang_goes_on_at_home_though_others_wait_for_what_is_idle() -> None:
    """Its node is left by four in turn: nobody borrows what the first of them leaves."""
    mine = [job("g", vc="a", gpus=4), *(job(f"s{number}", at=70, vc="a") for number in range(4))]
    crowd = [job(f"c{number}", vc="b") for number in range(10)]
    result = sliced([*mine, *crowd], uniform(2, 4, vcs={"a": 1, "b": 1}), 3600, lent=True)
    alone = sliced(mine, uniform(1, 4, vcs={"a": 1}), 3600)
    assert had(result, 0, 3600)[:5] == pytest.approx(had(alone, 0, 3600), abs=0.02)
