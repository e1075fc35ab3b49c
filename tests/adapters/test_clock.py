"""The real clock and the one that tests move."""

from __future__ import annotations

import asyncio
import time

import pytest

from skep.units import Duration, Instant, seconds
from skep_services.adapters.clock import SystemClock
from skep_services.adapters.memory import MANUAL_BEGIN, ManualClock, matches
from tests.adapters.worlds import eventually


def test_system_clock_is_wall_time() -> None:
    before = time.time_ns()
    now = SystemClock().now()
    assert before <= now <= time.time_ns()


def test_system_clock_never_runs_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    wall, steady = time.time_ns() + 10**12, time.monotonic_ns()
    times = {"wall": wall, "steady": steady}
    monkeypatch.setattr(time, "time_ns", lambda: times["wall"])
    monkeypatch.setattr(time, "monotonic_ns", lambda: times["steady"])
    assert clock.now() == wall
    # Set back by an hour: time goes on at half speed, however often it is asked for.
    times["wall"] = wall - int(seconds(3600))
    assert clock.now() == wall
    for _ in range(10):
        times["wall"] += 10
        times["steady"] += 10
        clock.now()
    assert clock.now() == wall + 50
    # Once the wall clock has caught up, it leads again.
    times["wall"] = wall + 1000
    assert clock.now() == wall + 1000


@pytest.mark.asyncio
async def test_system_clock_sleeps_until_an_instant() -> None:
    clock = SystemClock()
    instant = Instant(clock.now() + seconds(0.02))
    await clock.sleep_until(instant)
    assert clock.now() >= instant
    await clock.sleep_until(Instant(0))


@pytest.mark.asyncio
async def test_manual_clock_wakes_sleepers_in_order() -> None:
    clock = ManualClock()
    assert clock.now() == MANUAL_BEGIN
    woken: list[str] = []

    async def doze(name: str, length: Duration) -> None:
        await clock.sleep_until(Instant(MANUAL_BEGIN + length))
        woken.append(name)

    sleepers = [
        asyncio.create_task(doze(name, seconds(length)))
        for name, length in [("late", 3.0), ("early", 1.0), ("same", 1.0), ("past", 0.0)]
    ]
    await eventually(lambda: woken == ["past"])
    assert clock.next_wake == MANUAL_BEGIN + seconds(1)
    clock.advance(seconds(2))
    await eventually(lambda: len(woken) == 3)
    assert woken == ["past", "early", "same"]
    sleepers[0].cancel()
    await asyncio.wait(sleepers)
    assert not clock.next_wake
    clock.advance(seconds(5))
    assert clock.now() - MANUAL_BEGIN == seconds(7)


@pytest.mark.parametrize(
    "pattern, subject, expected",
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b", "a.b", True),
        ("a.b", "a", False),
        ("a.b", "a.c", False),
    ],
)
def test_memory_subjects_match_as_on_nats(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected
