"""Noise is no change of level, a change is not missed, and reports may come as they like."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.perf.progress import (
    HELD_WINDOWS_MAX,
    LEVEL_WINDOWS,
    RATE_MILLI_MAX,
    WINDOW,
    Level,
    LevelChange,
    PhaseWatch,
    RankWindow,
)
from skep.units import NS_PER_SECOND

BEGIN = 1_700_000_000 * NS_PER_SECOND
JITTER = 0.15
WINDOWS = 10_000
SEEDS = range(4)

Draw = Callable[[random.Random], float]


def uniform(rng: random.Random) -> float:
    return rng.uniform(1 - JITTER, 1 + JITTER)


def normal(rng: random.Random) -> float:
    return max(rng.gauss(1, JITTER), 0.05)


@pytest.mark.parametrize("draw", [uniform, normal])
@pytest.mark.parametrize("seed", SEEDS)
def test_noise_in_the_rates_of_ten_thousand_windows_is_no_change(draw: Draw, seed: int) -> None:
    rng = random.Random(seed)
    level = Level()
    assert not any(level.add(round(1e9 * draw(rng))) for _ in range(WINDOWS))


def progress(rng: random.Random, draw: Draw, step_s: float, windows: int) -> list[LevelChange]:
    """Report a job with noise in its mini-batches, once a second and late; return the changes."""
    rank, watch = RankWindow(), None
    changes: list[LevelChange] = []
    steps, ended, at = 0, BEGIN, BEGIN
    following = ended + round(step_s * NS_PER_SECOND * draw(rng))
    seconds = round(windows * max(10, 5 * step_s))
    for _ in range(seconds):
        at += NS_PER_SECOND
        while following <= at:
            steps, ended = steps + 1, following
            following += round(step_s * NS_PER_SECOND * draw(rng))
        rank.observe(steps, ended, round(step_s * NS_PER_SECOND), at + rng.randrange(NS_PER_SECOND))
        if watch is None:
            watch = PhaseWatch(rank) if steps else None
            continue
        change = watch.watch(rank)
        changes += [change] if change else []
    return changes


@pytest.mark.parametrize(
    "step_s, windows, seed", [(0.4, 1_500, 1), (2.0, 2_500, 2), (7.0, 800, 3), (60.0, 100, 4)]
)
@pytest.mark.parametrize("draw", [uniform, normal])
def test_noise_in_the_mini_batches_is_no_change(
    draw: Draw, step_s: float, windows: int, seed: int
) -> None:
    assert progress(random.Random(seed), draw, step_s, windows) == []


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("draw", [uniform, normal])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_change_in_noise_is_told_once_within_two_minutes(
    draw: Draw, factor: float, seed: int
) -> None:
    rng = random.Random(seed)
    level = Level()
    assert not any(level.add(round(1e9 * draw(rng))) for _ in range(LEVEL_WINDOWS))
    told = [level.add(round(1e9 * factor * draw(rng))) for _ in range(100)]
    (when,) = [window for window, change in enumerate(told, start=1) if change]
    change = told[when - 1]
    assert when <= HELD_WINDOWS_MAX
    assert change is not None
    assert change.before == pytest.approx(1e9, rel=0.15)
    assert change.after == pytest.approx(1e9 * factor, rel=0.25)


@given(
    step_ns=st.integers(1_000_000, 4 * NS_PER_SECOND),
    gaps=st.lists(st.integers(1, 5_000), min_size=1, max_size=60),
    delays=st.lists(st.integers(0, 2 * NS_PER_SECOND), min_size=61, max_size=61),
)
def test_a_steady_rate_is_exact_whenever_reports_are_made(
    step_ns: int, gaps: list[int], delays: list[int]
) -> None:
    rank = RankWindow()
    steps = 1
    at = BEGIN
    for gap, delay in zip([0, *gaps], delays, strict=False):
        steps += gap
        ended = BEGIN + steps * step_ns
        at = max(at, ended + delay)
        rank.observe(steps, ended, 0, at if at - ended < 3 * NS_PER_SECOND else ended)
    assert rank.known
    assert abs(rank.rate_milli - 1000 * NS_PER_SECOND // step_ns) <= 1


COUNTS = st.one_of(st.integers(0, 50), st.integers(0, 10**15))
TIMES = st.one_of(
    st.just(0), st.integers(BEGIN, BEGIN + 100 * NS_PER_SECOND), st.integers(0, 2**62)
)


@given(reports=st.lists(st.tuples(COUNTS, TIMES, COUNTS, TIMES), max_size=40))
def test_whatever_a_rank_reports_its_rate_stays_in_range(
    reports: list[tuple[int, int, int, int]],
) -> None:
    rank = RankWindow()
    watch: PhaseWatch | None = None
    for steps, ended, step_ns, at in reports:
        rank.observe(steps, ended, step_ns, at)
        assert 0 <= rank.rate_milli <= RATE_MILLI_MAX
        assert rank.silent_ns >= 0
        assert rank.steps == 0 or rank.full() in {True, False}
        if rank.known:
            watch = watch or PhaseWatch(rank)
            watch.watch(rank)


@given(pauses=st.lists(st.integers(0, 30), min_size=1, max_size=20), rate=st.integers(1, 50))
def test_a_rate_never_rises_in_silence(pauses: list[int], rate: int) -> None:
    rank = RankWindow()
    for second in range(1, 15):
        rank.observe(second * rate, BEGIN + second * NS_PER_SECOND, 0, BEGIN)
    at = BEGIN + 14 * NS_PER_SECOND
    rates = []
    for pause in pauses:
        at += pause * NS_PER_SECOND
        rank.observe(14 * rate, BEGIN + 14 * NS_PER_SECOND, 0, at)
        rates.append(rank.rate_milli)
    assert all(after <= before for before, after in pairwise(rates))
    assert rates[-1] > 0 or rank.silent_ns > WINDOW
