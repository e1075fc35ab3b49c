"""Estimates of another policy from a log: right where they can be, and refused where not."""

from __future__ import annotations

import numpy as np
import pytest

from skep.learn import offpolicy
from skep.learn.offpolicy import Decisions, Method, Refusal, estimates

BLOCKS, EACH = 40, 25
TRUTH = 0.7 * 1.0 + 0.3 * -1.0
"""The judged policy takes the better of two actions in seven of ten decisions."""


def log(seed: int, explores: float = 0.3, model_error: float = 0.4) -> Decisions:
    """Return decisions between two actions, of which 1 gives 1 and 0 gives -1, with noise.

    Blocks have a luck of their own. The log takes action 1 with probability `explores`.
    """
    rng = np.random.default_rng(seed)
    block = np.repeat(np.arange(BLOCKS), EACH)
    luck = np.repeat(rng.normal(scale=0.3, size=BLOCKS), EACH)
    done = rng.random(len(block)) < explores
    reward = np.where(done, 1.0, -1.0) + luck + rng.normal(scale=0.5, size=len(block))
    predicted = np.where(done, 1.0, -1.0) + model_error
    return Decisions(
        reward,
        np.where(done, explores, 1 - explores),
        np.where(done, 0.7, 0.3),
        block,
        np.zeros(len(block), dtype=bool),
        predicted,
        np.full(len(block), TRUTH + model_error),
    )


def by_method(decisions: Decisions) -> dict[Method, offpolicy.Estimate]:
    return {each.method: each for each in estimates(decisions)}


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    found = [by_method(log(seed)) for seed in range(200)]
    for method in (Method.WEIGHTED, Method.SELF_NORMALISED, Method.DOUBLY_ROBUST):
        held = sum((each[method].low or 9) <= TRUTH <= (each[method].high or -9) for each in found)
        assert 180 <= held <= 200, (method, held)
    mean = np.mean([each[Method.DOUBLY_ROBUST].value for each in found])
    assert mean == pytest.approx(TRUTH, abs=0.02)


def test_a_model_that_is_right_narrows_and_one_that_is_wrong_harms_only_itself() -> None:
    good, bad = by_method(log(1, model_error=0.0)), by_method(log(1, model_error=2.0))

    def width(each: offpolicy.Estimate) -> float:
        return (each.high or 0.0) - (each.low or 0.0)

    assert width(good[Method.DOUBLY_ROBUST]) < width(good[Method.WEIGHTED])
    assert (bad[Method.MODEL].value or 0.0) - TRUTH > 1.5
    assert (bad[Method.DOUBLY_ROBUST].low or 9) <= TRUTH <= (bad[Method.DOUBLY_ROBUST].high or -9)


def test_of_a_log_that_explores_nothing_only_agreement_is_told() -> None:
    decisions = log(2)._replace(propensity=np.ones(BLOCKS * EACH), predicted=None)
    found = by_method(decisions)
    assert found[Method.WEIGHTED].why is Refusal.DETERMINISTIC
    assert found[Method.SELF_NORMALISED].value is None
    share = found[Method.AGREEMENT]
    assert share.low is not None
    assert share.high is not None
    assert share.low < (share.value or 0) < share.high
    assert Method.MODEL not in found


def test_agreement_of_all_is_no_certainty() -> None:
    decisions = log(3)._replace(wanted=np.ones(BLOCKS * EACH))
    found = offpolicy.agreement(decisions)
    assert found.value == 1.0
    assert 0.85 < (found.low or 0) < 0.95  # As many as there are blocks, not decisions.
    assert found.high == 1.0


def test_what_cannot_be_estimated_is_refused() -> None:
    whole = log(4)
    unknown = whole._replace(propensity=np.where(np.arange(BLOCKS * EACH) == 7, np.nan, 0.5))
    assert by_method(unknown)[Method.WEIGHTED].why is Refusal.UNKNOWN
    marked = unknown._replace(overwritten=np.arange(BLOCKS * EACH) == 7)
    assert by_method(marked)[Method.WEIGHTED].why is None  # What others decided is left out.
    never = whole._replace(wanted=np.zeros(BLOCKS * EACH))
    assert by_method(never)[Method.SELF_NORMALISED].why is Refusal.NO_OVERLAP
    few = whole.only(slice(EACH * 3))
    assert {each.why for each in estimates(few)} == {Refusal.TOO_FEW}
    rare = whole._replace(wanted=np.where(np.arange(BLOCKS * EACH) < 20, 1.0, 0.0))
    assert by_method(rare)[Method.WEIGHTED].why is Refusal.TOO_FEW
    none = whole.only(slice(0))
    assert all(each.value is None for each in estimates(none))


def test_one_decision_speaks_for_few_others() -> None:
    whole = log(5)
    rare = np.arange(BLOCKS * EACH) == 100
    risky = whole._replace(
        propensity=np.where(rare, 1e-6, whole.propensity),
        reward=np.where(rare, 100.0, whole.reward),
    )
    value = by_method(risky)[Method.WEIGHTED].value or 0.0
    assert abs(value - (by_method(whole)[Method.WEIGHTED].value or 0.0)) < 1.1


@pytest.mark.parametrize("degrees, quantile", [(7, 2.3646), (10, 2.2281), (30, 2.0423)])
def test_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert offpolicy._quantile(degrees) == pytest.approx(quantile, rel=1e-3)
