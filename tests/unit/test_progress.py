"""Rates, levels and stalls, from hand-made reports."""

import pytest

from skep.perf import progress
from skep.perf.progress import Level, LevelChange, PhaseWatch, RankWindow
from skep.units import seconds

BEGIN = 1_700_000_000 * 10**9


def at(offset: float) -> int:
    return BEGIN + seconds(offset)


def observed(*reports: tuple[float, int, float], step_s: float = 0.0) -> RankWindow:
    """Feed (report time, steps, end of the latest mini-batch), in seconds since BEGIN."""
    rank = RankWindow()
    for told, steps, ended in reports:
        rank.observe(steps, at(ended), seconds(step_s), at(told))
    return rank


def test_a_rate_is_thousandths_of_a_mini_batch_per_second() -> None:
    assert progress.rate_milli(5, seconds(2.0)) == 2500
    assert progress.rate_milli(0, seconds(2.0)) == 0
    assert progress.rate_milli(5, 0) == 0
    assert progress.rate_milli(5, -1) == 0
    assert progress.rate_milli(10**15, 1) == progress.RATE_MILLI_MAX


def test_the_median_of_an_even_number_lies_between_the_middle_two() -> None:
    assert progress.median([9, 1, 5]) == 5
    assert progress.median([9, 1, 5, 6]) == 5
    assert progress.median([7]) == 7


def test_a_stall_is_thirty_seconds_or_twenty_mini_batches() -> None:
    assert progress.stall_limit(0) == seconds(30.0)
    assert progress.stall_limit(seconds(1.0)) == seconds(30.0)
    assert progress.stall_limit(seconds(4.0)) == seconds(80.0)


def test_a_rank_without_a_mini_batch_has_no_rate() -> None:
    rank = observed((1, 0, 0.0))
    assert not rank.known
    assert (rank.steps, rank.rate_milli, rank.lives) == (0, 0, 0)


def test_one_report_gives_no_rate_unless_it_says_what_a_mini_batch_takes() -> None:
    assert not observed((1, 5, 0.9)).known
    rank = observed((1, 5, 0.9), step_s=0.25)
    assert rank.known
    assert rank.rate_milli == 4000
    assert not rank.full()


def test_the_rate_is_by_the_ranks_clock_whatever_the_reports_delay() -> None:
    rank = observed((1.0, 10, 0.5), (2.9, 20, 1.5), (3.0, 30, 2.5), (5.4, 50, 4.5))
    assert rank.rate_milli == 10_000
    assert rank.full()  # 40 mini-batches, though not a whole window.


def test_the_window_slides() -> None:
    reports = [(float(second), 10 * second, float(second)) for second in range(1, 21)]
    reports += [
        (float(second), 200 + 20 * (second - 20), float(second)) for second in range(21, 31)
    ]
    rank = observed(*reports)
    assert rank.rate_milli == 20_000


def test_mini_batches_longer_than_the_window_are_measured_from_end_to_end() -> None:
    reports = [
        (float(second), 1 + second // 25, float(second - second % 25)) for second in range(80)
    ]
    rank = observed(*reports)
    assert rank.rate_milli == 40
    assert rank.full()


def test_few_mini_batches_in_a_short_time_are_not_a_full_window() -> None:
    assert not observed((1, 1, 1.0), (2, 2, 2.0)).full()


def test_a_count_that_goes_back_is_another_life() -> None:
    rank = observed((1, 100, 1.0), (2, 200, 2.0), (3, 5, 3.0))
    assert (rank.lives, rank.steps, rank.known) == (2, 5, False)
    rank.observe(15, at(4.0), 0, at(4.0))
    assert rank.rate_milli == 10_000


def test_a_clock_that_goes_back_is_another_life() -> None:
    rank = observed((100, 10, 100.0), (5, 20, 5.0), (6, 30, 6.0))
    assert (rank.lives, rank.rate_milli) == (2, 10_000)


def test_a_count_without_a_time_takes_the_reports() -> None:
    rank = RankWindow()
    rank.observe(10, 0, 0, at(1.0))
    rank.observe(30, 0, 0, at(3.0))
    assert rank.rate_milli == 10_000


def test_a_count_that_grows_at_the_same_instant_waits_for_the_next_report() -> None:
    rank = observed((1, 10, 1.0), (2, 12, 1.0), (3, 30, 3.0))
    assert (rank.steps, rank.rate_milli) == (30, 10_000)


def test_a_pause_shorter_than_a_report_takes_changes_nothing() -> None:
    rank = observed((1, 100, 1.0), (2, 200, 2.0), (4.9, 200, 2.0))
    assert rank.rate_milli == 100_000
    assert rank.silent_ns == seconds(2.9)


def test_a_report_from_before_the_mini_batch_is_no_silence() -> None:
    assert observed((1, 100, 1.0), (1.5, 200, 2.0)).silent_ns == 0


def test_silence_lets_the_rate_fall() -> None:
    rank = observed(*[(float(second), 10 * second, float(second)) for second in range(1, 21)])
    rates = [rank.rate_milli]
    for second in range(21, 81):
        rank.observe(200, at(20.0), 0, at(second))
        rates.append(rank.rate_milli)
    assert rates == sorted(rates, reverse=True)
    assert rates[3] == 10_000  # Three seconds say nothing.
    assert rates[8] == 5_000  # Five seconds count: half of the window is empty.
    assert rates[-1] == 1000 // 60  # One mini-batch takes longer than the silence.


def test_silence_of_slow_mini_batches_counts_from_twice_their_length() -> None:
    reports = [
        (float(second), 1 + second // 20, float(second - second % 20)) for second in range(100)
    ]
    rank = observed(*reports)
    assert rank.rate_milli == 50
    rank.observe(5, at(80.0), 0, at(120.0))
    assert rank.rate_milli == 50
    rank.observe(5, at(80.0), 0, at(125.0))
    assert rank.rate_milli == 40
    rank.observe(5, at(80.0), 0, at(180.0))
    assert rank.rate_milli == 10


def test_silence_after_a_single_report_lets_the_announced_rate_fall() -> None:
    rank = observed((1, 5, 1.0), (101, 5, 1.0), step_s=0.25)
    assert rank.rate_milli == 10


def test_a_level_needs_windows_before_it_can_change() -> None:
    level = Level()
    for rate in (100, 100, 100, 100, 1000, 1000, 1000):
        assert level.add(rate) is None


@pytest.mark.parametrize("after", [69, 131, 10, 5000])
def test_a_change_counts_once_it_is_held_for_three_windows(after: int) -> None:
    level = Level()
    for _ in range(20):
        assert level.add(100) is None
    assert level.add(after) is None
    assert level.add(after) is None
    assert level.add(after) == LevelChange(100, after)
    assert level.add(after) is None


@pytest.mark.parametrize("after", [71, 129])
def test_a_change_of_less_than_thirty_per_cent_is_none(after: int) -> None:
    level = Level()
    assert [level.add(rate) for rate in [100] * 20 + [after] * 40] == [None] * 60


def test_two_odd_windows_are_no_change() -> None:
    level = Level()
    for _ in range(30):
        for rate in (100, 100, 100, 10, 10):
            assert level.add(rate) is None


def test_three_windows_on_either_side_are_no_change() -> None:
    level = Level()
    assert [level.add(rate) for rate in [100] * 20 + [10, 900, 10]] == [None] * 23


def test_the_way_back_is_a_change_of_its_own() -> None:
    level = Level()
    changes = [level.add(rate) for rate in [100] * 10 + [50] * 10 + [100] * 10]
    assert [change for change in changes if change] == [LevelChange(100, 50), LevelChange(50, 100)]


def test_slow_drift_is_followed() -> None:
    level = Level()
    rate = 1_000_000
    for _ in range(300):
        assert level.add(rate) is None
        rate = rate * 995 // 1000


def test_a_restless_series_asks_for_more_windows() -> None:
    level = Level()
    for _ in range(30):
        assert level.add(80) is None
        assert level.add(120) is None
    held = 1
    while level.add(40) is None:
        held += 1
    assert progress.HELD_WINDOWS < held <= progress.HELD_WINDOWS_MAX


def test_a_restless_series_that_has_just_begun_has_no_level() -> None:
    level = Level()
    for rate in (60, 140, 60, 140, 60, 200, 200, 200):
        assert level.add(rate) is None


def test_a_restless_series_does_not_change_with_its_median_in_place() -> None:
    level = Level()
    for rate in [80, 120] * 15 + [50] * 3:
        assert level.add(rate) is None  # Most of the latest twelve are of the old level.


def watched(
    rank: RankWindow, watch: PhaseWatch, begin: int, end: int, rate: int
) -> list[LevelChange]:
    """Report `rate` mini-batches a second from second `begin` to `end`; return the changes."""
    changes = []
    for second in range(begin, end):
        rank.observe(rank.steps + rate, at(second), 0, at(second))
        change = watch.watch(rank)
        changes += [change] if change else []
    return changes


def test_a_phase_change_is_told_in_thousandths() -> None:
    rank = observed((0, 1, 0.0))
    watch = PhaseWatch(rank)
    assert watched(rank, watch, 1, 101, 10) == []
    assert watched(rank, watch, 101, 150, 4) == [LevelChange(10_000, 4_000)]


def test_a_phase_survives_another_life_of_the_rank() -> None:
    rank = observed((0, 1, 0.0))
    watch = PhaseWatch(rank)
    assert watched(rank, watch, 1, 101, 10) == []
    rank.observe(1, at(101), 0, at(101))
    assert watch.watch(rank) is None
    assert watched(rank, watch, 102, 152, 4) == [LevelChange(10_000, 4_000)]


def test_a_window_of_few_mini_batches_goes_on() -> None:
    rank = observed((0, 1, 0.0))
    watch = PhaseWatch(rank)
    changes = []
    for step in range(1, 151):  # One in 20 seconds, then one in 60.
        ended = 20 * min(step, 100) + 60 * max(step - 100, 0)
        rank.observe(1 + step, at(ended), 0, at(ended))
        changes.append(watch.watch(rank))
    assert [change for change in changes if change] == [LevelChange(50, 16)]
