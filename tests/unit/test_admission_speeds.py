"""What admission makes of predicted speeds: promises without a run time, and judged again."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.machines.admission import AdmissionMachine
from skep.machines.admission.promising import MEASURED_MAX
from skep.perf.fitted import Fitted, as_fit
from skep.perf.model.placement import Placement, Point
from skep.perf.model.pool import Pool
from skep.units import NS_PER_SECOND, Duration
from skep.wire.advice import FamilyFit, JobPace, Outlook
from skep.wire.promises import Answer, Judged, PromiseBroken, PromiseMade, PromiseMoved
from skep.wire.reasons import Reason
from tests import effort
from tests.kit import Driver, at, facts_of
from tests.unit.test_admission_promises import HOUR, begun, ended, judged, ran, submit

PLACES = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (16, 2))
BATCH = 256
ELASTIC: dict[str, Any] = {
    "elastic": {"min": 1, "max": 16},
    "size": {"mini_batches": 36_000, "family": "resnet", "batch_size": BATCH},
    "willing": {"gpus": "1..16"},
}
"""Ten hours on one GPU at a second each; a bit over two on eight."""


def curve(scale: float, rng: random.Random, places: Any = PLACES) -> list[Point]:
    found = []
    for gpus, nodes in places:
        step = scale * 1e9 / gpus**0.75 * (1.1 if nodes > 1 else 1.0) * rng.uniform(0.98, 1.02)
        found.append(Point(Placement("v100", gpus, nodes, BATCH / gpus), Duration(round(step)), 64))
    return found


RNG = random.Random(7)
POOL = Pool({str(each): curve(RNG.uniform(0.3, 3), RNG) for each in range(6)})


def fit(scale: float = 1.0, places: Any = PLACES, vc: str = "nlp") -> FamilyFit:
    points = curve(scale, random.Random(3), places)
    batches = (BATCH // places[-1][0], BATCH // places[0][0]) if places else (0, 0)
    return as_fit(vc, "resnet", "v100", Fitted(POOL.fit_family(points), batches=batches))


FIT = fit()


@pytest.fixture
def admission() -> Driver[AdmissionMachine]:
    """Return admission of a VC with two nodes of 8 GPUs, which knows how fast resnet is."""
    driver = begun()
    driver(told(FIT))
    return driver


def told(*fits: FamilyFit, jobs: tuple[JobPace, ...] = (), second: float = 0) -> Outlook:
    return Outlook(at=at(second), fits=fits, jobs=jobs)


STEADY = {"samples": 9, "mean_milli": 1000, "spread_milli": 50}


def pace(job: str, remaining_s: float, **more: Any) -> JobPace:
    fields = {"attempt": 1, "steps": 100, "rate_milli": 1000, "workers": 1} | more
    left = Duration(round(remaining_s * NS_PER_SECOND))
    return JobPace(job=job, remaining=left, **fields)


def hear(driver: Driver[AdmissionMachine], second: float, *jobs: JobPace) -> list[Any]:
    """Return the facts that follow from paces."""
    found = facts_of(driver(told(jobs=jobs, second=second), second))
    assert found == []
    while driver.machine.promising.measurements.pending:
        assert (driver.machine.wake_at() or at(second)) <= at(second)
        found += facts_of(driver.tick(second))
    return found


def answer(driver: Driver[AdmissionMachine], number: int, **more: Any) -> Judged:
    return judged(submit(driver, number, **ELASTIC | more))


# --- answers -------------------------------------------------------------------------------------


def test_a_job_is_promised_by_predicted_speed_alone(admission: Driver[AdmissionMachine]) -> None:
    effects = submit(admission, 1, finish_by="4h", **ELASTIC)
    admitted, made = facts_of(effects)
    assert isinstance(made, PromiseMade)
    assert (made.declared, made.spread) == (0, ())
    assert 0 < made.lasts.p10 < made.lasts.p50 <= made.lasts.p90 <= 4 * HOUR * NS_PER_SECOND
    gpus = sum(gpus for _, gpus in made.place.nodes)
    exact = 36_000 / gpus**0.75
    assert made.lasts.p50 / NS_PER_SECOND == pytest.approx(exact, rel=0.25)
    assert admitted.spec.promise.workers == gpus > 1
    assert judged(effects).answer is Answer.ACCEPTED


def test_a_shorter_deadline_takes_more_gpus(admission: Driver[AdmissionMachine]) -> None:
    (_, long), (_, short) = (
        facts_of(submit(admission, number, finish_by=by, **ELASTIC))
        for number, by in ((1, "30h"), (2, "4h"))
    )
    sizes = [sum(gpus for _, gpus in each.place.nodes) for each in (long, short)]
    assert sizes[0] == 1 < sizes[1]


@pytest.mark.parametrize(
    "known, why, words",
    [
        (None, Reason.PROFILE_REFUSED, "is not known"),
        (fit(places=PLACES[:1]), Reason.PROFILED_TOO_LITTLE, "fewer than 3 placements"),
        (fit(places=PLACES[:4]), Reason.PROFILED_ON_ONE_NODE, "on one node only"),
        (fit(vc="other"), Reason.PROFILE_REFUSED, "is not known"),
    ],
)
def test_what_was_not_measured_is_not_promised(
    known: FamilyFit | None, why: Reason, words: str
) -> None:
    """Sixteen GPUs are two nodes, and the measurements of another VC are not its own."""
    driver = begun()
    if known is not None:
        driver(told(known))
    found = answer(driver, 1, finish_by="8h", workers=16, elastic=None, willing={})
    assert (found.answer, found.why) == (Answer.REFUSED, why)
    assert words in found.text
    driver(told(FIT))
    assert answer(driver, 2, finish_by="8h", workers=16, elastic=None, willing={}).answer is (
        Answer.ACCEPTED
    )


def test_a_batch_size_unlike_all_measured_ones_is_not_promised(
    admission: Driver[AdmissionMachine],
) -> None:
    size = ELASTIC["size"] | {"batch_size": 100 * BATCH}
    assert answer(admission, 1, finish_by="8h", size=size).answer is Answer.REFUSED
    size = {key: value for key, value in ELASTIC["size"].items() if key != "batch_size"}
    assert answer(admission, 2, finish_by="30h", size=size).answer is Answer.ACCEPTED


def test_a_fit_that_is_withdrawn_promises_nothing(admission: Driver[AdmissionMachine]) -> None:
    admission(told(FamilyFit(vc="nlp", family="resnet", gpu_type="v100")))
    assert answer(admission, 1, finish_by="8h").why is Reason.PROFILE_REFUSED


def test_an_admission_that_has_just_begun_says_so(admission: Driver[AdmissionMachine]) -> None:
    admission.restart(5)
    found = answer(admission, 1, finish_by="8h")
    assert found.why is Reason.PROFILE_REFUSED
    assert "has just begun" in found.note
    admission(told(FIT))
    assert answer(admission, 2, finish_by="8h").answer is Answer.ACCEPTED
    admission.restart(10)
    admission.now = at(100)
    assert answer(admission, 3, finish_by="8h").note == ""


# --- judged again --------------------------------------------------------------------------------


def promised(
    driver: Driver[AdmissionMachine], number: int = 1, by: str = "8h", **more: Any
) -> PromiseMade:
    (_, made) = facts_of(submit(driver, number, **{"finish_by": by, **ELASTIC, **more}))
    assert isinstance(made, PromiseMade)
    return made


def begins(driver: Driver[AdmissionMachine], by: str = "30h") -> PromiseMade:
    made = promised(driver, by=by)
    driver(ran("j1", 0), 0)
    return made


def test_a_job_that_is_faster_gives_back_its_place(admission: Driver[AdmissionMachine]) -> None:
    made = begins(admission)
    (moved,) = hear(admission, 600, pace("j1", 2 * HOUR, samples=9, mean_milli=1000))
    assert isinstance(moved, PromiseMoved)
    assert (moved.why, moved.place.nodes) == (Reason.AS_MEASURED, made.place.nodes)
    assert moved.place.end == at(600) + round(1.02 * 2 * HOUR * NS_PER_SECOND)
    assert moved.lasts is not None
    assert moved.lasts.p50 == (600 + 2 * HOUR) * NS_PER_SECOND


def test_what_became_free_is_promised_to_others(admission: Driver[AdmissionMachine]) -> None:
    """Two nodes of 8: while the first job has both for ten hours, no other fits before that."""
    wide: dict[str, Any] = {"workers": 16, "elastic": None, "willing": {}}
    size = ELASTIC["size"] | {"mini_batches": 252_000}
    promised(admission, by="12h", size=size, **wide)
    admission(ran("j1", 0), 0)
    late = answer(admission, 2, finish_by="4h", **wide)
    assert (late.answer, late.behind) == (Answer.LATE, ("j1",))
    assert len(hear(admission, 60, pace("j1", HOUR))) == 1
    assert answer(admission, 3, finish_by="4h", **wide).answer is Answer.ACCEPTED


def test_a_job_that_is_slower_gets_more_time_while_it_can_be_on_time(
    admission: Driver[AdmissionMachine],
) -> None:
    made = begins(admission)
    (moved,) = hear(admission, 600, pace("j1", 20 * HOUR))
    assert isinstance(moved, PromiseMoved)
    assert moved.place.end > made.place.end - made.place.begin + at(0)
    assert moved.place.end <= made.judged.due


def test_a_promise_that_became_impossible_is_broken_in_time(
    admission: Driver[AdmissionMachine],
) -> None:
    begins(admission)
    (broken,) = hear(admission, 600, pace("j1", 90 * HOUR, **STEADY))
    assert isinstance(broken, PromiseBroken)
    assert (broken.why, broken.at) == (Reason.SLOWER_THAN_PREDICTED, at(600))
    assert "as measured it runs 324000 s more" in broken.detail
    assert "j1" not in admission.machine.pledges.books["nlp"].places
    assert hear(admission, 700, pace("j1", 90 * HOUR)) == []


def test_a_slow_first_minute_breaks_no_promise_and_cancels_no_job(
    admission: Driver[AdmissionMachine],
) -> None:
    submit(admission, 1, finish_by="2h", late="cancel")
    admission(ran("j1", 0), 0)
    (moved,) = hear(admission, 25, pace("j1", 9 * HOUR))
    assert isinstance(moved, PromiseMoved)
    (back,) = hear(admission, 120, pace("j1", HOUR, **STEADY))
    assert isinstance(back, PromiseMoved)
    assert back.place.end < moved.place.end
    admission(ended("j1", HOUR), HOUR)


def test_a_job_whose_length_was_declared_is_judged_by_its_pace_too(
    admission: Driver[AdmissionMachine],
) -> None:
    submit(admission, 1, finish_by="2h")
    admission(ran("j1", 0), 0)
    (broken,) = hear(admission, 600, pace("j1", 9 * HOUR, **STEADY))
    assert (broken.why, type(broken)) == (Reason.OUTRAN_ITS_LENGTH, PromiseBroken)


def test_reports_of_the_same_pace_lead_to_no_facts(admission: Driver[AdmissionMachine]) -> None:
    begins(admission)
    rng, facts = random.Random(5), list[Any]()
    for minute in range(1, 200):
        rest_s = max(5 * HOUR - 60 * minute, 60) * rng.uniform(0.96, 1.04)
        facts += hear(admission, 60 * minute, pace("j1", rest_s))
    assert 1 <= len(facts) <= 3


@pytest.mark.parametrize(
    "change",
    [{"workers": 3}, {"attempt": 2}, {"rate_milli": 0}, {"job": "j7"}, {"remaining": None}],
)
def test_what_says_nothing_of_the_promised_place_changes_nothing(
    admission: Driver[AdmissionMachine], change: dict[str, Any]
) -> None:
    begins(admission)
    other = msgspec.structs.replace(pace("j1", HOUR), **change)
    assert hear(admission, 600, other) == []


def test_a_fit_that_changes_moves_the_promises_that_rest_on_it(
    admission: Driver[AdmissionMachine],
) -> None:
    promised(admission, 1, "30h")
    submit(admission, 2, finish_by="30h")
    assert facts_of(admission(told(fit(0.5)), 10)) == []
    (moved,) = facts_of(admission.tick())
    assert isinstance(moved, PromiseMoved)
    assert (moved.job, moved.why) == ("j1", Reason.AS_MEASURED), "the other one said its run time"
    admission(told(fit(9.0)))
    (broken,) = facts_of(admission.tick())
    assert (type(broken), broken.why) == (PromiseBroken, Reason.SLOWER_THAN_PREDICTED)


def test_the_work_of_one_decision_is_bounded(admission: Driver[AdmissionMachine]) -> None:
    admission.thorough = False
    for number in range(1, 41):
        promised(admission, number, "90h")
    assert facts_of(admission(told(fit(0.5)), 10)) == []
    steps = []
    while admission.machine.promising.measurements.pending:
        wake = admission.machine.wake_at()
        assert wake is not None
        assert wake <= admission.now
        steps.append(len(facts_of(admission.tick())))
    assert max(steps) == MEASURED_MAX
    assert sum(steps) == 40
    admission.check_replay()


def test_what_is_over_is_forgotten(admission: Driver[AdmissionMachine]) -> None:
    begins(admission)
    admission(told(jobs=(pace("j1", HOUR),)), 10)
    admission(ended("j1", 20), 20)
    measured = admission.machine.promising.measurements
    assert (measured.pending, measured._paces, measured._attempts) == ({}, {}, {})


def test_a_pace_beyond_all_lengths_makes_facts_within_their_bounds(
    admission: Driver[AdmissionMachine],
) -> None:
    begins(admission)
    unsure = {"samples": 9, "mean_milli": 1000, "spread_milli": 1000}
    (moved,) = hear(admission, 600, pace("j1", 2**62 / NS_PER_SECOND, **unsure))
    assert isinstance(moved, PromiseMoved)
    assert msgspec.json.decode(msgspec.json.encode(moved), type=PromiseMoved) == moved


def test_what_was_measured_survives_a_restart(admission: Driver[AdmissionMachine]) -> None:
    begins(admission)
    (moved,) = hear(admission, 600, pace("j1", 2 * HOUR))
    admission.restart(700)
    pledge = admission.machine.pledges.jobs["j1"]
    assert (pledge.place, pledge.lasts) == (moved.place, moved.lasts)


@settings(max_examples=effort.examples(30), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 9)
        ),
        max_size=8,
    )
)
def test_no_pace_makes_admission_raise(drawn: list[tuple[int, int, int, int]]) -> None:
    driver = begun()
    driver.thorough = False
    driver(told(FIT))
    begins(driver)
    for second, (rest, mean, spread, samples) in enumerate(drawn, 1):
        job = JobPace(
            job="j1",
            attempt=1,
            steps=1,
            rate_milli=1,
            workers=1,
            remaining=Duration(rest),
            mean_milli=mean,
            spread_milli=spread,
            samples=samples,
        )
        driver(told(jobs=(job,), second=second), second)
        if driver.machine.wake_at() is not None:
            driver.tick(second)
    driver.check_replay()


def test_thousands_of_hostile_fits_do_no_harm(admission: Driver[AdmissionMachine]) -> None:
    admission.thorough = False
    form = msgspec.structs.replace(FIT.forms[0], numbers=(float("nan"),) * 9)
    for number in range(200):
        fits = [
            msgspec.structs.replace(FIT, vc="evil", family=f"f{number}-{each}", forms=(form,))
            for each in range(20)
        ]
        admission(told(*fits))
    assert len(admission.machine.promising.measurements.fits) == 1
    assert answer(admission, 1, finish_by="30h").answer is Answer.ACCEPTED
