"""The account of cells finds what it must find."""

from __future__ import annotations

from typing import Any

import pytest

from skep.wire.facts import JobBound, MemberGone
from skep.wire.node import Outcome
from tests.kit import admitted, allocator, exited, facts_of, joined, started
from tests.system.account import Note
from tests.system.cells_account import leaks, preemption_problems, unfinished, untouched_problems

NAMES = {"gang": "j3", "victim": "j1", "other": "j2"}


def fact(kind: str, job: str, attempt: int = 1, device: int = 0, **more: Any) -> dict[str, Any]:
    members = [{"node": "n1", "devices": [[device]]}]
    return {"type": kind, "job": job, "attempt": attempt, "members": members, **more}


def note(what: str, name: str, at: int, attempt: int = 1, device: int = 0) -> Note:
    return Note("n1", what, name, attempt, 0, (device,), at)


GOOD = [
    fact("job-bound", "j1"),
    fact("job-bound", "j2", device=1),
    fact("cells-reserved", "j3", victims=["j1"]),
    fact("job-stopping", "j1", why="preempted"),
    fact("job-bound", "j3"),
    fact("job-bound", "j1", 2),
]
NOTES = [
    note("start", "victim", 10),
    note("start", "other", 10, device=1),
    note("stop", "victim", 20),
    note("end", "victim", 30),
    note("start", "gang", 40),
    note("end", "gang", 50),
    note("start", "victim", 60, attempt=2),
    note("end", "victim", 70, attempt=2),
    note("end", "other", 80, device=1),
]


def test_a_good_preemption_has_no_problems() -> None:
    assert list(preemption_problems(GOOD, NOTES, NAMES, "gang")) == []
    assert list(unfinished(NOTES)) == []


@pytest.mark.parametrize(
    "facts, notes, found",
    [
        (GOOD[:4], NOTES, ["gang reserved 1 times and was bound 0 times"]),
        ([*GOOD[:3], GOOD[2], *GOOD[3:]], NOTES, ["gang reserved 2 times and was bound 1 times"]),
        (
            [*GOOD[:4], fact("job-bound", "j3", device=1), *GOOD[5:]],
            NOTES,
            ["gang reserved {('n1', 0)} and got {('n1', 1)}"],
        ),
        (
            [*GOOD[:4], fact("job-bound", "j9"), *GOOD[4:]],
            NOTES,
            ["j9 was given cells reserved for gang: {('n1', 0)}"],
        ),
        (GOOD[:5], NOTES, ["victim was stopped 1 times and had attempts [1]"]),
        ([*GOOD[:3], *GOOD[4:]], NOTES, ["victim was stopped 0 times and had attempts [1, 2]"]),
        (
            [*GOOD, fact("job-stopping", "j2", why="preempted")],
            NOTES,
            ["other is no victim: stopped 1 times, attempts [1]"],
        ),
        (
            GOOD,
            [*NOTES[:4], note("start", "thief", 35), *NOTES[4:]],
            ["n1/0 went from thief to gang"],
        ),
    ],
)
def test_a_bad_preemption_is_told(facts: Any, notes: Any, found: list[str]) -> None:
    assert list(preemption_problems(facts, notes, NAMES, "gang")) == found


@pytest.mark.parametrize(
    "facts, notes, found",
    [
        ([], [], []),
        ([fact("job-stopping", "j2")], [], ["other: attempts [1], ran 1 times, stopped 1 times"]),
        (
            [fact("job-bound", "j2", 2)],
            [],
            ["other: attempts [1, 2], ran 1 times, stopped 0 times"],
        ),
        ([], [note("stop", "other", 20, device=1)], ["rank 0 of other was asked to stop"]),
        ([], [note("start", "other", 20, 2)], ["rank 0 of other noted its start 2 times"]),
    ],
)
def test_a_job_that_was_touched_is_told(facts: Any, notes: Any, found: list[str]) -> None:
    facts = [GOOD[1], fact("job-ran", "j2"), *facts]
    assert list(untouched_problems(facts, [NOTES[1], NOTES[8], *notes], {"other": "j2"})) == found


def test_a_process_that_was_killed_is_told() -> None:
    assert list(unfinished(NOTES[:-1])) == ["rank 0 of other was killed in attempt 1"]


def test_leaks_are_told() -> None:
    decide = allocator(joined(), nlp=4)
    begun = [list(decide.facts)]
    running = begun + [facts_of(decide(event)) for event in (admitted(1), started("j1"))]
    over = facts_of(decide(exited("j1")))
    assert list(leaks([*running, over])) == []
    assert "at the end holds are left: ['j1.1']" in list(leaks(running))

    lost = MemberGone(job="j1", attempt=1, node="node-1", outcome=Outcome.SUCCEEDED, free=False)
    ghost = [*running, [lost, *over[1:]]]
    assert "at the end holds are left: ['j1.1']" in list(leaks(ghost))

    unbound = [[one for one in record if not isinstance(one, JobBound)] for record in running]
    (problem,) = leaks(unbound)
    assert problem.startswith("after record 3: ")
