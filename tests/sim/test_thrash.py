"""The search for worlds in which introspection does harm: worlds, laws, and a few of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skep.ledger.records import COOLS
from skep.units import Instant, after, seconds
from skep.wire.reasons import Reason
from skep.wire.trials import Before, Kind, TrialBegun, TrialOver, Verdict
from skep_lab.measures import program
from skep_lab.studies import thrash
from skep_lab.studies.adversary import JOBS_MAX, draw, mutated, named
from skep_lab.studies.thrash import Laws, judge
from tests import effort

T0 = Instant(1_000_000_000_000)
KNOWN = ("0", "8", "2651", "13438")
"""Three once broke a law. In the first a pack came apart each time that it went on after its slice,
in the third it was owed much, with a share of 1, and never fell behind who stood for it, and in the
last who was to go on elsewhere went home, to GPUs that were being left for a gang."""

LONG = ("104", "140", "157", "288", "384")
"""Five more, long ones. In the first a rate alone of before a phase was what a pack was held
against, in the second packs left GPUs idle whenever a gang stood, in the third a gang was scattered
since others had grown where it would have gone, in the fourth a gang stood for 25 minutes, as of
two smaller ones on its node never both had run for a slice, and in the last one waited for the end
of a trial of twenty."""


def begun(number: int, at: float, *jobs: str, kind: Kind = Kind.PACK) -> TrialBegun:
    now = after(T0, seconds(at))
    befores = tuple(Before(job=job, attempt=1, gpus=1, rate_milli=1000) for job in jobs)
    return TrialBegun(
        trial=number,
        kind=kind,
        vc="all",
        jobs=befores,
        families=("a", "b"),
        at=now,
        until=after(now, seconds(600)),
        needed_milli=1000,
        why=Reason.BY_POLICY,
    )


def over(number: int, at: float, *jobs: str, verdict: Verdict = Verdict.KEPT) -> TrialOver:
    why = Reason.TRIAL_GAINS if verdict is Verdict.KEPT else Reason.TRIAL_LOSES
    return TrialOver(trial=number, jobs=jobs, verdict=verdict, why=why, at=after(T0, seconds(at)))


def broken(*facts: TrialBegun | TrialOver, end: float = 1000) -> list[str]:
    laws = Laws()
    for fact in facts:
        laws.take(fact)
    return laws.end(after(T0, seconds(end)))


def test_what_is_undone_cools_down() -> None:
    undone = begun(1, 0, "j1", "j2"), over(1, 60, "j1", "j2", verdict=Verdict.UNDONE)
    later = COOLS / 1e9 + 60
    assert broken(*undone) == []
    assert broken(*undone, begun(2, later - 1, "j3", "j4")) == [
        "swings: pack of j3 j4 while it cools down"
    ]
    assert broken(*undone, begun(2, later, "j3", "j4"), end=later) == []


def test_trials_of_a_job_are_bounded_and_have_verdicts() -> None:
    facts: list[TrialBegun | TrialOver] = []
    for number in range(1, 8):
        pair = "j1", f"j{number + 1}"
        facts += [begun(number, 100 * number, *pair), over(number, 100 * number + 50, *pair)]
    assert broken(*facts) == ["trials j1: 7 times within an hour"]
    assert broken(begun(1, 0, "j1", "j2"), end=601) == ["verdict: trial 1 has none"]
    late = begun(1, 0, "j1", "j2"), over(1, 601, "j1", "j2")
    assert broken(*late) == ["verdict: of trial 1 after its time"]


def test_a_world_is_its_name() -> None:
    assert named("7") == draw(7)
    assert named("7.3.1") == mutated(mutated(draw(7), 3), 1) == named("7.3.1")
    assert named("7.3") != named("7.4")
    for seed in range(30):
        world = draw(seed)
        assert 0 < len(world.jobs) <= JOBS_MAX
        assert world.jobs == tuple(sorted(world.jobs, key=lambda job: job.at))


@pytest.mark.parametrize("name", KNOWN)
def test_no_law_is_broken(name: str) -> None:
    assert judge(named(name)).broken == []


@pytest.mark.parametrize("name", effort.slow_after(1, LONG))
def test_no_law_is_broken_in_hours(name: str) -> None:
    assert judge(named(name, long=True), long=True).broken == []


def test_the_command_line_tells_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one(job: tuple[str, bool]) -> thrash.Result:
        return thrash.Result(job[0], ratio=1.1, broken=["swings: x"] if job[0] == "6" else [])

    monkeypatch.setattr(thrash, "_one", one)
    assert thrash.main(["--first", "5", "--worlds", "3", "--rounds", "1", "--json"]) == 1
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert told.err == "world 6: swings: x\n"
    assert found["worlds"] == 3 + 3 * thrash.CHANGED
    assert [each["name"] for each in found["failed"]] == ["6"]


def test_worlds_that_were_kept_are_not_played_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    played: list[str] = []

    def one(job: tuple[str, bool]) -> thrash.Result:
        played.append(job[0])
        return thrash.Result(job[0], ratio=1.0 + int(job[0]) / 100)

    monkeypatch.setattr(thrash, "_one", one)
    words = ["--long", "--json", "--keep", str(tmp_path / "kept")]
    assert thrash.main(["--first", "5", "--worlds", "2", *words]) == 0
    assert thrash.main(["--first", "5", "--worlds", "3", *words]) == 0
    assert played == ["5", "6", "7"]
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["worlds"] == 3
    assert found["ratios"]["50 %"] == 1.06
    with pytest.raises(SystemExit):
        thrash.main([*words[1:], "--worlds", "3"])
    assert "of other worlds" in capsys.readouterr().err
    monkeypatch.setattr(program, "digest", lambda: b"another")
    with pytest.raises(SystemExit):
        thrash.main([*words, "--worlds", "3"])
