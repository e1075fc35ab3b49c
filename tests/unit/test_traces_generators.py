"""The workloads of Gandiva, SCHED², DL² and GENIE: each paper's numbers hold for some seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

import pytest

from skep.cells.clustercheck import cluster_problems
from skep.perf.interference import TABLE_1
from skep.units import Duration, in_seconds, seconds
from skep_lab.traces.generators import gandiva, genie, hived, k80, registry
from skep_lab.traces.generators.registry import GENERATORS, WrongGeneratorError, make, parse
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.traces.summary import summary
from skep_lab.workloads.names import normalised

SEEDS = range(5)


def several(words: str) -> list[Trace]:
    return [make(words, seed) for seed in SEEDS]


def mean_of(traces: list[Trace], what: Callable[[TraceJob], float]) -> float:
    return fmean(what(job) for trace in traces for job in trace.jobs)


@pytest.mark.parametrize("name", [name for name in GENERATORS if name != "hived"])
def test_a_seed_is_one_workload_in_order_with_ids_of_its_own(name: str) -> None:
    trace = make(name, 7)
    assert trace == make(name, 7)
    assert trace.jobs != make(name, 8).jobs
    assert all(before.at <= now.at for before, now in pairwise(trace.jobs))
    assert len({job.id for job in trace.jobs}) == len(trace.jobs)
    assert all(job.run_time > 0 and job.at >= 0 for job in trace.jobs)


def test_gandivas_mix() -> None:
    traces = several("gandiva")
    assert {len(trace.jobs) for trace in traces} == {1000}
    parts = Counter(job.model for trace in traces for job in trace.jobs)
    low, high = parts["vae"] + parts["superresolution"], parts["resnet-50"] + parts["resnext-50"]
    assert low / 5000 == pytest.approx(0.30, abs=0.03)
    assert (high + parts["lstm"]) / 5000 == pytest.approx(0.45, abs=0.03)
    for trace in traces:
        assert trace.jobs[-1].at <= seconds(7200)
        for job in trace.jobs:
            assert 30 * 60 - 3 <= job.gpus * in_seconds(job.run_time) <= 45 * 60 + 3
            assert job.gpus in ((2, 4) if job.model in {"resnet-50", "resnext-50"} else (1,))
    rates = {job.model: job.mini_batches / in_seconds(job.run_time) for job in traces[0].jobs}
    assert rates["vae"] == pytest.approx(81.8, rel=1e-3)


def test_gandivas_rates_are_those_that_packing_is_modelled_by() -> None:
    rates = {normalised(name).model: row[1] for name, row in TABLE_1.items()}
    assert {normalised(kind.model).model: kind.rate for kind in gandiva.KINDS} == rates


def test_sched2s_traces() -> None:
    traces = several("sched2")
    assert {len(trace.jobs) for trace in traces} == {1000}
    assert mean_of(traces, lambda job: job.gpus == 1) == pytest.approx(0.68, abs=0.03)
    assert mean_of(traces, lambda job: job.model == "transformer") == pytest.approx(0.6, abs=0.03)
    assert mean_of(traces, lambda job: job.model == "deepspeech") == pytest.approx(0.3, abs=0.03)
    gaps = fmean(in_seconds(trace.jobs[-1].at) / 999 for trace in traces)
    assert gaps == pytest.approx(172, rel=0.15)
    assert mean_of(several("sched2:single=0.6"), lambda job: job.gpus == 1) < 0.65


@pytest.mark.parametrize("arrivals", ["pattern", "uniform", "poisson"])
def test_dl2s_jobs(arrivals: str) -> None:
    traces = several(f"dl2:arrivals={arrivals}")
    assert {len(trace.jobs) for trace in traces} == {200}
    assert mean_of(traces, lambda job: in_seconds(job.run_time)) == pytest.approx(147 * 60, rel=0.2)
    assert mean_of(traces, lambda job: job.run_time > seconds(3600)) > 0.5
    assert fmean(in_seconds(trace.jobs[-1].at) for trace in traces) < 1.2 * 25 * 3600
    assert {job.servers for trace in traces for job in trace.jobs} == {4}


def test_genies_tasks() -> None:
    traces = several("genie")
    assert fmean(len(trace.jobs) for trace in traces) == pytest.approx(480, rel=0.1)
    jobs = [job for trace in traces for job in trace.jobs]
    assert mean_of(traces, lambda job: job.user == "inference") == pytest.approx(0.5, abs=0.04)
    classes = Counter(job.priority for job in jobs)
    assert classes[2] / classes.total() == pytest.approx(0.05, abs=0.02)
    assert classes[1] / classes.total() == pytest.approx(0.35, abs=0.04)
    for counts in (Counter(job.model for job in jobs), Counter(job.batch_size for job in jobs)):
        assert min(counts.values()) > 0.8 * classes.total() / len(counts), counts
    assert len({job.model.partition("/")[0] for job in jobs}) == 6
    for job in jobs:
        times = {priority: times for _, times, priority in genie.CLASSES}[job.priority]
        assert job.deadline == job.at + times * (job.run_time + seconds(30))


@pytest.mark.parametrize("latency_h", [3.3, 1.5])
def test_genies_latencies(latency_h: float) -> None:
    """The mean on one GPU is what was asked for, and iterations are uniform whatever the model."""
    traces = several(f"genie:latency_h={latency_h}")
    mean_h = mean_of(traces, lambda job: in_seconds(job.run_time) / 3600)
    assert mean_h == pytest.approx(latency_h, rel=0.1)
    most = genie.iterations_max(latency_h)
    for model in ("alexnet/training", "seq2seq/inference"):
        parts = [
            job.mini_batches / most for trace in traces for job in trace.jobs if job.model == model
        ]
        assert 0.1 <= min(parts) < 0.15, model
        assert 0.95 < max(parts) <= 1, model
        assert fmean(parts) == pytest.approx(0.55, abs=0.04), model


def test_a_mini_batch_on_k80s_takes_longer_on_more_nodes_and_less_with_fewer_samples() -> None:
    one, node, spread = (
        k80.step_s("resnet50/training", 64, split) for split in ((1,), (4,), (1, 1, 1, 1))
    )
    assert one == pytest.approx(0.03 + 64 / 52)
    assert node == pytest.approx(0.03 + 16 / 52 + 1.5 * 102e6 / 6e9)
    assert spread == pytest.approx(0.03 + 16 / 52 + 1.5 * 102e6 / 2e9)
    assert k80.step_s("resnet50/inference", 64) == pytest.approx(one / 3)
    assert k80.step_s("resnet50/inference", 64, (1, 1, 1, 1)) == pytest.approx((0.03 + 16 / 52) / 3)


# --- asking for them ------------------------------------------------------------------------------


def test_lists_may_be_json() -> None:
    _, options = parse('hived:without=["res-a","res-b"],days=3')
    assert options == hived.Options(without=("res-a", "res-b"), days=3)


def test_options_are_read_from_words() -> None:
    _, options = parse("hived:days=10,part=0.04,reshaped=res-f+prod-e,models=true,nodes=200")
    assert options == hived.Options(
        days=10, part=0.04, reshaped=("res-f", "prod-e"), models=True, nodes=200
    )


@pytest.mark.parametrize(
    "words, message",
    [
        ("hve", "no generator 'hve'; did you mean 'hived'"),
        ("slurm", "no generator 'slurm'; generators: hived, gandiva"),
        ("dl2:job=3", "dl2 has no option 'job=3'; did you mean 'jobs'"),
        ("dl2:x=3", "dl2 has no option 'x=3'; options: jobs, slots, arrivals"),
        ("dl2:jobs", "dl2 has no option 'jobs'"),
        ("dl2:jobs=many", "dl2: Expected `int`, got `str` - at `jobs`"),
        ("dl2:arrivals=now", "dl2: Invalid enum value 'now' - at `arrivals`"),
        ("hived:without=res-z", "hived has no tenant 'res-z'"),
        ('hived:without=["res-z]', "hived: Input data was truncated"),
        ("hived:part=2", "part is from 0 to 1"),
        ("sched2:interval_s=0", "interval_s is above 0"),
    ],
)
def test_what_there_is_not_is_said_with_what_there_is(words: str, message: str) -> None:
    with pytest.raises(WrongGeneratorError) as raised:
        make(words, 1)
    assert message in str(raised.value)


def test_only_hived_draws_from_another_trace() -> None:
    with pytest.raises(WrongGeneratorError, match="genie draws nothing"):
        make("genie", 1, Trace(name="past", jobs=()))
    with pytest.raises(WrongGeneratorError, match=r"has no jobs of \[1, 2, 4, 8, 16\] GPUs"):
        make("hived", 1, Trace(name="past", jobs=()))


# --- HiveD's clusters -----------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [12, 200, 279])
def test_hiveds_clusters_are_right_and_tenants_own_all_of_them(nodes: int) -> None:
    made = hived.cluster(nodes)
    assert list(cluster_problems(made)) == []
    assert list(made.vcs) == list(hived.TENANTS)


@pytest.mark.parametrize("nodes", [200, 279])
def test_cells_of_all_levels_have_the_same_gpus_and_hold_the_same_jobs(nodes: int) -> None:
    single, multi = hived.assign(nodes), hived.assign_levels(nodes)
    assert list(cluster_problems(hived.cluster(nodes, multi))) == []
    for vc, tenant in hived.TENANTS.items():
        assert hived.gpus_of(multi[vc]) == hived.gpus_of(single[vc])
        assert ("node" in multi[vc]) == bool(tenant.jobs[3] + tenant.jobs[4])


def test_jobs_beyond_their_tenants_cells_can_be_made_opportunistic() -> None:
    small = "+".join(name for name in hived.TENANTS if name != "res-a")
    found = make(f"hived:nodes=200,without={small}", 1)
    assert {job.gpus for job in found.jobs if job.opportunistic} <= {16, 32, 64}
    assert sum(job.opportunistic for job in found.jobs) == 40


# --- in numbers -----------------------------------------------------------------------------------


def test_a_trace_in_numbers() -> None:
    jobs = tuple(
        TraceJob(
            id=f"{n}",
            at=seconds(n * 10),
            run_time=seconds(n + 1),
            gpus=1 + n % 2,
            vc="ab"[n % 2],
            model="m" if n else "",
            deadline=Duration(0) if n == 3 else None,
            workers_max=2 if n < 2 else 0,
            opportunistic=n == 0,
        )
        for n in range(4)
    )
    found = summary(Trace(name="t", jobs=jobs))
    assert (found.jobs, found.gpus, found.vcs, found.models) == (
        4,
        {1: 2, 2: 2},
        {"a": 2, "b": 2},
        {"m": 3},
    )
    assert (found.span_s, found.run_mean_s, found.run_median_s, found.run_max_s) == (30, 2.5, 3, 4)
    assert found.gpu_hours == pytest.approx((1 + 4 + 3 + 8) / 3600)
    assert found.demand == pytest.approx(16 / 30)
    assert (found.deadlines, found.elastic, found.opportunistic) == (1, 2, 1)
    assert summary(Trace(name="none", jobs=())).jobs == 0


def test_every_generator_says_what_it_is() -> None:
    assert all(each.about and each.make.__doc__ for each in registry.GENERATORS.values())
