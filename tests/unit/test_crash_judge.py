"""What judges the crash matrix sees everything that may be wrong with a job's training."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.system.crashes import judge, table
from tests.system.crashes.cells import MECHANISMS, Cell, allowed, cells, chosen
from tests.system.crashes.jobs import Stands, stands
from tests.system.crashes.judge import Begun, Line, Step
from tests.system.crashes.play import Playing

REFERENCE = [float("nan"), *(step / 8 for step in range(1, 100))]
BOUND: dict[str, Any] = {
    "type": "job-bound",
    "attempt": 1,
    "members": [{"node": "n1", "devices": [[0]]}],
}


def steps(pid: int, first: int, last: int, attempt: int = 1, rank: int = 0) -> list[Line]:
    made = [Step(rank, attempt, pid, step, 1, REFERENCE[step]) for step in range(first, last + 1)]
    return [Begun(rank, attempt, pid), *made]


def wrong(
    lines: Sequence[Line], *facts: dict[str, Any], stores: bool = True, elastic: bool = False
) -> list[str]:
    return list(
        judge.problems([BOUND, *facts], {0: lines}, REFERENCE, elastic=elastic, stores=stores)
    )


def bound(attempt: int) -> dict[str, Any]:
    return {**BOUND, "attempt": attempt}


def stored(step: int) -> dict[str, Any]:
    return {"type": "job-changed", "goal": "checkpoint", "result": "done", "step": step}


MOVED = {"type": "job-moved", "attempt": 2, "step": 9}


def test_nothing_is_wrong_with_an_attempt_and_the_next_from_its_checkpoint() -> None:
    assert wrong(steps(7, 1, 20)) == []
    assert wrong([*steps(7, 1, 9), *steps(8, 6, 12, 2)], stored(5), bound(2)) == []
    assert wrong([*steps(7, 1, 9), *steps(8, 10, 12, 2)], MOVED) == []
    assert wrong([*steps(7, 1, 9), *steps(8, 1, 12, 2)], bound(2), stores=False) == []


def test_a_confirmed_step_is_not_lost() -> None:
    (text,) = wrong([*steps(7, 1, 9), *steps(8, 5, 12, 2)], stored(5), bound(2))
    assert text == "attempt 2 began with step 5, though step 5 had been stored"
    (text,) = wrong([*steps(7, 1, 9), *steps(8, 9, 12, 2)], MOVED)
    assert text == "moved after step 9, attempt 2 went on with step 9"
    (text,) = wrong([*steps(7, 1, 9), *steps(8, 6, 12, 2)], bound(2), stores=False)
    assert text == "attempt 2 began with step 6"


def test_two_processes_never_train_in_turns() -> None:
    first, second = steps(7, 1, 12), steps(8, 10, 12, 2)
    lines = [*first[:10], *second[:3], first[10]]
    assert wrong(lines, MOVED) == ["rank 0: process 7 of attempt 1 trained step 10 after 8 had"]
    (text,) = wrong([*steps(7, 1, 3), *steps(8, 1, 3, 2)])
    assert text == "attempt 2 trained step 1 and never was the job"


def test_steps_are_made_once_and_to_the_bit() -> None:
    lines = steps(7, 1, 9)
    (text,) = wrong(lines[:4] + lines[5:])
    assert text == "rank 0: process 7 went from step 3 to 5"
    nearly = Step(0, 1, 7, 9, 1, REFERENCE[9] * (1 + 1e-12))
    assert "uninterrupted" in wrong([*lines[:-1], nearly])[0]
    assert wrong([*lines[:-1], nearly], elastic=True) == []
    assert wrong([*lines[:-1], nearly._replace(total=1.0)], elastic=True)


def test_notes_are_read_up_to_where_a_kill_cut_them_short() -> None:
    text = f"begin 1 7\nstep 1 7 3 2 {(0.5).hex()}\nstep 1 7 4"
    assert judge.read_lines(1, text) == [Begun(1, 1, 7), Step(1, 1, 7, 3, 2, 0.5)]
    with pytest.raises(ValueError, match="noted"):
        judge.read_lines(0, "begun\n")


def test_how_a_job_stands_follows_from_the_facts() -> None:
    resize = {"type": "job-changing", "change": {"type": "resize", "world": 2}}
    changed = {"type": "job-changed", "result": "done"}
    facts = [BOUND, {"type": "job-ran"}, {"type": "member-learned", "attempt": 1, "can": ["a"]}]
    assert stands(facts) == Stands(1, ("n1",), ran=True, can=("a",))
    grown = [*facts, resize, {**changed, "goal": "resize"}]
    assert stands(grown).workers == 2
    assert stands([*facts, {**changed, "goal": "suspend"}]).suspended
    moved = [{"type": "successor-bound", "attempt": 2, "members": [{"node": "n2"}]}, MOVED]
    assert stands([*facts, *moved]) == Stands(2, ("n2",), ran=True)
    assert stands([*facts, {"type": "job-requeued"}, bound(2)]).workers == 1


def test_every_cell_can_be_played_and_says_what_is_to_come_of_it() -> None:
    assert len(set(cells())) == len(cells())
    assert all(allowed(cell) for cell in cells())
    columns = [victim for some in table.COLUMNS.values() for victim in some]
    assert {cell.victim for cell in cells()} == set(columns)
    for about in MECHANISMS.values():
        for steps_ in about.phases.values():
            assert steps_.count("ask") == 1
            for step in steps_:
                verb, _, what = step.partition(" ")
                assert verb in ("ask", "stop", "go") or hasattr(
                    Playing, f"_{what.replace('-', '_')}"
                )


def test_cells_are_chosen_by_their_parts() -> None:
    assert chosen("migrate/sending/source") == [Cell("migrate", "sending", "source")]
    assert {cell.mechanism for cell in chosen("*/taken/agent")} > {"suspend", "shrink"}
    assert {cell.phase for cell in chosen("grow")} == set(MECHANISMS["grow"].phases)
    with pytest.raises(ValueError, match="no such cell; mechanisms are suspend"):
        chosen("susspend")


def test_the_table_shows_every_cell() -> None:
    row = {
        "mechanism": "suspend",
        "phase": "taken",
        "victim": "agent",
        "came": "done, same attempt",
        "ok": True,
    }
    failed = {**row, "victim": "nats", "came": "", "ok": False}
    text = table.markdown([row, failed])
    assert text.splitlines()[2] == (
        "| suspend | taken |  |  | done, same attempt |  |  |  | FAILED: no answer |  |  |  |  |  |"
    )
    picture = table.svg([row, failed], "t")
    assert picture.count("no answer") == 1
    assert picture.count(table.COLOURS["FAILED"]) == 2, "the cell's, and the legend's"
    undone = table.svg([{**row, "came": "undone, same attempt"}], "t")
    assert undone.count(table.COLOURS["undone"]) == 2
