"""Paired differences and their intervals."""

import random

from skep_lab.measures.paired import PAIRS_MIN, paired


def test_a_difference_is_taken_pair_by_pair() -> None:
    before, after = [100.0, 900.0, 500.0, 300.0, 50.0], [90.0, 880.0, 495.0, 280.0, 45.0]
    found = paired(before, after)
    assert (found.mean, found.pairs, found.base) == (-12.0, 5, 370.0)
    assert found.low is not None
    assert found.high is not None
    assert -20 <= found.low < -12 < found.high <= -5
    assert found.sure, "every workload was easier, although workloads differ much more"
    assert paired(before, after) == found


def test_few_pairs_have_no_interval_and_equal_ones_an_empty_one() -> None:
    few = paired([1.0] * (PAIRS_MIN - 1), [2.0] * (PAIRS_MIN - 1))
    assert (few.mean, few.low, few.high, few.sure) == (1.0, None, None, False)
    same = paired([1.0, 5.0, 3.0, 2.0, 4.0], [1.0, 5.0, 3.0, 2.0, 4.0])
    assert (same.mean, same.low, same.high, same.sure) == (0, 0, 0, False)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Of 200 samples of 20 pairs whose true difference is 1; percentile intervals are narrow."""
    rng, covered = random.Random(7), 0
    for _ in range(200):
        before = [rng.uniform(0, 1000) for _ in range(20)]
        after = [each + rng.gauss(1.0, 2.0) for each in before]
        found = paired(before, after)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.0 <= found.high
    assert 176 <= covered <= 198, f"seed 7: {covered} of 200"


def test_a_thousand_pairs_have_fewer_resamples() -> None:
    found = paired([0.0] * 1000, [float(number % 3) for number in range(1000)])
    assert found.low is not None
    assert 0.9 < found.low < found.mean < 1.1
