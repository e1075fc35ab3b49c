"""Kills in trials: every case is played, and the moment before a pack is found by what is heard."""

from __future__ import annotations

import math

from skep.units import Instant
from skep.wire.advice import JobPace, Outlook
from skep.wire.findings import JobRate, Rates
from tests.system.kill_trials import PHASES, SERVICES, Case, Measured, cases

AT = Instant(1)


def outlook(*jobs: str, memory: int = 1) -> Outlook:
    paces = tuple(JobPace(job=job, attempt=1, steps=9, rate_milli=9, memory=memory) for job in jobs)
    return Outlook(at=AT, jobs=paces)


def rates(*jobs: str) -> Rates:
    told = tuple(JobRate(job=job, attempt=1, steps=9, rate_milli=9) for job in jobs)
    return Rates(at=AT, jobs=told)


def test_every_service_dies_in_every_phase_once() -> None:
    every = [Case(service, phase) for service in SERVICES for phase in PHASES]
    assert sorted(cases()) == sorted(every)


def test_both_are_measured_once_each_has_been_told_with_its_memory() -> None:
    pair = Measured({"j1", "j2"}, None)
    assert [
        pair.look(told)
        for told in (
            outlook("j1"),
            rates("j2"),
            outlook("j2", memory=0),
            outlook("j3"),
            outlook("j2"),
        )
    ] == [False, False, False, False, True]


def test_the_moment_before_comes_with_the_rates_of_the_last_one() -> None:
    at_once, never = Measured({"j1", "j2"}, 0.0), Measured({"j1", "j2"}, math.inf)
    heard = rates("j1"), outlook("j1"), rates("j1"), rates("j2")
    assert [at_once.look(told) for told in heard] == [False, False, False, True]
    assert not any(never.look(told) for told in heard)
    assert never.look(outlook("j2"))
