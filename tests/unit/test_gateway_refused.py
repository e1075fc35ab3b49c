"""Refusals of the gateway are counted by the minute: a flood costs the log little."""

from __future__ import annotations

import msgspec

from skep.wire.access import Actor, NoteRefusal
from skep.wire.reasons import Reason
from skep_services.gateway.refused import COUNTED_MAX, MINUTE_S, Counted, short

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


def test_another_action_of_the_same_caller_has_a_line_of_its_own() -> None:
    counted = Counted()
    other = msgspec.structs.replace(refusal("j1"), action="set-vcs")
    for what in (refusal("j1"), other, refusal("j2"), other):
        counted.take(BOB, what, 0.0)
    assert counted.due(0.0) == [
        (BOB, refusal("j2", missed=1)),
        (BOB, msgspec.structs.replace(other, missed=1)),
    ]


def test_each_caller_has_minutes_of_its_own_and_only_so_many_are_counted() -> None:
    counted = Counted()
    for number in range(COUNTED_MAX):
        assert counted.take(Actor(name=f"p{number}"), refusal("j1"), 0.0)
    assert not counted.take(Actor(name="late"), refusal("j1"), 0.0)
    assert len(counted.due(0.0)) == COUNTED_MAX
    assert counted.due(MINUTE_S) == []
    assert counted.take(Actor(name="late"), refusal("j1"), MINUTE_S)


def test_what_a_request_names_is_one_short_line() -> None:
    assert short("j1\x1b[2J\n" + "x" * 300) == "j1\ufffd[2J\ufffd" + "x" * 249
