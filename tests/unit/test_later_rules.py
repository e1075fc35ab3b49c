"""A log that a later version of Skep went on with is refused by an earlier one, in one line."""

from __future__ import annotations

import pytest

from skep.units import Instant
from skep.wire.bearing import RULES
from skep.wire.facts import AllocatorFact, EpochBegan
from skep_services.adapters.records import Chain
from skep_services.ports import CorruptLogError


def payload(rules: int) -> bytes:
    began = EpochBegan(epoch=1, owner="o1", rules=rules)
    _, encoded = Chain("log", AllocatorFact).encode((began,), {}, Instant(1), 1)
    return encoded


def test_rules_of_this_version_and_earlier_ones_are_read() -> None:
    for rules in range(1, RULES + 1):
        assert Chain("log", AllocatorFact).read(payload(rules), "here").epoch == 1


def test_later_rules_are_refused() -> None:
    with pytest.raises(CorruptLogError) as told:
        Chain("log", AllocatorFact).read_at(payload(RULES + 1), 7)
    text = str(told.value)
    assert "a later version of Skep" in text
    assert f"rules {RULES + 1}" in text
    assert "sequence 7" in text
    assert "\n" not in text
