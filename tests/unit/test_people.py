"""What people of a VC use: halving in integers, accounts by the facts, and limits at submission."""

import math
from fractions import Fraction

import pytest

from skep.base.halving import MEAN_LIFE, ONE, decayed, factor
from skep.ledger import fold
from skep.ledger.snapshot import keep
from skep.ledger.state import ClusterState
from skep.machines.admission import AdmissionMachine
from skep.machines.allocator import AllocatorMachine
from skep.units import NS_PER_SECOND, Duration, seconds
from skep.wire.admin import SetVcs
from skep.wire.changes import AskSuspend
from skep.wire.cluster import FairShare, PersonLimits, VirtualCluster
from skep.wire.facts import JobBound, Refused
from skep.wire.reasons import Reason
from tests.kit import (
    Driver,
    admitted,
    allocator,
    at,
    exited,
    facts_of,
    joined,
    spec,
    started,
    submission,
)
from tests.unit.test_allocator_changes import ask, known

HOUR = seconds(3600.0)
WEEK = Duration(7 * 24 * HOUR)
FAIR = FairShare(half_life=3600, weights={"ada": 2.0})


@pytest.mark.parametrize("elapsed", [0, 1, 999, HOUR, WEEK, WEEK + 1, 5 * WEEK, 70 * WEEK])
def test_a_factor_is_a_power_of_two_to_fourteen_digits(elapsed: int) -> None:
    exact = 2.0 ** -(elapsed / WEEK)

    assert factor(elapsed, WEEK) / ONE == pytest.approx(exact, rel=1e-12, abs=1e-18)


def test_what_came_steadily_is_its_integral() -> None:
    exact = 8 * WEEK / math.log(2) * (1 - 2.0 ** -(HOUR / WEEK))

    assert decayed(0, 8, HOUR, WEEK) == pytest.approx(exact, rel=1e-9)
    assert pytest.approx(1 / math.log(2), rel=1e-15) == float(Fraction(MEAN_LIFE, ONE))


def test_to_decay_in_two_steps_is_to_decay_in_one() -> None:
    once = decayed(10**18, 4, 2 * HOUR, WEEK)
    twice = decayed(decayed(10**18, 4, HOUR, WEEK), 4, HOUR, WEEK)

    assert abs(once - twice) < NS_PER_SECOND


def _sharing(**entry: object) -> Driver[AllocatorMachine]:
    driver = allocator(joined(gpus=4))
    vc = VirtualCluster(gpus=4, **entry)  # type: ignore[arg-type]
    driver(SetVcs(vcs={"nlp": vc}))
    return driver


def _used(driver: Driver[AllocatorMachine], person: str, second: float) -> float:
    """Return the GPU seconds of a person."""
    of_vc = driver.machine.state.people.of_vc["nlp"]
    return of_vc.used(person, at(second)) / NS_PER_SECOND


def test_a_job_uses_gpus_from_its_binding_to_its_end() -> None:
    driver = _sharing(fair_share=FAIR)
    driver(admitted(1, gpus=2, labels={"user": "ada"}), 10)
    driver(started("j1"), 20)

    driver(exited("j1"), 110)

    assert _used(driver, "ada", 110) == pytest.approx(200, rel=0.02)
    assert _used(driver, "ada", 110 + 3600) == pytest.approx(100, rel=0.02)
    assert _used(driver, "bob", 110) == 0


def test_a_suspended_job_without_gpus_uses_none() -> None:
    driver = _sharing(fair_share=FAIR)
    driver(admitted(1, gpus=2, labels={"user": "ada"}), 0)
    driver(started("j1"), 1)
    driver(known("j1"), 1)
    driver(ask(1, AskSuspend(job="j1", release=True)), 2)
    of_vc = driver.machine.state.people.of_vc["nlp"]
    assert of_vc.accounts["ada"].gpus == 2  # Until it has given them back.

    kept = ClusterState()
    for piece in keep(driver.machine.state):
        fold.apply(kept, piece)

    assert kept.people == driver.machine.state.people


def test_who_used_least_for_the_weight_is_next() -> None:
    driver = _sharing(fair_share=FAIR)
    for number, who in enumerate(("ada", "bob"), 1):
        driver(admitted(number, gpus=2, labels={"user": who}), 0)
    for number, who in enumerate(("bob", "ada"), 3):
        driver(admitted(number, gpus=2, labels={"user": who}), 1)
    assert driver.machine.state.jobs["j3"].attempt == 0

    driver(started("j1"), 2)
    bound = facts_of(driver(exited("j1"), 600))

    # Both used 1200 GPU seconds: of ada, with twice the weight, that is half as much.
    names = [(fact.job, fact.ranked) for fact in bound if isinstance(fact, JobBound)]
    assert names == [("j4", Reason.FAIR_SHARE)]


def test_a_person_above_a_limit_waits_and_holds_up_nobody() -> None:
    driver = _sharing(limits=PersonLimits(running=1))
    driver(admitted(1, labels={"user": "ada"}), 0)
    driver(admitted(2, labels={"user": "ada"}), 1)
    driver(admitted(3, labels={"user": "bob"}), 2)

    jobs = driver.machine.state.jobs
    assert [jobs[name].attempt for name in ("j1", "j2", "j3")] == [1, 0, 1]
    assert jobs["j2"].waits == (Reason.PERSON_LIMIT, "one person runs 1 jobs at a time")

    driver(started("j1"), 3)
    driver(exited("j1"), 4)
    assert jobs["j2"].attempt == 1


def test_gpus_of_a_person_are_limited_for_opportunistic_jobs_as_well() -> None:
    driver = _sharing(limits=PersonLimits(gpus=2))
    driver(admitted(1, gpus=2, labels={"user": "ada"}, opportunistic=True), 0)
    driver(admitted(2, gpus=1, labels={"user": "ada"}, opportunistic=True), 1)
    driver(admitted(3, gpus=1, labels={"user": "bob"}, opportunistic=True), 2)

    jobs = driver.machine.state.jobs
    assert [jobs[name].attempt for name in ("j1", "j2", "j3")] == [1, 0, 1]
    assert jobs["j2"].waits == (Reason.PERSON_LIMIT, "one person has 2 GPUs at a time")


def test_more_than_a_person_may_have_queued_is_refused_until_one_begins() -> None:
    driver = Driver(AdmissionMachine)
    driver.restart(0)
    limits = PersonLimits(queued=1, gpus=8)
    driver(SetVcs(vcs={"nlp": VirtualCluster(gpus=64, limits=limits)}))
    driver(submission(1, raw=spec(labels={"user": "ada"})))

    (refused,) = facts_of(driver(submission(2, raw=spec(labels={"user": "ada"}))))
    assert isinstance(refused, Refused)
    assert refused.problems[0].reason is Reason.ABOVE_PERSON_LIMIT
    assert "`ada` has 1 jobs" in refused.problems[0].text

    (large,) = facts_of(driver(submission(3, raw=spec(gpus=8, workers=2))))
    assert "16 GPUs, and one person of `nlp` has 8" in large.problems[0].text
