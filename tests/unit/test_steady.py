"""What a job makes in the long run is told once it is known, and anew once it is otherwise."""

import random

from skep.perf.steady import NOT_YET, WINDOWS, Gathering, Steady, of


def test_a_mean_is_told_of_enough_windows_once_for_each() -> None:
    gathering = Gathering()
    for _ in range(WINDOWS - 1):
        gathering.add(1000)
        assert gathering.news() is NOT_YET
    gathering.add(1000)
    assert gathering.news() == Steady(1000, 0, WINDOWS)
    assert gathering.news() is NOT_YET
    gathering.add(1000)
    assert gathering.news() == Steady(1000, 0, WINDOWS)


def test_another_rate_begins_anew() -> None:
    gathering = Gathering()
    gathering.repeat(1000, 50)
    assert (gathering.missing, gathering.news()) == (0, NOT_YET)
    gathering.add(1030)
    assert gathering.missing == WINDOWS - 1
    gathering.repeat(1030, WINDOWS - 2)
    gathering.add(1030)
    assert gathering.news() == Steady(1030, 0, WINDOWS)


def test_what_varies_is_the_same_rate_within_what_it_varies_by() -> None:
    rng = random.Random(7)
    gathering, told = Gathering(), list[Steady]()
    for _ in range(400):
        gathering.add(round(rng.gauss(10_000, 500)))
        news = gathering.news()
        if news is not NOT_YET and news not in told:
            told.append(news)
    assert 0 < len(told) < 400 // WINDOWS // 2
    assert all(abs(each.mean - 10_000) < 3 * 500 / WINDOWS**0.5 for each in told)


def test_the_spread_is_the_standard_deviation() -> None:
    assert of([10, 20, 30]) == Steady(20, 10, 3)
    assert of([5]) == Steady(5, 0, 1)
