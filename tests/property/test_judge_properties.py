"""Trials are judged rightly in noise: false verdicts within the bounds, true ones soon enough."""

import random
from collections.abc import Iterator
from itertools import islice
from math import exp, sqrt

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skep.perf.judge import (
    BATCHES,
    FALSE_MILLI,
    KEPT_FROM,
    LOOKS,
    SAMPLE,
    SAMPLES_MAX,
    Baseline,
    Tried,
    judge,
    pays,
    slices_give,
    spread_milli,
)
from skep.units import NS_PER_SECOND, Duration, seconds
from tests import effort

TRIALS = 1500
NOISE = 0.1
BASELINE = 24
ALLOWED = FALSE_MILLI * TRIALS // 1000
CHANCE = 3 * round(sqrt(ALLOWED))
"""Three standard deviations of how often it happens in so many trials."""


def samples(rng: random.Random, mean: float, likeness_s: float = 0.0) -> Iterator[float]:
    """Yield samples of SAMPLE each, of a rate whose noise falls to 1/e in so many seconds."""
    per = SAMPLE // NS_PER_SECOND
    keep = exp(-1 / likeness_s) if likeness_s else 0.0
    noise = rng.gauss(0, NOISE)
    while True:
        total = 0.0
        for _ in range(per):
            noise = keep * noise + sqrt(1 - keep**2) * rng.gauss(0, NOISE)
            total += noise
        yield mean * (1 + total / per)


def baseline(rng: random.Random, count: int = BASELINE) -> Baseline:
    rates = [round(1e6 * rate) for rate in islice(samples(rng, 1.0), count)]
    return Baseline(sum(rates) / count / 1e6, spread_milli(rates) / 1e6, count)


def tried(rng: random.Random, *means: float, likeness_s: float = 0.0) -> list[Tried]:
    return [
        Tried(baseline(rng), list(islice(samples(rng, mean, likeness_s), SAMPLES_MAX)))
        for mean in means
    ]


def verdicts(means: tuple[float, ...], needed: float, likeness_s: float = 0.0) -> dict[object, int]:
    rng = random.Random(7)
    found: dict[object, int] = {True: 0, False: 0, None: 0}
    for _ in range(TRIALS):
        judgement = judge(tried(rng, *means, likeness_s=likeness_s), needed)
        assert judgement is not None
        found[judgement.kept] += 1
    return found


@pytest.mark.parametrize("means", effort.slow_after(1, [(1.0,), (0.5, 0.5), (0.7, 0.2, 0.1)]))
def test_what_changes_nothing_is_called_better_or_worse_within_the_bound(
    means: tuple[float, ...],
) -> None:
    found = verdicts(means, needed=1.0)
    assert found[True] <= ALLOWED + CHANCE
    assert found[False] <= ALLOWED + CHANCE


def test_noise_that_lasts_for_seconds_at_most_doubles_the_errors() -> None:
    found = verdicts((0.5, 0.5), needed=1.0, likeness_s=5.0)
    assert found[True] <= 2 * ALLOWED + CHANCE
    assert found[False] <= 2 * ALLOWED + CHANCE


@pytest.mark.parametrize("mean, kept", [(0.85, True), (0.35, False)])
def test_what_is_clearly_better_or_worse_is_nearly_always_called_so(
    mean: float, kept: bool
) -> None:
    found = verdicts((mean, mean), needed=1.0)
    assert found[kept] >= 0.99 * TRIALS
    assert found[not kept] == 0


def test_a_baseline_that_nobody_measured_makes_the_test_more_careful() -> None:
    rng = random.Random(3)
    rates = list(islice(samples(rng, 1.0), SAMPLES_MAX))
    sure = judge([Tried(Baseline(1.0, 0.0, 10**6), rates)], 1.0)
    unsure = judge([Tried(Baseline(1.0), rates)], 1.0)
    assert sure is not None
    assert unsure is not None
    assert unsure.high - unsure.low > sure.high - sure.low


@given(st.lists(st.floats(0.1, 10.0), max_size=2 * SAMPLES_MAX), st.floats(0.1, 3.0))
def test_more_samples_never_change_a_verdict(rates: list[float], needed: float) -> None:
    known = None
    for count in range(len(rates) + 1):
        found = judge([Tried(Baseline(1.0), rates[:count])], needed)
        if known is not None and known.kept is not None:
            assert found == known
        known = found


@given(st.integers(0, 2 * SAMPLES_MAX))
def test_there_is_a_look_at_certain_lengths_only(count: int) -> None:
    found = judge(
        [
            Tried(Baseline(1.0), [1.0, 1.2] * SAMPLES_MAX),
            Tried(Baseline(1.0), ([1.0, 1.2] * SAMPLES_MAX)[:count]),
        ],
        2.2,
    )
    assert (found is None) == (count < LOOKS[0][0])


def test_exact_rates_are_judged_at_the_first_look_that_may() -> None:
    steady = Tried(Baseline(10.0), [6.0] * KEPT_FROM)
    found = judge([steady, steady], needed=0.99)
    assert found is not None
    assert (found.kept, found.low, found.high) == (True, found.sum, found.sum)
    soon = steady._replace(rates=[6.0] * LOOKS[0][0])
    kept, undone = judge([soon, soon], needed=0.99), judge([soon, soon], needed=1.5)
    assert kept is not None
    assert kept.kept is None
    assert undone is not None
    assert undone.kept is False


def test_what_clearly_hurts_is_undone_after_four_samples() -> None:
    loss = Tried(Baseline(1.0, 0.0, 10**6), [0.50, 0.51, 0.49, 0.50])
    found = judge([loss], 1.0)
    assert found is not None
    assert found.kept is False
    assert found.high < 1.0
    assert judge([loss._replace(rates=loss.rates[:3])], 1.0) is None
    # Four samples that differ by more say too little of what is a tenth worse.
    unsure = judge([loss._replace(rates=[0.9, 0.92, 0.88, 0.9])], 1.0)
    assert unsure is not None
    assert unsure.kept is None


@given(st.lists(st.floats(0.1, 10.0), min_size=4, max_size=15), st.floats(0.1, 3.0))
@example([10.0] * 15, 1.0)
@example([10.0] * 8, 1.0)
@example([10.0] * 4, 1.0)
def test_nothing_is_kept_by_fewer_than_sixteen_samples(rates: list[float], needed: float) -> None:
    found = judge([Tried(Baseline(1.0), rates)], needed)
    assert found is not None
    assert found.kept is not True


def test_nothing_is_judged_without_a_rate_to_compare_with() -> None:
    found = judge([Tried(Baseline(0.0), [1.0] * SAMPLES_MAX)], 1.0)
    assert found is not None
    assert found.kept is None
    assert judge([], 1.0) is None


def test_turns_give_one_less_what_switching_costs() -> None:
    assert slices_give(seconds(0.6), seconds(60)) == pytest.approx(0.99)
    assert slices_give(seconds(2), seconds(1)) == 0.0
    assert slices_give(Duration(1), Duration(0)) == 0.0


def test_a_pause_pays_if_the_rest_is_done_sooner_with_it() -> None:
    assert pays(seconds(10), seconds(100)) == pytest.approx(100 / 90)
    assert pays(seconds(10), seconds(10)) == float("inf")
    assert pays(seconds(10), None) == 1.0


@given(st.lists(st.integers(0, 10**12), min_size=BATCHES, max_size=50))
def test_the_spread_is_the_standard_deviation(rates: list[int]) -> None:
    mean = sum(rates) / len(rates)
    true = sqrt(sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1))
    assert spread_milli(rates) == pytest.approx(true, abs=1.0, rel=1e-6)
