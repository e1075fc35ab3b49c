"""Admission and the allocator die at a moment of arrays and of what waits: all ends as it would."""

from __future__ import annotations

from typing import Any

import pytest

from skep.machines.allocator import deferring
from tests.system.crash_arrays import AGAIN, Moment, moments, wrong

SAMPLE = (
    Moment("admission", "after-append", 9),
    Moment("admission", "effect", 14),
    Moment("allocator", "before-append", 30),
    Moment("allocator", AGAIN, 17),
)


@pytest.mark.parametrize("moment", [None, *SAMPLE], ids=str)
def test_everything_ends_as_without_a_crash(moment: Moment | None) -> None:
    assert wrong(moment) == ""


def test_what_is_forgotten_in_a_crash_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is deferred is looked at anew after a restart: without that it may wait for ever."""

    def forgetful(*given: Any) -> None:
        del given

    monkeypatch.setattr(deferring, "restarted", forgetful)
    assert wrong(Moment("allocator", "after-append", 15)).startswith("I10")


@pytest.mark.nightly
def test_every_moment() -> None:
    found = {str(moment): why for moment in moments() if (why := wrong(moment))}
    assert found == {}
