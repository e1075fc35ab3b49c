"""Measures of a run, on cases small enough to compute by hand."""

from __future__ import annotations

import msgspec
import pytest

from skep.units import Duration, seconds
from skep_lab.measures import fairness, job, series, stat, summary
from skep_lab.outcome import JobOutcome, RunResult, Sample, Span
from skep_lab.studies.audit import audit
from skep_lab.traces.job import TraceJob
from skep_lab.workloads.situation import Situation, Steady


def ran(
    name: str,
    at: float,
    run_time: float,
    *stretches: tuple[float, float],
    gpus: int = 1,
    vc: str = "a",
    node: str = "n0",
    **more: object,
) -> JobOutcome:
    """Return a job that had its GPUs, all on one node, in these stretches; it ended with them."""
    spans = tuple(
        Span(began=seconds(begin), ended=seconds(end), gpus=gpus, spread=(gpus,), nodes=(node,))
        for begin, end in stretches
    )
    fields = {name: more.pop(name) for name in list(more) if name in TraceJob.__struct_fields__}
    told = TraceJob(
        id=name,
        at=seconds(at),
        run_time=seconds(run_time),
        gpus=gpus,
        vc=vc,
        **fields,  # type: ignore[arg-type]
    )
    gaps = zip(
        [at, *(end for _, end in stretches)], [begin for begin, _ in stretches], strict=False
    )
    outcome = {
        "began": spans[0].began if spans else None,
        "ended": spans[-1].ended if spans else None,
        "waited": seconds(sum(begin - since for since, begin in gaps)),
        "preempted": max(0, len(spans) - 1),
        **more,
    }
    return JobOutcome(job=told, spans=spans, **outcome)  # type: ignore[arg-type]


def result(*jobs: JobOutcome, **more: object) -> RunResult:
    fields = {"gpus": 4, "node_gpus": 2, **more}
    return RunResult(
        trace="t",
        cluster="2 x 2",
        policy="fifo",
        seed=0,
        jobs=jobs,
        **fields,  # type: ignore[arg-type]
    )


# --- numbers --------------------------------------------------------------------------------------


def test_quantiles_lie_between_two_values_in_proportion() -> None:
    found = stat.stat([4.0, 1.0, 3.0, 2.0])
    assert (found.count, found.mean, found.median, found.most) == (4, 2.5, 2.5, 4.0)
    assert [found.p95, found.p99] == pytest.approx([3.85, 3.97])
    assert stat.stat([]) == stat.Stat()


def test_a_distribution_is_thinned_and_keeps_its_end() -> None:
    assert stat.distribution([2.0, 1.0]) == ((1.0, 0.5), (2.0, 1.0))
    assert stat.distribution([float(n) for n in range(1, 1001)], 4) == (
        (250.0, 0.25),
        (500.0, 0.5),
        (750.0, 0.75),
        (1000.0, 1.0),
    )


def test_steps_are_integrated() -> None:
    steps = stat.Steps([(10, 2), (20, -1), (10, 1), (30, -2)])  # 3 from 10, 2 from 20, 0 from 30
    assert [steps.at(time) for time in (9, 10, 19, 20, 30)] == [0, 3, 3, 2, 0]
    assert steps.integral(0, 40) == 50
    assert steps.integral(15, 25) == 25
    assert steps.mean(15, 25) == 2.5
    assert steps.mean(12, 12) == 3


# --- one job --------------------------------------------------------------------------------------


def test_effectiveness_is_ideal_time_over_waiting_and_actual_time() -> None:
    preempted = ran("j", 0, 60, (20, 50), (70, 100))
    assert job.completion(preempted) == seconds(100)
    assert preempted.waited == seconds(40)
    assert job.effectiveness(preempted) == 0.6
    assert job.effectiveness(ran("j", 5, 0, (5, 5))) == 1.0
    assert job.effectiveness(ran("j", 0, 60, ended=None)) is None


def test_latency_is_normalised_by_that_on_one_gpu() -> None:
    waited = ran("j", 0, 100, (50, 150), gpus=2)
    assert job.normalised_latency(waited) == 0.75, "2 GPUs for 100 s: 200 s on one"

    class Halved(Steady):
        def speed(self, job: TraceJob, where: Situation) -> float:
            return 0.8

    model = job.alone_by(Halved())
    told = ran("j", 0, 100, (50, 150), gpus=2, model="vgg", mini_batches=100)
    assert model(told.job) == seconds(125)
    assert job.normalised_latency(told, model) == 1.2
    assert model(waited.job) == seconds(200), "no model is named"


@pytest.mark.parametrize(
    "outcome, now, expected",
    [
        (ran("j", 10, 50, (60, 110)), 200, True),  # twice its time after 10: by 110
        (ran("j", 10, 50, (61, 111)), 200, False),
        (ran("j", 10, 50, (61, 111), deadline=seconds(111)), 200, True),
        (ran("j", 10, 50, (10, 60), deadline=seconds(10)), 200, False),
        (ran("j", 10, 50, ended=None), 110, None),
        (ran("j", 10, 50, ended=None), 111, False),
        (ran("j", 10, 50, ended=None, refused="too large"), 11, False),
    ],
)
def test_a_user_expects_twice_the_latency_on_one_gpu(
    outcome: JobOutcome, now: float, expected: bool | None
) -> None:
    assert job.in_time(outcome, seconds(now)) is expected


def test_time_to_100_mini_batches_counts_from_submission() -> None:
    assert job.hundred(ran("j", 10, 50, (60, 110), hundred=seconds(70))) == seconds(60)
    assert job.hundred(ran("j", 10, 50, (60, 110))) is None


def test_size_classes_are_those_of_table_1() -> None:
    classes = [job.size_class(gpus) for gpus in (1, 2, 3, 4, 8, 9, 128)]
    assert classes == [
        "1 GPU",
        "2 GPUs",
        "3-4 GPUs",
        "3-4 GPUs",
        "5-8 GPUs",
        "9 GPUs and more",
        "9 GPUs and more",
    ]


# --- fairness -------------------------------------------------------------------------------------


def test_rho_compares_with_the_tenants_share() -> None:
    """Tenant a owns 1 GPU and asks for 2 while its second job is there; b asks for what it owns."""
    run = result(
        ran("a1", 0, 100, (0, 100)),
        ran("a2", 0, 100, (100, 200)),
        ran("b1", 0, 100, (0, 100), vc="b"),
        gpus=2,
        vc_gpus={"a": 1, "b": 1},
    )
    # a1: 100 s, asked for 2 of 1 all the time. a2: 200 s, asked for 2 and then 1: 1.5 on average.
    rho = fairness.finish_time_fairness(run)
    assert rho == {"a1": 0.5, "a2": pytest.approx(200 / 150), "b1": 1.0}


def test_a_share_that_nobody_owns_is_an_equal_part() -> None:
    run = result(ran("a1", 0, 10, (0, 10)), ran("b1", 0, 10, (0, 10), vc="b"))
    assert fairness.shares(run) == {"a": 2.0, "b": 2.0}


def test_opportunistic_and_unfinished_jobs_have_no_rho() -> None:
    run = result(ran("a1", 0, 10, (0, 10), opportunistic=True), ran("a2", 0, 10, ended=None))
    assert fairness.finish_time_fairness(run) == {}


# --- over time ------------------------------------------------------------------------------------


def test_fragmentation_is_that_of_the_paper() -> None:
    """Two nodes of 2 GPUs at 0 s: one holds 30 s and 10 s, the other 10 s and nothing."""
    run = result(
        ran("a", 0, 30, (0, 30)), ran("b", 0, 10, (0, 10)), ran("c", 0, 10, (0, 10), node="n1")
    )
    over_time = series.series(run, 4)
    assert over_time.at == (0.0, 10.0, 20.0, 30.0)
    first = (1 - 40**2 / (2 * (30**2 + 10**2)) + 1 - 10**2 / (2 * 10**2)) / 2
    assert list(over_time.fragmentation) == pytest.approx([first, 0.25, 0.25, 0.0])
    assert over_time.no_affinity == (1.0, 0.5, 0.5, 0.0)
    assert over_time.allocated == (3.0, 1.0, 1.0, 0.0)
    assert over_time.running == (3, 1, 1, 0)


def test_fragmentation_is_that_of_each_nodes_own_size() -> None:
    """One node of 8 GPUs, half of them held, and four of 2: of one, one GPU is held."""
    sizes = {"n0": 8, **{f"k{index}": 2 for index in range(4)}}
    run = result(
        ran("a", 0, 10, (0, 10), gpus=4),
        ran("b", 0, 10, (0, 10), node="k0"),
        gpus=16,
        node_gpus=8,
        nodes=sizes,
    )
    over_time = series.series(run, 2)
    assert over_time.fragmentation[0] == pytest.approx((1 / 2 + 1 / 2) / 5)
    assert over_time.no_affinity[0] == 2 / 5


def test_gpus_that_packed_jobs_share_are_held_once() -> None:
    host, guest = ran("a", 0, 10, (0, 10)), ran("b", 0, 10, (0, 10))
    (span,) = guest.spans
    beside = msgspec.structs.replace(
        guest, spans=(msgspec.structs.replace(span, packed=True, guest=True),)
    )
    assert series.series(result(host, beside), 2) != series.series(result(host, guest), 2)
    alone, shared = (
        series.series(each, 2).fragmentation for each in (result(host), result(host, beside))
    )
    assert alone == shared


def test_who_was_refused_makes_no_run_longer() -> None:
    late = ran("b", 500, 10, ended=None, refused="too large")
    assert series.span_of(result(ran("a", 20, 10, (20, 30)), late)) == (seconds(20), seconds(30))


def test_borrowed_gpus_do_not_count_against_affinity() -> None:
    soft = ran("a", 0, 30, (0, 30), opportunistic=True)
    assert series.series(result(soft), 2).no_affinity == (0.0, 0.0)


def test_who_waits_is_counted_between_stretches() -> None:
    run = result(ran("j", 0, 60, (20, 50), (70, 100)), ran("k", 0, 60, ended=None))
    assert series.series(run, 11).waiting == (2, 2, 1, 1, 1, 2, 2, 1, 1, 1, 1)


def test_what_was_sampled_is_taken_as_sampled() -> None:
    samples = (
        Sample(
            at=seconds(0),
            allocated=4,
            busy=2.0,
            useful=1.0,
            waiting=0,
            running=1,
            free_nodes=0,
            free=0,
        ),
        Sample(
            at=seconds(10),
            allocated=0,
            busy=0.0,
            useful=0.0,
            waiting=0,
            running=0,
            free_nodes=2,
            free=4,
        ),
    )
    run = result(ran("a", 0, 10, (0, 10)), samples=samples)
    over_time = series.series(run, 3)
    assert over_time.allocated == (4.0, 4.0, 0.0)
    assert over_time.busy == (2.0, 2.0, 0.0)
    assert over_time.useful == (1.0, 1.0, 0.0)


def test_busy_is_of_the_time_since_the_first_submission() -> None:
    samples = tuple(
        Sample(
            at=seconds(at),
            allocated=gpus,
            busy=gpus / 2,
            useful=0.0,
            waiting=0,
            running=0,
            free_nodes=0,
            free=0,
        )
        for at, gpus in ((0, 0), (90, 4))
    )
    found = summary.measure(result(ran("a", 90, 10, (90, 100), gpus=4), samples=samples))
    assert (found.allocated, found.busy) == (1.0, 0.5)


# --- a whole run ----------------------------------------------------------------------------------


def test_a_run_in_numbers() -> None:
    run = result(
        ran("a", 0, 100, (0, 100), gpus=2),
        ran("b", 0, 100, (100, 150), (150, 200), gpus=2, vc="b", migrated=1, lost=seconds(20)),
        ran("c", 50, 10, vc="b", ended=None, refused="too large"),
        ran("d", 60, 10, vc="b", ended=None, waited=Duration(0)),
    )
    found = summary.measure(run)
    assert found.makespan_s == 200
    assert found.allocated == 0.5, "2 of 4 GPUs all the time"
    assert found.useful == pytest.approx(0.45), "20 s of 2 GPUs were done twice"
    assert (found.all.jobs, found.all.ended, found.all.refused, found.all.unfinished) == (
        4,
        2,
        1,
        1,
    )
    assert found.all.jct_s.mean == 150
    assert found.all.queue_s.mean == 50
    assert found.all.effectiveness.mean == 0.75
    assert found.all.normalised.mean == 0.75
    assert found.all.qos == pytest.approx(2 / 4), "d is late by now, c was refused"
    assert (found.all.preempted, found.all.migrated, found.all.lost_s) == (1, 1, 20)
    assert list(found.by_vc) == ["a", "b"]
    assert found.by_vc["a"].jct_s.mean == 100
    assert found.by_vc["a"].gpu_hours == pytest.approx(200 / 3600)
    assert {name: each.jobs for name, each in found.by_size.items()} == {"1 GPU": 2, "2 GPUs": 2}
    assert summary.curves(run)["queue"] == ((0.0, 0.5), (100.0, 1.0))


def test_gpus_that_packed_jobs_share_are_allocated_once() -> None:
    """Two jobs on the same 2 of 4 GPUs for 100 s, seen every 50 s; another waits until 200 s."""
    both = [ran(name, 0, 50, (0, 100), gpus=2) for name in "ab"]
    packed = [
        msgspec.structs.replace(
            each, spans=(msgspec.structs.replace(each.spans[0], packed=True, useful=seconds(50)),)
        )
        for each in both
    ]
    packed.append(ran("c", 0, 0, (200, 200)))
    samples = tuple(
        Sample(
            at=seconds(at),
            allocated=gpus,
            busy=gpus * 0.9,
            useful=0.0,
            waiting=0,
            running=0,
            free_nodes=0,
            free=0,
        )
        for at, gpus in ((0, 2), (50, 2), (100, 0), (200, 0))
    )
    found = summary.measure(result(*packed, samples=samples))
    assert (found.makespan_s, found.allocated) == (200, 0.25)
    assert found.busy == pytest.approx(0.225)
    assert found.useful == 0.25, "two halves"


def test_a_run_of_nothing_has_numbers_too() -> None:
    found = summary.measure(result())
    assert (found.makespan_s, found.allocated, found.all.qos) == (0.0, 0.0, None)


# --- sharing safety -------------------------------------------------------------------------------


def test_an_audit_names_jobs_and_windows_that_wait_longer_than_alone() -> None:
    day = 86_400.0
    shared = result(
        ran("a1", 0, 50, (10, 60)),  # As alone.
        ran("a2", 60, 50, (460, 510)),  # 400 s, alone 100 s.
        ran("a3", day, 50, (day, day + 50)),
        ran("b1", 0, 50, (20, 70), vc="b"),
        ran("b2", 0, 50, vc="b", ended=None),
        ran("b3", 0, 50, (900, 950), vc="b", opportunistic=True),
    )
    alone_a = result(
        ran("a1", 0, 50, (10, 60)),
        ran("a2", 60, 50, (160, 210)),
        ran("a3", day, 50, (day + 900, day + 950)),
    )
    alone_b = result(ran("b1", 0, 50, (20, 70), vc="b"), ran("b2", 0, 50, (70, 120), vc="b"))
    found = audit(shared, [alone_a, alone_b], slack_s=30)
    a, b = found.tenants["a"], found.tenants["b"]
    assert (a.jobs, a.jobs_worse, a.excess_s) == (3, 1, 300)
    assert (a.windows, a.windows_worse, a.window_excess_s) == (2, 1, 150)
    assert [a.shared_s, a.private_s] == pytest.approx([410 / 3, 1010 / 3])
    assert not a.safe
    assert (b.jobs, b.only_here, b.windows_worse) == (1, 1, 0)
    assert b.safe
    assert found.anomalies == 1
    assert [(each.job, each.shared_s, each.private_s) for each in found.worst] == [("a2", 400, 100)]
    assert a.rho.most == pytest.approx(450 / 150)
