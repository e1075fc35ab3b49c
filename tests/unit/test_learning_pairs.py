"""Pairs of what schedulers saw and did: from logs, from simulations, and as files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skep.learn import columns, modelfile
from skep.learn.candidates import CANDIDATE_FEATURES, candidates
from skep.learn.net import Sizes, random_weights
from skep.units import Instant, seconds
from skep.wire.changes import Goal, JobChanging
from skep.wire.commands import Suspend
from skep.wire.facts import JobStopping
from skep.wire.reasons import Reason
from skep_lab.learn.pairs import NO_CHOICE, Mark, Pairs, Recorder
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.run import run as simulate
from skep_lab.simulator.settings import Settings
from skep_lab.simulator.world import World
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady
from skep_services import replaying
from skep_services.cli.main import main
from skep_services.learning import cloning, judging
from skep_services.learning.problems import LearningError, Why
from skep_services.learning.runs import stored
from tests.replay_kit import export, history

PLANNED, QUEUED = 11, 5
"""Histories of clusters whose VCs have policies, and have none."""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["learn", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture
def as_simulated(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have the allocator read every fact and be as impatient as it was in a history."""

    def use(seed: int) -> None:
        service = replaying.SERVICES["allocator"]
        make = history(seed).roles["allocator"].machine
        monkeypatch.setitem(replaying.SERVICES, "allocator", service._replace(wants={}, make=make))

    return use


def log(seed: int, folder: Path) -> Path:
    path = folder / f"{seed}.jsonl.gz"
    export(history(seed), path)
    return path


def jobs(*sizes: tuple[float, int, float]) -> Trace:
    """Return jobs by when they come, GPUs and run time, in seconds."""
    made = tuple(
        TraceJob(id=f"t{place}", at=seconds(at), run_time=seconds(length), gpus=gpus)
        for place, (at, gpus, length) in enumerate(sizes)
    )
    return Trace(name="made", jobs=made)


CROWD = jobs((0, 8, 100), (1, 8, 100), (2, 4, 10), (3, 2, 50), (4, 2, 20), (5, 6, 30), (6, 1, 5))


def recorded(policy: str, trace: Trace = CROWD) -> Pairs:
    settings = Settings(policies={ALL: (policy, {})})
    return cloning.of_policy(trace, uniform(2, 4), settings, Steady())


def test_a_pair_has_what_was_seen_and_what_followed() -> None:
    pairs = recorded("sif")
    first = pairs.pair(0)
    assert (first.vc, first.mark, first.propensity, len(first.moves)) == (ALL, Mark(0), 1.0, 1)
    assert first.raw[first.moves[0].job, columns.PHASE] == columns.WAITING
    assert first.raw[first.moves[0].job, columns.LEFT] == 100
    for place in range(pairs.size):
        pair = pairs.pair(place)
        there = candidates(pair.raw, pair.cluster, pair.at)
        for move in pair.moves[:1]:  # Later ones are made in what the first one left.
            assert there.possible[move.job, move.choice], place
            assert there.workers[move.job, move.choice] == move.workers
    placed = [m for place in range(pairs.size) for m in pairs.pair(place).moves]
    assert len(placed) == len(CROWD.jobs)  # Each once: nothing was stopped.


def test_pairs_tell_policies_apart() -> None:
    def third(policy: str) -> float:
        """Return the run time of what is placed once the first job has left."""
        pairs = recorded(policy)
        pair = pairs.pair(
            [len(pairs.pair(at).moves) > 0 for at in range(pairs.size)].index(True, 1)
        )
        return float(pair.raw[pair.moves[0].job, columns.LEFT])

    assert third("sif") == 5
    assert third("backfill") == 10


def test_that_nothing_was_done_is_told_only_where_something_could_be() -> None:
    pairs = recorded("lrf")
    still = [place for place in range(pairs.size) if not pairs.pair(place).moves]
    for place in still:
        pair = pairs.pair(place)
        assert candidates(pair.raw, pair.cluster, pair.at).possible.any()
    assert pairs.size <= pairs.about["plans"]


def test_to_be_watched_changes_no_decision() -> None:
    for policy in ("srtf", "tiresias-l", "las", "drf", "gandiva"):
        settings = Settings(policies={ALL: (policy, {})})
        plain = simulate(CROWD, uniform(2, 4), settings, Steady())
        world = World(CROWD, uniform(2, 4), settings, Steady())
        world.allocator.settings.witness = Recorder()
        world.run(None)
        assert world.ledger.digest() == plain.decisions, policy


def test_a_log_gives_pairs_and_marks_them(
    tmp_path: Path, run: Run, as_simulated: Callable[[int], None]
) -> None:
    as_simulated(PLANNED)
    path = log(PLANNED, tmp_path)
    code, out, _ = run("clone", "--from", str(path), "--out", "p", "--json")
    told = json.loads(out)
    assert (code, told["about"]["from"], told["about"]["different"]) == (0, "log", 0)
    assert told["pairs"] > 30
    assert 0 < told["clean"] < told["pairs"]
    assert told["marks"]["no-candidate"] > 0
    again = json.loads(run("clone", "--from", str(path), "--out", "q", "--json")[1])
    assert again["sha256"] == told["sha256"]  # The same log, the same pairs.
    assert Path("p/pairs.safetensors").read_bytes() == Path("q/pairs.safetensors").read_bytes()
    kept = cloning.load(Path("p"))
    straight = cloning.of_log(replaying.read_from(str(path), None), str(path))
    for name in cloning.ARRAYS:
        assert np.array_equal(getattr(kept, name), getattr(straight, name)), name
    moves = kept.moves[:, 1]
    assert ((moves == NO_CHOICE) == (kept.moves[:, 3] & Mark.NO_CANDIDATE > 0)).all()


def test_queues_without_a_policy_give_pairs_that_say_so(
    tmp_path: Path, as_simulated: Callable[[int], None]
) -> None:
    as_simulated(QUEUED)
    pairs = cloning.of_log(replaying.read_from(str(log(QUEUED, tmp_path)), None), "log")
    assert pairs.size > 10
    assert (pairs.mark == Mark.NO_POLICY).all()
    assert len(pairs.clean(Mark.NO_POLICY | Mark.PERSON)) == pairs.size
    assert len(pairs.clean(Mark(0))) == 0
    for place in range(pairs.size):
        pair = pairs.pair(place)
        move = pair.moves[0]
        assert pair.raw[move.job, columns.PHASE] == columns.WAITING
        there = candidates(pair.raw, pair.cluster, pair.at)
        assert there.possible[move.job, move.choice], "what it took is free again in the pair"


def test_what_a_person_undid_is_no_choice_of_the_policy() -> None:
    recorder = Recorder()
    settings = Settings(policies={ALL: ("sif", {})})
    cloning.of_policy(CROWD, uniform(2, 4), settings, Steady(), recorder=recorder)
    whole = recorder.pairs({})
    recorder.undone("j1", Instant(2**62))
    recorder.undone("j999", Instant(2**62))
    marked = recorder.pairs({})
    assert list(np.flatnonzero(marked.moves[:, 3])) == [0]
    assert len(marked.clean()) == len(whole.clean()) - 1
    recorder.undone("j2", Instant(0))  # It was placed later than that.
    assert np.count_nonzero(recorder.pairs({}).moves[:, 3]) == 1
    recorder.differs(Instant(round(whole.at[2] * 1e9)))
    assert 2 in np.flatnonzero(recorder.pairs({}).mark)


def test_who_asked_is_read_from_facts() -> None:
    class Entry:
        facts = (
            JobStopping(job="j1", attempt=1, order=1, why=Reason.CANCELLED, at=Instant(5)),
            JobStopping(
                job="j2", attempt=1, order=1, why=Reason.PREEMPTED_BY_POLICY, at=Instant(6)
            ),
            _changing("j3", ask=4),
            _changing("j4", ask=0),
        )

    assert cloning._asked([Entry()]) == [("j1", Instant(5)), ("j3", Instant(7))]


def _changing(job: str, ask: int) -> JobChanging:
    return JobChanging(
        job=job,
        attempt=1,
        order=2,
        goal=Goal.SUSPEND,
        change=Suspend(),
        nodes=("n",),
        why=Reason.REQUESTED,
        at=Instant(7),
        ask=ask,
    )


def test_a_model_is_judged_by_pairs(run: Run, tmp_path: Path) -> None:
    cloning.keep(recorded("sif"), tmp_path / "p")
    data = modelfile.dump(random_weights(1, Sizes(4, 4)), modelfile.Header(job=4, head=4))
    Path("m.safetensors").write_bytes(data)
    told = json.loads(run("judge", "m.safetensors", "--pairs", "p", "--json")[1])
    first, *others = told["estimates"]
    assert (first["method"], first["decisions"], first["why"]) == ("agreement", 8, "too-few")
    assert {each["why"] for each in others} == {"deterministic"}


def test_a_model_that_goes_by_what_is_shortest_agrees_with_that_rule() -> None:
    def agrees(longest: float) -> float:
        weights = random_weights(0, Sizes(4, 4))
        weights = {name: np.zeros_like(each) for name, each in weights.items()}
        names = list(CANDIDATE_FEATURES)
        weights["skip.weight"][0, names.index("remaining")] = longest
        weights["skip.weight"][0, names.index("local")] = 10.0
        model = modelfile.load(modelfile.dump(weights, modelfile.Header(job=4, head=4)))
        return float(judging.decisions(recorded("sif"), model).wanted.mean())

    assert agrees(-1.0) > 0.7  # It never waits, and the rule does.
    assert agrees(1.0) < agrees(-1.0)


def test_what_cloning_and_judging_refuse(
    run: Run, tmp_path: Path, as_simulated: Callable[[int], None]
) -> None:
    def reason(code: int, *words: str) -> str:
        found, out, err = run(*words, "--json")
        assert (found, err.count("\n")) == (code, 1), err
        return str(json.loads(out)["error"]["reason"])

    assert reason(2, "clone") == "usage"
    assert reason(2, "clone", "--from", "x", "--policy", "srtf") == "usage"
    assert reason(2, "clone", "--policy", "srtf") == "usage"
    assert reason(2, "train", "walk", "--from", "x") == "usage"
    assert reason(1, "clone", "--from", "none.jsonl") == "failed"
    Path("no.jsonl").write_text("[]\n", encoding="utf-8")
    assert reason(1, "clone", "--from", "no.jsonl") == "bad-log"
    simulated = ("clone", "--trace", "hived:days=0.01", "--cluster", "4x8")
    assert reason(2, *simulated, "--policy", "srft") == "usage"
    assert reason(1, *simulated) == "lacks-facts"  # A queue without a policy plans nothing.
    assert reason(2, "judge", "m") == "usage"
    assert reason(3, "judge", "abcd", "--pairs", "p", "--home", str(tmp_path)) == "no-model"
    data = modelfile.dump(random_weights(1, Sizes(4, 4)), modelfile.Header(job=4, head=4))
    Path("m.safetensors").write_bytes(data)
    judge = ("judge", "m.safetensors", "--pairs", "p")
    assert reason(1, *judge) == "damaged-pairs"
    cloning.keep(recorded("sif"), tmp_path / "p")
    whole = Path("p/pairs.safetensors").read_bytes()
    Path("p/pairs.safetensors").write_bytes(whole[:-1])
    assert reason(1, *judge) == "damaged-pairs"
    other = recorded("sif")
    cloning.keep(other._replace(about={**other.about, "schema": 99}), tmp_path / "p")
    assert reason(1, *judge) == "other-schema"
    Path("file").touch()
    small = ("clone", "--policy", "srtf", "--trace", "hived:days=0.01", "--cluster", "4x8")
    assert reason(1, *small, "--out", "file/p") == "cannot-write"
    as_simulated(PLANNED)
    streams = replaying.read_from(str(log(PLANNED, tmp_path)), None)
    with pytest.raises(LearningError, match="nothing to learn from") as found:
        cloning.of_log({**streams, "ALLOC": []}, "empty")
    assert found.value.why is Why.LACKS_FACTS


@pytest.mark.parametrize(
    "name, array, said",
    [
        ("rows", np.zeros(3), "rows has 1 dimensions, not 2"),
        ("at", np.zeros((2, 2)), "at has 2 dimensions, not 1"),
        ("moves", np.zeros((0, 4)), "moves has numbers of type float64"),
    ],
)
def test_arrays_of_another_form_are_damage(
    tmp_path: Path, name: str, array: Any, said: str
) -> None:
    whole = recorded("sif")
    tensors = {**{each: getattr(whole, each) for each in cloning.ARRAYS}, name: array}
    (tmp_path / cloning.FILE).write_bytes(stored(tensors, whole.about))
    with pytest.raises(LearningError, match=re.escape(said)) as found:
        cloning.load(tmp_path)
    assert found.value.why is Why.DAMAGED_PAIRS


@pytest.mark.parametrize("vcs", [7, None, {"a": 1}, [1]])
def test_pairs_that_do_not_name_their_vcs_are_damage(tmp_path: Path, vcs: Any) -> None:
    whole = recorded("sif")
    tensors = {each: getattr(whole, each) for each in cloning.ARRAYS}
    (tmp_path / cloning.FILE).write_bytes(stored(tensors, {**whole.about, "vcs": vcs}))
    with pytest.raises(LearningError, match="the names of its VCs") as found:
        cloning.load(tmp_path)
    assert found.value.why is Why.DAMAGED_PAIRS


@pytest.mark.parametrize(
    "name, place, value",
    [("row", 0, 10**6), ("first", 1, 10**6), ("moves", (0, 0), 99), ("vc", 0, 7)],
)
def test_numbers_that_do_not_fit_together_are_damage(
    tmp_path: Path, name: str, place: Any, value: int
) -> None:
    pairs = recorded("sif")
    array = getattr(pairs, name).copy()
    array[place] = value
    cloning.keep(pairs._replace(**{name: array}), tmp_path)
    with pytest.raises(LearningError, match="do not fit together"):
        cloning.load(tmp_path)
