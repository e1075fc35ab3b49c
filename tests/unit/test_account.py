"""The account of a chaos or compose run finds what it must find."""

from __future__ import annotations

from typing import Any

import pytest

from tests.system.account import Note, Tally, noted_problems, problems, read_notes, tally


def admitted(key: str, job: str) -> dict[str, Any]:
    return {"type": "admitted", "job": job, "key": key}


def bound(job: str, attempt: int = 1, node: str = "n1", devices: Any = ((0,),)) -> dict[str, Any]:
    members = [{"node": node, "devices": devices}]
    return {"type": "job-bound", "job": job, "attempt": attempt, "members": members}


def gone(job: str, attempt: int = 1, node: str = "n1", **more: Any) -> dict[str, Any]:
    return {"type": "member-gone", "job": job, "attempt": attempt, "node": node, **more}


def ended(job: str, end: str = "succeeded") -> dict[str, Any]:
    return {"type": "job-ended", "job": job, "end": end, "why": "exit"}


GOOD = [bound("j1"), gone("j1"), ended("j1"), bound("j2"), gone("j2"), ended("j2")]
ADMITTED = [admitted("a", "j1"), admitted("b", "j2")]


def test_a_good_run_has_no_problems() -> None:
    assert list(problems(["a", "b"], ADMITTED, GOOD)) == []


@pytest.mark.parametrize(
    "admission, alloc, found",
    [
        (ADMITTED[:1], GOOD[:3], ["b was acknowledged and is 0 jobs: []"]),
        (
            [*ADMITTED, admitted("b", "j3")],
            [*GOOD, ended("j3")],
            ["b was acknowledged and is 2 jobs: ['j2', 'j3']"],
        ),
        (ADMITTED, GOOD[:5], ["b (j2) ended 0 times"]),
        (ADMITTED, [*GOOD, ended("j2")], ["b (j2) ended 2 times"]),
        (ADMITTED, [*GOOD[:5], ended("j2", "failed")], ["j2 ended as failed: exit "]),
        (
            ADMITTED,
            [bound("j1"), bound("j2"), *GOOD[1:3], *GOOD[4:]],
            ["slot ('n1', 0) was given to ('j2', 1) while ('j1', 1) held it"],
        ),
        (
            ADMITTED,
            [bound("j1"), gone("j1", free=False), *GOOD[2:]],
            ["slot ('n1', 0) was given to ('j2', 1) while ('j1', 1) held it"],
        ),
        (
            ADMITTED,
            [bound("j1"), gone("j1", node="n2"), *GOOD[2:]],
            ["slot ('n1', 0) was given to ('j2', 1) while ('j1', 1) held it"],
        ),
    ],
)
def test_what_is_wrong_in_the_logs_is_found(
    admission: list[dict[str, Any]], alloc: list[dict[str, Any]], found: list[str]
) -> None:
    assert list(problems(["a", "b"], admission, alloc)) == found


TEXT = "start a 1 0 0 10;\nend a 1 0 0 20;\nstart b 1 0 0,1 20;\nend b 1 0 0,1 30;\nend b 1 0 0,1 3"


def test_notes_are_read_up_to_where_a_kill_cut_them() -> None:
    notes = read_notes("n1", TEXT)
    assert len(notes) == 4
    assert notes[3] == Note("n1", "end", "b", 1, 0, (0, 1), 30)
    assert list(noted_problems(notes, {"a": 1, "b": 1})) == []


def test_what_is_wrong_in_the_notes_is_found() -> None:
    notes = read_notes("n1", TEXT)
    assert list(noted_problems([*notes, notes[0]], {"a": 1})) == [
        "start of ('a', 1, 0) was noted 2 times"
    ]
    assert list(noted_problems(notes, {"a": 2})) == [
        "rank 1 of a did not run to its end in attempt 1"
    ]
    again = [notes[0]._replace(attempt=2, at=40), notes[1]._replace(attempt=2, at=50)]
    assert list(noted_problems([*notes, *again], {"a": 1})) == []
    assert list(noted_problems([*notes, again[0]], {"a": 1})) == [
        "rank 0 of a did not run to its end in attempt 2"
    ]
    early = notes[2]._replace(at=15)
    assert list(noted_problems([*notes[:2], early, notes[3]], {})) == [
        "a and b used slot ('n1', 0) at once"
    ]
    other = [one._replace(node="n2") for one in (early, notes[3])]
    assert list(noted_problems([*notes[:2], *other], {})) == []


END_NOTES = [Note("n1", "end", "a", 1, 0, (0,), 20), Note("n1", "end", "b", 2, 0, (0,), 40)]


@pytest.mark.parametrize(
    "in_time, admission, alloc, notes, found",
    [
        ("ab", ADMITTED, GOOD, END_NOTES, Tally(0, 0, 0, 0)),
        ("a", ADMITTED, GOOD, END_NOTES, Tally(1, 0, 0, 0)),
        ("ab", [ADMITTED[0], {**ADMITTED[1], "type": "refused"}], GOOD[:3], [], Tally(1, 0, 0, 0)),
        ("ab", ADMITTED, [*GOOD[:5], ended("j2", "failed")], [], Tally(0, 1, 0, 0)),
        ("ab", [*ADMITTED, admitted("b", "j3")], GOOD, [], Tally(0, 0, 1, 0)),
        ("ab", ADMITTED, [*GOOD, ended("j2")], [], Tally(0, 0, 1, 0)),
        ("ab", ADMITTED, GOOD, [*END_NOTES, END_NOTES[0]._replace(attempt=2)], Tally(0, 0, 1, 0)),
        ("ab", ADMITTED, [{"type": "job-requeued", "job": "j1"}, *GOOD], [], Tally(0, 0, 0, 1)),
        (
            "ab",
            [*ADMITTED, admitted("c", "j3")],
            [*GOOD, ended("j3", "failed")],
            [],
            Tally(0, 0, 0, 0),
        ),
    ],
)
def test_submissions_of_a_while_are_counted(
    in_time: str, admission: list[Any], alloc: list[Any], notes: list[Note], found: Tally
) -> None:
    assert tally(["a", "b"], list(in_time), admission, alloc, notes) == found
