"""Reports that last lead to the same findings as reports every second, and to far fewer looks."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from skep.machines.base import Send, Tick
from skep.machines.introspector import IntrospectorMachine
from skep.perf.course import Course
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire.findings import JobRate, PhaseChanged, RateLearned, Rates, Stalled
from skep.wire.reports import JobProgress, NodeReport, RankProgress

BEGIN = 1_700_000_000 * NS_PER_SECOND


class Told(NamedTuple):
    findings: list[tuple[int, Any]]
    rates: dict[int, JobRate]
    """By second."""
    looks: int


def play(courses: list[Course], end: int, *, lasting: bool) -> Told:
    """Return what the introspector says of a job that takes these courses, one after the other."""
    machine = IntrospectorMachine()
    told = Told([], {}, 0)
    looks, now = 0, 0
    event: Any
    spoken = iter(_spoken(courses, end, lasting=lasting))
    nxt = next(spoken, None)
    while True:
        wake = machine.wake_at()
        if nxt is None and (wake is None or wake > end):
            return told._replace(looks=looks)
        if nxt is None or (wake is not None and wake <= nxt[0]):
            assert wake is not None
            now, event = wake, Tick()
            looks += 1
        else:
            (now, event), nxt = nxt, next(spoken, None)
        for effect in machine.decide(event, Instant(now)):
            assert isinstance(effect, Send)
            if isinstance(effect.message, Rates):
                told.rates[now] = effect.message.jobs[0]
            else:
                told.findings.append((now, effect.message))
        machine.check()


def _spoken(courses: list[Course], end: int, *, lasting: bool) -> Iterator[tuple[int, Any]]:
    for course, after in zip(courses, [*courses[1:], None], strict=True):
        until = end if after is None else after.at
        at = course.at
        while at < until:
            steps, ended = course.done(at)
            rank = RankProgress(
                rank=0,
                steps=steps,
                last_step_at=Instant(ended),
                step_ns=course.step_ns,
                utilisation=500,
                next_at=Instant(course.next_at if lasting else 0),
            )
            job = JobProgress(job="j1", attempt=1, world=1, ranks=(rank,), lasts=lasting)
            yield at, NodeReport(node="n1", at=Instant(at), jobs=(job,))
            at = until if lasting else at + NS_PER_SECOND


def drawn(seed: int) -> tuple[list[Course], int]:
    """Return the courses of a job that changes its pace, or stands, at any time."""
    rng = random.Random(seed)
    scale = rng.choice([0.004, 0.08, 0.7, 1.0, 3.3, 25.0])
    at = BEGIN + rng.randrange(2 * NS_PER_SECOND)
    step = seconds(scale)
    courses = [Course(at, 0, 0, at + step, step)]
    for _ in range(rng.randrange(1, 7)):
        last = courses[-1]
        at += seconds(rng.choice([0.3, 1, 4, 15, 40, 130, 700, 3000]) * (0.5 + rng.random()))
        steps, ended = last.done(at)
        step = seconds(scale * rng.choice([0.5, 0.8, 0.95, 1.0, 1.3, 1.6, 4.0]))
        if rng.random() < 0.2:
            courses.append(Course(at, steps, ended, 0, last.step_ns))
        else:
            courses.append(Course(at, steps, ended, at + 1 + rng.randrange(step), step))
    return courses, at + seconds(rng.choice([5, 60, 2000]))


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_one_report_for_each_change_leads_to_the_findings_of_one_every_second(first: int) -> None:
    for seed in range(first, first + 20):
        courses, end = drawn(seed)
        every, once = (play(courses, end, lasting=lasting) for lasting in (False, True))
        assert once.findings == every.findings, seed
        for now, rate in once.rates.items():
            assert rate == every.rates[now], (seed, now)
        known = JobRate(job="j1", attempt=1, steps=0, rate_milli=0, workers=1)
        for now, rate in every.rates.items():
            known = once.rates.get(now, known)
            assert rate.rate_milli == known.rate_milli, (seed, now)
        assert news(once.rates) == news(every.rates), seed


def news(rates: dict[int, JobRate]) -> list[tuple[int, int, int, int]]:
    """Return when the mean of many windows was told, and another one than before."""
    found: list[tuple[int, int, int, int]] = []
    for now, rate in rates.items():
        told = rate.mean_milli, rate.spread_milli, rate.samples
        if rate.samples and (not found or found[-1][1:] != told):
            found.append((now, *told))
    return found


def test_a_steady_job_is_looked_at_until_nothing_can_be_found_and_never_forgotten() -> None:
    week = BEGIN + seconds(7 * 24 * 3600)
    steady = Course(BEGIN, 0, 0, BEGIN + seconds(0.1), seconds(0.1))
    told = play([steady], week, lasting=True)
    assert told.looks < 60
    steps, ended = steady.done(week)
    slower = Course(week, steps, ended, week + seconds(0.2), seconds(0.2))
    told = play([steady, slower], week + seconds(3600), lasting=True)
    assert [type(finding) for _, finding in told.findings] == [RateLearned, PhaseChanged]
    assert told.looks < 200


def test_a_job_that_stands_is_stalled_and_has_no_rate_until_it_goes_on() -> None:
    stands = BEGIN + seconds(60)
    steps, ended = Course(BEGIN, 0, 0, BEGIN + seconds(1), seconds(1)).done(stands)
    goes = stands + seconds(1000)
    told = play(
        [
            Course(BEGIN, 0, 0, BEGIN + seconds(1), seconds(1)),
            Course(stands, steps, ended, 0, seconds(1)),
            Course(goes, steps, ended, goes + seconds(1), seconds(1)),
        ],
        goes + seconds(60),
        lasting=True,
    )
    stalls = [(now, each.over) for now, each in told.findings if isinstance(each, Stalled)]
    assert [over for _, over in stalls] == [False, True]
    assert told.rates[stalls[0][0]].rate_milli == 0
    assert told.rates[max(told.rates)].rate_milli == 1000
