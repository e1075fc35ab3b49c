"""How fast jobs went, as the gateway keeps and answers it."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from skep.wire.findings import JobRate, Rates
from skep_services.gateway.courses import JOBS_MAX, POINTS_MAX, Course, Courses, Rated
from tests.gateway_kit import opened, submitted
from tests.kit import at


def heard(second: int, rate: int = 1000, attempt: int = 1, memory: int = 0) -> Rated:
    """What was measured of a window that ended at a second."""
    return Rated(at(second), attempt, 10 * second, rate, 500, memory)


def test_a_long_run_stays_whole_and_bounded() -> None:
    course, windows = Course(), 50 * POINTS_MAX + 7
    for second in range(windows):
        course.add(heard(second, rate=second, memory=second))
    points = course.points()
    assert POINTS_MAX / 2 < len(points) <= POINTS_MAX + 1
    assert points[-1].at == at(windows - 1)
    assert points[-1].memory == windows - 1
    # Every window counts: each point is the mean of as many as it stands for.
    gaps = [round((b.at - a.at) / 1e9) for a, b in pairwise(points)]
    assert gaps[0] == 64
    total = sum(point.rate_milli * gap for point, gap in zip(points[1:], gaps, strict=True))
    assert total == pytest.approx(windows**2 / 2, rel=0.01)


def test_a_point_is_of_one_attempt() -> None:
    course = Course()
    for second in range(3 * POINTS_MAX):
        course.add(heard(second, rate=1000, attempt=1))
    course.add(heard(3 * POINTS_MAX, rate=9000, attempt=2))
    rates = {point.attempt: point.rate_milli for point in course.points()}
    assert rates == {1: 1000, 2: 9000}


def test_a_job_of_many_attempts_keeps_the_latest_and_stays_as_fine() -> None:
    course = Course()
    for attempt in range(1, 200):
        course.add(heard(attempt, attempt=attempt), 50)
    course.add(heard(200, attempt=199), 50)
    course.add(heard(201, attempt=200), 50)
    points = course.points()
    assert len(points) <= 51
    assert [point.at for point in points[-2:]] == [at(200), at(201)]


def test_what_is_not_a_point_yet_takes_no_more_room_the_longer_it_lasts() -> None:
    course = Course()
    tracemalloc.start()
    sizes = []
    for second in range(20_000):
        course.add(heard(second), 50)
        if second in (5_000, 19_000):
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] - sizes[0] < 10_000, sizes


def test_the_jobs_that_were_measured_last_are_kept() -> None:
    courses = Courses()
    for number in range(JOBS_MAX):
        courses.take(JobRate(job=f"j{number}", attempt=1, steps=1, rate_milli=5), at(1))
    courses.take(JobRate(job="j0", attempt=1, steps=2, rate_milli=5), at(2))
    courses.take(JobRate(job="new", attempt=1, steps=1, rate_milli=5), at(2))
    assert len(courses.of("j0")) == 2
    assert courses.of("j1") == []


@pytest.mark.asyncio
async def test_rates_are_answered_with_what_was_decided(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await house.with_nodes(nodes=1)
        job = await submitted(house)
        none = await house.op.get(f"/v1/jobs/{job}/rates")
        house.cluster.runs(job)
        await house.caught_up()
        for second in (5, 6):
            rate = JobRate(
                job=job, attempt=1, steps=second, rate_milli=1500, utilisation=700, memory=9
            )
            house.gateway.indexer.live.apply(Rates(at=at(second), jobs=(rate,)), at(second))
        told = await house.nlp.get(f"/v1/jobs/{job}/rates")
        assert none["at"] == []
        assert told["at"] == [at(5), at(6)]
        assert (told["steps"], told["attempt"]) == ([5, 6], [1, 1])
        assert told["rate_milli"] == [1500, 1500]
        assert (told["utilisation"], told["memory"]) == ([700, 700], [9, 9])
        assert [mark["kind"] for mark in told["marks"]] == ["job-bound"]
        # Another tenant's job is unknown, as everywhere.
        assert (await house.vision.get(f"/v1/jobs/{job}/rates", 404))["error"]["reason"]
