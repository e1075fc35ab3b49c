"""Refusals of the gateway are counted by caller and minute: a flood costs the log little."""

from __future__ import annotations

from skep.wire.access import Actor, NoteRefusal
from skep.wire.reasons import Reason
from skep_services.gateway.refused import CALLERS_MAX, MINUTE_S, Counted, short

BOB = Actor(name="bob", source="10.0.0.3")


def refusal(target: str, missed: int = 0) -> NoteRefusal:
    why = Reason.NOT_ITS_OWNER
    return NoteRefusal(action="cancel", target=target, why=why, missed=missed)


def test_the_first_is_written_at_once_and_a_flood_once_a_minute() -> None:
    counted = Counted()
    assert counted.take(BOB, refusal("j1"), 0.0)
    assert counted.due(0.0) == [(BOB, refusal("j1"))]
    for number in range(2, 1_000):
        assert counted.take(BOB, refusal(f"j{number}"), 1.0)
        assert counted.due(1.0) == []
    assert counted.due_at() == MINUTE_S
    assert counted.due(MINUTE_S) == [(BOB, refusal("j999", missed=997))]
    assert counted.due(2 * MINUTE_S) == []
    assert counted.due_at() is None


def test_what_could_not_be_written_is_counted_on() -> None:
    counted = Counted()
    counted.take(BOB, refusal("j1"), 0.0)
    (written,) = counted.due(0.0)
    counted.take(*written, 0.0)
    counted.take(BOB, refusal("j2", missed=7), 5.0)
    assert counted.due(MINUTE_S) == [(BOB, refusal("j2", missed=8))]


def test_each_caller_has_minutes_of_its_own_and_only_so_many_are_counted() -> None:
    counted = Counted()
    for number in range(CALLERS_MAX):
        assert counted.take(Actor(name=f"p{number}"), refusal("j1"), 0.0)
    assert not counted.take(Actor(name="late"), refusal("j1"), 0.0)
    assert len(counted.due(0.0)) == CALLERS_MAX
    assert counted.due(MINUTE_S) == []
    assert counted.take(Actor(name="late"), refusal("j1"), MINUTE_S)


def test_what_a_request_names_is_one_short_line() -> None:
    assert short("j1\x1b[2J\n" + "x" * 300) == "j1\ufffd[2J\ufffd" + "x" * 249
