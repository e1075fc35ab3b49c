"""Estimates of lengths and starts, and what becomes of them: spans, plays, outcomes."""

from __future__ import annotations

import math
import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.estimates.calibration import EVERY, PREDICTED, START, Calibration, judged
from skep.estimates.judging import Judging, Queue
from skep.estimates.lengths import Pace, by_owner, by_rate, by_runs, work_of
from skep.estimates.spans import around, at, chance_below, left, more, span, then, widened
from skep.estimates.starts import PLAYS, WAITING_MAX, Runs, Waits, starts
from skep.machines.advisor import AdvisorMachine
from skep.machines.base import Record
from skep.perf.fitted import FitsKept
from skep.perf.fitting import Model
from skep.units import Duration, seconds
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep.wire.codec import Facts
from skep.wire.estimates import EstimateJudged, Ran
from skep.wire.facts import CellsSet, End, JobBound, JobEnded, JobQueued, Member
from skep.wire.findings import JobRate
from skep.wire.promises import Lasts
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, Resources, SizeHint
from tests.kit import T0
from tests.kit import at as moment

HOUR = 3600 * 10**9
ANY = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from((0, 1, -1, math.nan, math.inf, -math.inf)),
)
COUNTS = st.integers(0, 2**62)


def ordered(lasts: Lasts) -> None:
    assert 0 <= lasts.p10 <= lasts.p50 <= lasts.p90 < 2**62, lasts


@given(ANY, ANY, ANY)
def test_a_span_is_in_order_whatever_it_is_of(p10: float, p50: float, p90: float) -> None:
    ordered(span(p10, p50, p90))


@given(COUNTS, COUNTS, COUNTS, st.integers(-5, 2**62), st.floats(1, 8))
def test_arithmetic_on_spans_keeps_the_order(
    p10: int, p50: int, p90: int, ran: int, factor: float
) -> None:
    lasts = span(p10, p50, p90)
    for made in (
        left(lasts, ran),
        widened(lasts, factor),
        more(lasts, -ran, 0, ran),
        then(lasts, left(lasts, ran)),
    ):
        ordered(made)
    assert 0 <= chance_below(lasts, max(ran, 0)) <= 1
    wide = widened(lasts, factor)
    assert wide.p10 <= lasts.p10 + 1
    assert wide.p90 >= lasts.p90 - max(lasts.p90 // 10**6, 1)


@given(
    st.one_of(st.none(), st.integers(-(2**53), 2**53)),
    st.integers(-(2**53), 2**53),
    st.integers(-(2**62), 2**62),
    st.integers(-(2**62), 2**62),
    st.integers(0, 2**62),
    st.integers(-5, 2**53),
)
def test_rates_of_any_kind_give_an_ordered_length_or_none(
    total: int | None, steps: int, rate: int, mean: int, spread: int, samples: int
) -> None:
    found = by_rate(total, Pace(steps, rate, mean, spread, samples))
    assert (found is None) == (total is None or rate <= 0)
    if found is not None:
        ordered(found.lasts)


def test_a_rate_that_wavers_gives_a_wider_length_than_a_steady_one() -> None:
    steady = by_rate(1000, Pace(500, 1000, 1000, 5, 8))
    wavers = by_rate(1000, Pace(500, 1000, 1000, 300, 8))
    early = by_rate(1000, Pace(500, 1000))
    assert steady is not None
    assert wavers is not None
    assert early is not None
    assert steady.basis is wavers.basis is early.basis is Reason.MEASURED_RATE
    widths = [each.lasts.p90 - each.lasts.p10 for each in (steady, wavers, early)]
    assert widths[0] < widths[1]
    assert widths[0] < widths[2]
    assert steady.lasts.p50 == pytest.approx(500e9, rel=0.01)
    assert (steady.what, early.what) == ("measured-rate", "measured-rate early")


def test_few_runs_give_a_wider_length_than_many_and_other_gpus_the_widest() -> None:
    def runs(count: int) -> list[Ran]:
        return [Ran(gpus=1, gpu_type="v100", step_ns=10**9)] * count

    one, many, other = (
        by_runs(100, known, gpus, "v100")
        for known, gpus in ((runs(1), 1), (runs(16), 1), (runs(16), 4))
    )
    assert one is not None
    assert many is not None
    assert other is not None
    widths = [each.lasts.p90 / each.lasts.p10 for each in (many, one, other)]
    assert widths == sorted(widths)
    assert by_runs(100, [], 1, "") is by_runs(None, runs(1), 1, "") is None


def test_an_owners_word_counts_as_far_as_owners_were_right() -> None:
    fresh, learned = by_owner(HOUR, ()), by_owner(HOUR, [2000] * 20)
    assert by_owner(0, ()) is None
    assert fresh is not None
    assert learned is not None
    assert fresh.lasts.p50 < 1.01 * HOUR < 1.9 * HOUR < learned.lasts.p50


def test_what_is_left_knows_how_long_a_job_has_run() -> None:
    lasts = around(HOUR, 0.3)
    assert left(lasts, 0) == lasts
    half = left(lasts, HOUR // 2)
    assert half.p50 == pytest.approx(HOUR / 2, rel=0.1)
    outran = left(lasts, 10 * HOUR)
    assert outran.p50 > HOUR, "as long again, not over at once"


# --- starts ---------------------------------------------------------------------------------------


def waits(number: int, each: int = 1, length: int = HOUR, **more: bool) -> Waits:
    return Waits(number, ("v100",), 1, each, around(length, 0.1), **more)


def test_a_job_starts_once_gpus_of_one_node_are_free() -> None:
    held = Runs(1, "v100", (("a", 5),), around(HOUR, 0.05))
    other = Runs(2, "v100", (("b", 5),), around(3 * HOUR, 0.05))
    first, second = starts({"v100": (8, 8)}, [held, other], [waits(3, each=8), waits(4)])
    assert first.start is not None
    assert second.start is not None
    assert first.start.p50 == pytest.approx(HOUR, rel=0.1), "six free ones on two nodes are no use"
    assert second.start.p50 >= first.start.p50, "no job overtakes another one"
    (alone,) = starts({"v100": (8, 8)}, [held, other], [waits(4)])
    assert alone.start is not None
    assert alone.start.p90 < seconds(10.0)


def test_a_start_behind_a_job_without_a_known_end_is_unknown() -> None:
    held = Runs(1, "v100", (("a", 8),), None)
    (found,) = starts({"v100": (8,)}, [held], [waits(2)])
    assert found.start is found.end is None
    (too_large,) = starts({"v100": (8,)}, [], [waits(2, each=9)])
    assert too_large.start is None
    (no_pool,) = starts({}, [], [waits(2)])
    assert no_pool.start is None


def test_a_job_that_may_borrow_may_start_now() -> None:
    held = Runs(1, "v100", (("a", 8),), around(HOUR, 0.05))
    (found,) = starts({"v100": (8,)}, [held], [waits(2, early=True)])
    assert found.start is not None
    assert found.start.p10 == 0
    assert found.start.p90 > HOUR


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), COUNTS), max_size=12),
    st.lists(st.tuples(st.integers(1, 9), COUNTS), max_size=6),
)
def test_plays_give_ordered_starts_of_any_queue(
    queue: list[tuple[int, int, int]], running: list[tuple[int, int]]
) -> None:
    waiting = [
        Waits(100 + index, ("v100",), workers, each, span(0, length, 2.0 * length))
        for index, (each, workers, length) in enumerate(queue)
    ]
    held = [
        Runs(index, "v100", ((f"n{index % 3}", gpus),), span(0, length, length))
        for index, (gpus, length) in enumerate(running)
    ]
    found = starts({"v100": (8, 8, 4)}, held, waiting)
    assert len(found) == len(waiting)
    for each in found:
        if each.start is not None:
            ordered(each.start)
        if each.end is not None:
            assert each.start is not None
            ordered(each.end)
            assert each.end.p50 >= each.start.p50


def test_the_end_of_a_long_queue_is_unknown() -> None:
    found = starts({"v100": (1,)}, [], [waits(number) for number in range(1, WAITING_MAX + 3)])
    assert [each.start is None for each in found[-3:]] == [False, True, True]
    assert (PLAYS + 1) % 10 == 0


# --- outcomes -------------------------------------------------------------------------------------


def outcome(
    calibration: Calibration, lasts: Lasts, took: float, family: str = "resnet", vc: str = "nlp"
) -> bool:
    wide = calibration.widened(vc, family, "owner-said", lasts)
    came = judged("owner-said", wide, Duration(round(took)))
    fact = EstimateJudged(
        at=T0,
        job="j1",
        attempt=1,
        vc=vc,
        family=family,
        gpu_type="v100",
        gpus=1,
        nodes=1,
        outcomes=(came,),
    )
    calibration.apply(fact)
    calibration.check()
    return came.held


@pytest.mark.parametrize("bias, sigma", [(1.4, 0.1), (0.6, 0.3), (1.0, 0.8), (2.0, 0.4)])
def test_spans_that_do_not_hold_widen_until_they_do(bias: float, sigma: float) -> None:
    rng, calibration = random.Random(f"{bias} {sigma}"), Calibration()
    lasts = around(HOUR, 0.15)
    held = [
        outcome(calibration, lasts, HOUR * bias * rng.lognormvariate(0, sigma)) for _ in range(1500)
    ]
    covered = sum(held[300:]) / len(held[300:])
    assert 0.75 <= covered <= 0.88, covered
    assert calibration.factor("nlp", "resnet", "owner-said") > 1.5
    assert calibration.factor("vision", "resnet", "owner-said") == 1, "of one VC only"


def test_a_new_family_is_as_wide_as_its_vc_until_it_has_outcomes() -> None:
    calibration, lasts = Calibration(), around(HOUR, 0.1)
    for _ in range(6):
        outcome(calibration, lasts, 9 * HOUR)
    wide = calibration.factor("nlp", EVERY, "owner-said")
    assert calibration.factor("nlp", "new", "owner-said") == wide > 2
    outcome(calibration, lasts, HOUR, family="new")
    assert calibration.factor("nlp", "new", START) == 1


def test_what_is_kept_leads_to_the_same_state() -> None:
    rng, calibration = random.Random(7), Calibration()
    for number in range(300):
        outcome(calibration, around(HOUR, 0.2), HOUR * rng.lognormvariate(0, 0.4), f"f{number % 5}")
    again = Calibration()
    for fact in calibration.facts():
        again.apply(fact)
    again.check()
    assert list(again.groups()) == list(calibration.groups())
    assert list(again.facts()) == list(calibration.facts())


def test_the_rank_of_an_outcome_is_its_place_in_the_distribution() -> None:
    lasts = around(HOUR, 0.3)
    for chance in (0.1, 0.5, 0.9):
        came = judged("start", lasts, Duration(round(at(lasts, chance))))
        assert came.rank == pytest.approx(1000 * chance, abs=1)


# --- judging --------------------------------------------------------------------------------------


def cells() -> CellsSet:
    chain = Chain(
        gpu="v100",
        levels=(Level(name="node", fanout=2),),
        node_level="node",
        nodes=(NodeCell(node="n1"),),
    )
    vcs = {"nlp": VirtualCluster(cells=(Quota(chain="c", level="node", count=1),))}
    return CellsSet(cluster=Cluster(chains={"c": chain}, vcs=vcs), asked=Cluster(vcs=vcs))


def queued(job: str, steps: int | None = 100, run_time: float | None = None) -> JobQueued:
    spec = JobSpec(
        name="a",
        vc="nlp",
        script="a.py",
        resources=Resources(gpus=2),
        over_quota="wait",
        size=SizeHint(mini_batches=steps, family="resnet", run_time=run_time),
    )
    return JobQueued(job=job, spec=spec, submitted_at=moment(0))


def bound(job: str, second: float) -> JobBound:
    member = Member(node="n1", identity="i", first_rank=0, devices=((0, 1),), levels=(2,))
    return JobBound(
        job=job,
        attempt=1,
        order=1,
        members=(member,),
        master_port=1,
        why=Reason.ARRIVAL,
        at=moment(second),
    )


def ended(job: str, second: float, end: End = End.SUCCEEDED) -> JobEnded:
    return JobEnded(
        job=job,
        end=end,
        why=Reason.SUCCEEDED,
        attempts=1,
        at=moment(second),
        ran_at=moment(1),
        steps=100,
    )


class Followed:
    """A judging machine that is told facts, each at its second."""

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.judging = Judging({"n1": "v100"}, self.calibration, FitsKept())

    def tell(self, second: float, *facts: object, live: bool = True) -> list[EstimateJudged]:
        now = moment(second)
        for fact in facts:
            self.judging.fact(fact, now, live=live)
        self.judging.look(now, dict)
        self.judging.check()
        due = self.judging.take()
        for fact in due:
            self.calibration.apply(fact)
        return due

    def rate(self, job: str, second: float, steps: int, rate_milli: int = 1000) -> None:
        rate = JobRate(job=job, attempt=1, steps=steps, rate_milli=rate_milli)
        self.judging.measured(rate, moment(second))


def test_a_job_is_judged_once_by_all_that_was_estimated_of_it() -> None:
    followed = Followed()
    assert followed.tell(0, cells(), queued("j1", run_time=100.0), bound("j1", 0)) == []
    followed.rate("j1", 30, 30)
    followed.tell(38, queued("j2"))
    followed.tell(40)
    (fact,) = followed.tell(101, ended("j1", 101))
    assert [each.what for each in fact.outcomes] == ["owner-said", "measured-rate early"]
    assert [each.held for each in fact.outcomes] == [True, True]
    assert (fact.mini_batches, fact.ran, fact.declared) == (100, seconds(101.0), seconds(100.0))
    followed.tell(102, bound("j2", 102))
    (second,) = followed.tell(190, ended("j2", 190))
    start, whole = second.outcomes
    assert (start.what, start.took) == (START, seconds(62.0))
    assert start.held
    assert (whole.what, whole.took) == ("earlier-runs", seconds(88.0))
    assert followed.tell(191, ended("j2", 190)) == []


def test_history_and_failures_are_not_judged() -> None:
    followed = Followed()
    followed.tell(0, cells(), queued("j1", run_time=50.0), bound("j1", 0), live=False)
    assert followed.tell(60, ended("j1", 60)) == []
    followed.tell(70, queued("j2", run_time=50.0), bound("j2", 70))
    assert followed.tell(80, ended("j2", 80, End.FAILED)) == []
    assert list(followed.calibration.facts()) == []


def test_a_restarted_advisor_judges_by_the_rate_again() -> None:
    followed = Followed()
    followed.tell(500, cells(), queued("j1"), bound("j1", 0), live=False)
    followed.rate("j1", 501, 50)
    (fact,) = followed.tell(551, ended("j1", 551))
    assert [each.what for each in fact.outcomes] == ["measured-rate early"]
    assert fact.ran == 0, "how long it ran before is not seen"


def played(machine: AdvisorMachine) -> list[EstimateJudged]:
    """Return what an advisor records of one job that is queued, bound, and over."""
    found: list[EstimateJudged] = []
    for second, fact in (
        (0, cells()),
        (1, queued("j1", run_time=100.0)),
        (2, bound("j1", 2)),
        (95, ended("j1", 95)),
    ):
        told = Facts(service="allocator", at=moment(second), facts=(fact,))
        effects = machine.decide(told, moment(second))
        facts = [effect.fact for effect in effects if isinstance(effect, Record)]
        found += [each for each in facts if isinstance(each, EstimateJudged)]
        machine.check()
    return found


def test_an_advisor_with_a_log_records_outcomes_and_a_restart_keeps_them() -> None:
    machine = AdvisorMachine(judges=True)
    (fact,) = played(machine)
    assert [each.what for each in fact.outcomes] == ["owner-said"]
    again = AdvisorMachine(judges=True)
    for kept in machine.snapshot():
        again.apply(kept)
    assert list(again.calibration.facts()) == list(machine.calibration.facts()) != []
    again = AdvisorMachine(judges=True)
    again.apply(fact)
    assert list(again.calibration.facts()) == list(machine.calibration.facts())


def test_an_advisor_without_a_log_judges_nothing() -> None:
    assert played(AdvisorMachine()) == []


def test_outcomes_of_predicted_speeds_widen_fits_by_stratum() -> None:
    machine = AdvisorMachine(judges=True)
    lasts = around(HOUR, 0.1)
    for _ in range(4):
        fact = EstimateJudged(
            at=T0,
            job="j1",
            attempt=1,
            vc="nlp",
            family="resnet",
            gpu_type="v100",
            gpus=1,
            nodes=1,
            outcomes=(judged(f"{PREDICTED} more-nodes", lasts, Duration(9 * HOUR)),),
        )
        machine.apply(fact)
    widening = machine.fitting.widening(Model("nlp", "resnet", "v100"))
    assert (widening.near, widening.more_gpus) == (1, 1)
    assert widening.more_nodes == pytest.approx(math.exp(0.8))
    assert (widening.outcomes, widening.held) == (4, 0)
    assert machine.fitting.widening(Model("vision", "resnet", "v100")).more_nodes == 1


def test_work_of_a_spec_without_hints_is_unknown() -> None:
    work = work_of(JobSpec(name="a", vc="nlp", script="a.py"))
    assert (work.total, work.declared, work.family) == (None, 0, "")


def test_only_the_first_jobs_of_a_long_queue_are_looked_at() -> None:
    queue, asked = Queue({"cpu": (1,)}, {}, policy=False), list[int]()

    def asks(number: int) -> Lasts:
        asked.append(number)
        return around(HOUR, 0.1)

    for number in reversed(range(2 * WAITING_MAX)):
        each = JobSpec(name="a", vc="nlp", command=("true",), priority=number % 2)
        queue.waits(f"j{number}", each, number, partial(asks, number))
    played = queue.played()
    assert asked == list(range(1, 2 * WAITING_MAX, 2))
    assert list(played) == [f"j{number}" for number in asked]
