"""The cost of a switch is read off the mini-batches around it, whatever the machine's pace."""

from __future__ import annotations

import pytest

from tests.support.switch_loss import NS, Window, lost_s

WINDOW = Window(felt=4.0, pace=8.0)
SWITCH = 100 * NS


def ends(per_s: float, begin: float, end: float) -> list[int]:
    count = round((end - begin) * per_s)
    return [round((begin + (each + 0.5) / per_s) * NS) for each in range(count)]


def test_a_pause_of_all_slots_costs_its_length() -> None:
    around = ends(40, 90, 100) + ends(40, 100.5, 113)
    assert lost_s(around, SWITCH, WINDOW) == pytest.approx(0.5, abs=0.03)


def test_a_switch_of_half_the_slots_costs_half_its_length() -> None:
    around = ends(40, 90, 100) + ends(20, 100, 101) + ends(40, 101, 113)
    assert lost_s(around, SWITCH, WINDOW) == pytest.approx(0.5, abs=0.03)


def test_a_machine_that_slows_down_evenly_costs_nothing() -> None:
    around = ends(44, 90, 100) + ends(40, 100, 104) + ends(36, 104, 113)
    assert lost_s(around, SWITCH, WINDOW) == pytest.approx(0.0, abs=0.03)


def test_without_a_pace_before_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        lost_s(ends(40, 100, 113), SWITCH, WINDOW)
