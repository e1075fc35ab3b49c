"""The simulator's command line: what it prints, and what its exit code means."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from skep.sim import run
from skep.sim.history import Result
from skep.sim.run import Summary, main, read_seeds
from skep.sim.violation import ViolationError

Out = pytest.CaptureFixture[str]


def test_a_violation_crosses_to_another_process_with_its_note() -> None:
    violation = ViolationError("I2", "node-1:0 is held twice")
    violation.add_note("seed 7")

    other = pickle.loads(pickle.dumps(violation))

    assert str(other) == "I2: node-1:0 is held twice"
    assert (other.invariant, other.__notes__) == ("I2", ["seed 7"])


def test_clean_histories_are_summed_up(capsys: Out) -> None:
    assert main(["--seeds", "2"]) == 0
    printed = capsys.readouterr()
    assert "2 histories in" in printed.out
    assert "fault x step of the protocol" in printed.out
    assert "every invariant held" in printed.out
    assert "2 of 2 seeds, 0 failed" in printed.err


def test_the_summary_as_json_says_the_same_for_any_number_of_workers(capsys: Out) -> None:
    answers = []
    for workers in ("1", "2"):
        assert main(["--seeds", "2", "--first", "5", "--json", "--workers", workers]) == 0
        answer = json.loads(capsys.readouterr().out)
        answers.append({name: value for name, value in answer.items() if name != "seconds"})
    assert answers[0] == answers[1]
    assert answers[0]["seeds"] == 2
    assert answers[0]["events_min"] > 200


def test_a_story_is_told(capsys: Out) -> None:
    assert main(["--story", "3", "--no-faults"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "every invariant held" in lines[-1]
    assert len(lines) > 200


def test_without_the_fence_finding_nothing_is_the_failure(capsys: Out) -> None:
    assert main(["--seeds", "8", "--no-fence"]) == 0
    assert "histories broke" in capsys.readouterr().out
    assert main(["--seeds", "0", "--no-fence"]) == 1


def failing(seed: int, *_: object) -> Result:
    return Result(
        seed=seed,
        violation="I4: j1 is executed twice",
        invariant="I4",
        events=7,
        story=[f"step {number}" for number in range(500)],
    )


def test_a_seed_that_fails_is_told_and_kept(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "run_seed", failing)
    kept = tmp_path / "regressions.txt"
    kept.write_text("# known\n8 # because\n")
    assert main(["--seeds", "1", "--first", "9", "--regressions", str(kept)]) == 1
    printed = capsys.readouterr().out
    assert "seed 9: I4: j1 is executed twice" in printed
    assert "--story 8" in printed
    assert "step 499" in printed
    assert "2 failed (I4 in 2)" in printed
    assert read_seeds(kept) == [8, 9]


def test_the_minima_are_those_of_the_histories_that_held() -> None:
    summary = Summary()
    summary.add(failing(1))
    summary.add(Result(seed=2, events=300, faults=12, crashes=3))
    summary.add(Result(seed=3, events=250, faults=15, crashes=4))
    assert (summary.events_min, summary.faults_min, summary.crashes_min) == (250, 12, 3)


@pytest.mark.parametrize("wrong", [["--seeds", "-1"], ["--workers", "0"], ["--check-every", "0"]])
def test_numbers_that_mean_nothing_are_refused(wrong: list[str], capsys: Out) -> None:
    with pytest.raises(SystemExit):
        main(wrong)
    assert "--seeds from 0" in capsys.readouterr().err
