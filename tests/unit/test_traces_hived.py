"""The workload of HiveD: what the paper says of it holds, and the rest is as written down."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise

import msgspec
import pytest

from skep.units import Duration, in_seconds, seconds
from skep_lab.traces.generators import hived
from skep_lab.traces.generators.draw import DAY_S, scaled_to
from skep_lab.traces.generators.hived import TENANTS, Options, assign, fragmentation, generate
from skep_lab.traces.job import Trace, TraceJob

SEED = 3
SMALL = tuple(name for name in TENANTS if name not in {"res-a", "res-d", "prod-a"})
"""Leaves three tenants with few jobs, for what need not be seen of all of them."""


@cache
def whole(reshaped: tuple[str, ...] = ()) -> Trace:
    return generate(SEED, Options(reshaped=reshaped))


def work_by_vc(trace: Trace) -> dict[str, float]:
    work: Counter[str] = Counter()
    for job in trace.jobs:
        work[job.vc] += job.gpus * job.run_time
    return {vc: total / 1e9 for vc, total in work.items()}


def test_it_has_the_jobs_of_table_1() -> None:
    counts: dict[str, Counter[int]] = {name: Counter() for name in TENANTS}
    for job in whole().jobs:
        counts[job.vc][min(job.gpus, 16)] += 1
    found = {vc: tuple(count[size] for size in hived.SIZES) for vc, count in counts.items()}
    assert found == {name: tenant.jobs for name, tenant in TENANTS.items()}
    assert len(whole().jobs) == len({job.id for job in whole().jobs}) == 141_950


def test_every_tenant_has_the_same_load_on_its_gpus_of_1600() -> None:
    for vc, work in work_by_vc(whole()).items():
        share = assign(200)[vc]["node"] * 8 * 60 * DAY_S
        assert work / share == pytest.approx(0.9, rel=1e-3), vc


def test_a_tenants_load_can_be_another_and_nobody_elses_changes() -> None:
    usual = generate(SEED, Options(without=SMALL))
    other = generate(SEED, Options(without=SMALL, loads=("prod-a:0.45",)))
    before, now = work_by_vc(usual), work_by_vc(other)
    assert now["prod-a"] == pytest.approx(before["prod-a"] / 2, rel=1e-3)
    assert {**now, "prod-a": 0} == {**before, "prod-a": 0}
    assert [job.at for job in other.jobs] == [job.at for job in usual.jobs]


def test_days_can_be_steadier() -> None:
    usual = generate(SEED, Options(without=SMALL))
    steady = generate(SEED, Options(without=SMALL, day_sigma=0.0))
    assert len(steady.jobs) == len(usual.jobs)
    busiest = [
        max(Counter(job.at // seconds(DAY_S) for job in trace.jobs if job.vc == "res-d").values())
        for trace in (steady, usual)
    ]
    assert busiest[0] < 0.7 * busiest[1]


@pytest.mark.parametrize("loads", [("prod-x:1",), ("prod-a",), ("prod-a:much",), ("prod-a:0",)])
def test_wrong_loads_are_refused(loads: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"prod-x|NAME:NUMBER|above 0"):
        Options(loads=loads)


def test_jobs_are_in_order_within_two_months_and_of_bounded_length() -> None:
    jobs = whole().jobs
    assert all(before.at <= now.at for before, now in pairwise(jobs))
    assert jobs[0].at >= 0
    assert jobs[-1].at <= seconds(60 * DAY_S)
    assert max(job.run_time for job in jobs) == seconds(10 * DAY_S)
    assert min(job.run_time for job in jobs) >= seconds(1)
    assert {job.gpus for job in jobs} == {1, 2, 4, 8, 16, 32, 64}
    assert all(job.workers == max(1, job.gpus // 8) for job in jobs)


def test_a_seed_is_one_workload_and_another_is_another() -> None:
    few = Options(without=SMALL)
    assert generate(SEED, few) == generate(SEED, few)
    assert generate(SEED, few).jobs != generate(SEED + 1, few).jobs


def test_the_sizes_beyond_16_agree_with_figure_8() -> None:
    assert round(fragmentation(whole(("res-f",))), 2) == 0.91


def test_reshaping_keeps_gpus_and_work() -> None:
    found = whole(("res-f",))
    assert {(job.vc == "res-f", job.gpus) for job in found.jobs} == {(True, 8), (False, 1)}
    before, now = work_by_vc(whole()), work_by_vc(found)
    gpus = Counter[str]()
    for job in whole().jobs:
        gpus[job.vc] += job.gpus
    for job in found.jobs:
        gpus[job.vc] -= job.gpus
    for vc in TENANTS:
        assert abs(gpus[vc]) <= 4
        assert now[vc] == pytest.approx(before[vc], rel=1e-3), vc


def test_the_testbeds_trace_is_a_part_with_models() -> None:
    found = generate(SEED, Options(days=10, part=0.3, models=True, without=SMALL))
    early = [job for job in whole().jobs if job.at < seconds(10 * DAY_S) and job.vc not in SMALL]
    assert 0.25 < len(found.jobs) / len(early) < 0.35
    kinds = Counter(
        next(kind for kind, (_, names) in enumerate(hived.MODELS) if job.model in names)
        for job in found.jobs
    )
    assert kinds[0] > kinds[1] > kinds[2] > 0


def test_soft_jobs_are_gangs_of_single_gpus_and_the_rest_stays_as_it_was() -> None:
    found = generate(SEED, Options(soft=0.5, without=SMALL))
    others = [job for job in whole().jobs if job.vc not in SMALL]
    multi = soft = 0
    for job, was in zip(found.jobs, others, strict=True):
        assert (job.at, job.run_time, job.gpus, job.vc) == (was.at, was.run_time, was.gpus, was.vc)
        if job.gpus > 1:
            multi += 1
            soft += job.workers == job.gpus
            assert job.within == ("node" if job.workers == job.gpus <= 8 else "")
    assert soft / multi == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("nodes", [12, 200, 279])
def test_cells_fit_the_cluster_and_follow_the_quotas(nodes: int) -> None:
    cells = assign(nodes)
    assert list(cells) == list(TENANTS)
    whole_nodes = sum(each.get("node", 0) for each in cells.values())
    singles = sum(each.get("gpu", 0) for each in cells.values())
    assert whole_nodes + -(-singles // 8) == nodes
    for vc, each in cells.items():
        exact = TENANTS[vc].quota / 100 * nodes * 8
        assert abs(8 * each.get("node", 0) + each.get("gpu", 0) - exact) < 8, vc


def test_too_few_nodes_are_refused() -> None:
    with pytest.raises(AssertionError, match="too few"):
        assign(4)


def test_phillys_own_jobs_can_be_drawn_from() -> None:
    jobs = [
        TraceJob(
            id=f"{n}",
            at=seconds(n * 3600),
            run_time=seconds(100 * (1 + n % 3)),
            gpus=(1, 2, 4, 8, 16)[n % 5],
            vc=f"v{n % 4}",
        )
        for n in range(2000)
    ]
    past = Trace(name="philly", jobs=tuple(jobs))
    found = generate(SEED, Options(without=SMALL), past)
    assert len(found.jobs) == sum(sum(TENANTS[vc].jobs) for vc in TENANTS if vc not in SMALL)
    prod_a = {job.run_time for job in found.jobs if job.vc == "prod-a"}
    assert len(prod_a) <= 3 * 2  # three lengths, scaled by one number
    assert "Philly's 2000 jobs" in found.notes[0].text


def test_a_factor_makes_the_work_that_was_asked_for() -> None:
    sizes, lengths = [1, 2, 4], [10.0, 100.0, 1000.0]
    for work in (100.0, 1000.0, 5000.0):
        factor = scaled_to(work, sizes, lengths, 1200.0)
        made = sum(
            size * min(factor * each, 1200.0) for size, each in zip(sizes, lengths, strict=True)
        )
        assert made == pytest.approx(work)
    assert scaled_to(1e9, sizes, lengths, 1200.0) == 120.0


def test_options_are_the_ones_that_there_are() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"lod": 1}, Options)
    assert Duration(0) <= whole().jobs[0].at
    assert in_seconds(whole().jobs[0].at) < DAY_S
