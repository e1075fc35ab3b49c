"""Rates from what jobs noted of their mini-batches."""

import pytest

from skep.units import NS_PER_SECOND
from tests.system.introspect.rates import Steps
from tests.system.introspect.slices import cycles

S = NS_PER_SECOND


def test_a_window_may_begin_and_end_within_a_mini_batch() -> None:
    steps = Steps([S, 2 * S, 3 * S])
    assert steps.until(2.5 * S) == pytest.approx(2.5)
    assert steps.rate(1.25 * S, 2.75 * S) == pytest.approx(1.0)


def test_a_job_that_stood_made_nothing_meanwhile() -> None:
    steps = Steps([S, 2 * S, 3 * S, 20 * S, 21 * S])
    assert steps.until(18 * S) == 3
    assert steps.until(19.5 * S) == pytest.approx(3.5)
    assert steps.after(4 * S) == 20 * S
    assert steps.after(22 * S) is None


def test_a_step_in_which_a_job_was_suspended_ended_before() -> None:
    lines = "".join(f"{at * S} {at * S + S // 2} 1\n" for at in range(1, 9))
    steps = Steps.noted(f"{lines}{9 * S} {30 * S} 1\n{31 * S} {31 * S}")
    assert steps.ends[-1] == 9 * S + S // 2
    assert len(steps.ends) == 9


def test_shares_are_taken_over_whole_cycles() -> None:
    assert cycles((0.0, 10.0 * S), 3.0) == (4.0 * S, 10.0 * S)
    assert cycles((0.0, 4.0 * S), 3.0) == (1.0 * S, 4.0 * S)
