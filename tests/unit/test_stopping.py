"""When a mini-batch has been timed often enough."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from skep.perf.stopping import SAMPLES_MAX, SAMPLES_MIN, Stop, half_width, quantile, stop, stops_at
from skep.units import Duration, seconds

MS = 1_000_000


def test_even_mini_batches_are_timed_as_often_as_is_the_least() -> None:
    assert stops_at([seconds(9.0), *[Duration(10 * MS)] * 50]) == (SAMPLES_MIN + 1, Stop.PRECISE)


def test_the_first_mini_batch_does_not_count() -> None:
    """It takes a thousand times as long: were it counted, no mean would ever be precise."""
    even = [Duration(10 * MS)] * 120
    assert stops_at([seconds(10.0), *even])[1] is Stop.PRECISE
    assert stops_at([Duration(10 * MS), seconds(10.0), *even])[1] is Stop.COUNT


def test_uneven_mini_batches_are_timed_at_most_so_often() -> None:
    uneven = [Duration((1 if number % 2 else 9) * MS) for number in range(300)]
    assert stops_at(uneven) == (SAMPLES_MAX + 1, Stop.COUNT)


def test_slow_mini_batches_are_timed_at_most_so_long() -> None:
    assert stops_at([seconds(7.0), *[seconds(11.0)] * 9]) == (4, Stop.TIME)
    assert stops_at([seconds(40.0), seconds(40.0)]) == (2, None), "one duration has no spread"
    assert stops_at([seconds(40.0)] * 3) == (3, Stop.TIME)


def test_too_few_mini_batches_stop_nothing() -> None:
    assert stops_at([]) == (0, None)
    assert stops_at([Duration(MS)] * SAMPLES_MIN) == (SAMPLES_MIN, None)


def test_only_the_latest_may_be_known() -> None:
    assert stop(64, 10.0, 4.0, made=70, lasted=700) is None
    assert stop(64, 10.0, 4.0, made=100, lasted=1000) is Stop.COUNT
    assert stop(64, 10.0, 4.0, made=70, lasted=seconds(31.0)) is Stop.TIME
    assert stop(1, 10.0, 0.0, made=100, lasted=seconds(31.0)) is None


def test_quantiles_are_those_of_tables() -> None:
    for freedom, value in ((1, 12.706), (4, 2.776), (7, 2.365), (30, 2.042), (100, 1.984)):
        assert quantile(freedom) == pytest.approx(value, rel=0.005)
    assert half_width(1, 1.0) == float("inf")


@pytest.mark.parametrize("deviation, covered", [(0.05, 0.97), (0.1, 0.92), (0.2, 0.9)])
def test_means_are_as_precise_as_is_said(deviation: float, covered: float) -> None:
    """Nominal are 95 %; looking after each mini-batch costs a few of them."""
    rng, good, runs = random.Random(19), 0, 600
    for _ in range(runs):
        timed = [max(1, round(1e6 * rng.gauss(1.0, deviation))) for _ in range(SAMPLES_MAX)]
        count, _ = stops_at([Duration(10**9), *map(Duration, timed)])
        good += abs(mean(timed[: count - 1]) / 1e6 - 1.0) <= 0.05
    assert good / runs >= covered, (deviation, good / runs)
