"""The ledger of trials: facts become rows and totals, bounded, over HTTP and on the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from skep.ledger.records import Probe
from skep.ledger.state import ClusterState
from skep.units import after, seconds
from skep.wire.cluster import VirtualCluster
from skep.wire.reasons import Reason
from skep.wire.trials import After, Before, Kind, TrialBegun, TrialOver, Verdict
from skep_services.cli.main import main
from skep_services.gateway import ledger as ledger_module
from skep_services.gateway import texts
from skep_services.gateway.ledger import Asked, Ledger, Tried, totals
from skep_services.gateway.trials import budgets
from tests.cli_kit import FakeGateway, fake_gateway
from tests.gateway_kit import House, facts, fresh_fold, opened, submitted
from tests.kit import at


def begun(trial: int, *jobs: str, kind: Kind = Kind.PACK, vc: str = "nlp") -> TrialBegun:
    befores = tuple(Before(job=job, attempt=1, gpus=1, rate_milli=5_000) for job in jobs)
    return TrialBegun(
        trial=trial,
        kind=kind,
        vc=vc,
        jobs=befores,
        families=("a", "b"),
        at=at(2),
        until=at(602),
        needed_milli=1_000,
        why=Reason.BY_POLICY,
    )


def over(trial: int, *jobs: str, verdict: Verdict = Verdict.KEPT, gain: int = 300) -> TrialOver:
    measured = tuple(After(job=job, rate_milli=4_000, samples=9) for job in jobs)
    void = verdict is Verdict.VOID
    return TrialOver(
        trial=trial,
        jobs=jobs,
        verdict=verdict,
        at=at(9),
        why=Reason.NO_VERDICT if void else Reason.TRIAL_GAINS,
        gain_milli=gain,
        low_milli=gain - 50,
        high_milli=gain + 50,
        after=() if void else measured,
    )


def shown(found: list[Tried]) -> list[tuple[int, str | None, int | None]]:
    return [(one.trial, one.verdict, one.gain_milli) for one in found]


def test_a_trial_is_open_until_its_verdict() -> None:
    fold = fresh_fold()
    fold.apply(facts("allocator", begun(1, "j1", "j2"), begun(2, "j3", "j4")), at(2))
    ledger = fold.ledger
    assert shown(ledger.of("j2")) == [(1, None, None)]
    assert len(fold.take().trials) == 2
    fold.apply(facts("allocator", over(1, "j1", "j2")), at(9))
    [row] = fold.take().trials
    assert msgspec.to_builtins(row) | {"before": 0, "after": 0} == {
        "trial": 1,
        "kind": "pack",
        "vc": "nlp",
        "jobs": ("j1", "j2"),
        "families": ("a", "b"),
        "begun_at": at(2),
        "until": at(602),
        "needed_milli": 1_000,
        "expected_milli": 0,
        "begun_why": "by-policy",
        "verdict": "kept",
        "why": "trial-gains",
        "over_at": at(9),
        "gain_milli": 300,
        "low_milli": 250,
        "high_milli": 350,
        "detail": "",
        "before": 0,
        "after": 0,
        "nodes": (),
        "workers": 0,
        "grown": 0,
    }
    assert fold.take().trials == []
    fold.apply(facts("allocator", over(2, "j3", "j4", verdict=Verdict.VOID)), at(9))
    assert shown(ledger.of("j4")) == [(2, "void", None)]  # Nobody measured it.
    assert ledger.of("j9") == []


def test_rows_are_chosen_and_summed_up() -> None:
    ledger = Ledger()
    told: list[Any] = [
        begun(1, "j1", "j2"),
        over(1, "j1", "j2", gain=100),
        begun(2, "j1", "j3"),
        over(2, "j1", "j3", gain=201),
        begun(3, "j4", vc="vision", kind=Kind.GROW),
        begun(4, "j1", "j2"),
        over(4, "j1", "j2", verdict=Verdict.UNDONE, gain=-80),
        over(77, "j1"),
    ]
    for fact in told:
        ledger.apply(fact)

    def numbers(**asked: str) -> list[int]:
        return [one.trial for one in ledger.matching(Asked(**asked))]

    assert numbers() == [1, 2, 3, 4]
    assert numbers(job="j1") == [1, 2, 4]
    assert numbers(job="j1", verdict="kept", vc="nlp") == [1, 2]
    assert (numbers(vc="vision"), numbers(kind="pack", vc="vision")) == ([3], [])
    assert numbers(verdict="open") == [3]
    assert totals(ledger.matching(Asked())) == [
        {"kind": "grow", "open": 1, "kept": 0, "undone": 0, "void": 0, "kept_gain_milli": None},
        {"kind": "pack", "open": 0, "kept": 2, "undone": 1, "void": 0, "kept_gain_milli": 150},
    ]


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "TRIALS_KEPT", 2)
    ledger = Ledger()
    for trial in (1, 2, 3):
        ledger.apply(begun(trial, "j1", f"j{trial + 1}"))
    assert [one.trial for one in ledger.matching(Asked())] == [2, 3]
    assert (ledger.of("j2"), ledger.forgotten) == ([], 1)
    ledger.apply(over(1, "j1", "j2"))  # It is not at hand any more.
    assert [one.trial for one in ledger.of("j1")] == [2, 3]


# --- over HTTP ------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_ledger_is_answered_and_outlives_the_gateway(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await house.with_nodes()
        first, second = await submitted(house), await submitted(house)
        house.cluster.tell("ALLOC", facts("allocator", begun(1, first, second)))
        house.cluster.tell("ALLOC", facts("allocator", over(1, first, second)))
        house.cluster.tell("ALLOC", facts("allocator", begun(2, first, second)))
        await house.caught_up()
        await house.restart()
        await _answers(house, first)


async def _answers(house: House, job: str) -> None:
    answer = await house.nlp.get("/v1/trials")
    assert [(one["trial"], one["verdict"]) for one in answer["trials"]] == [(1, "kept"), (2, None)]
    assert (answer["total"], answer["forgotten"]) == (2, 0)
    answer = await house.op.get(f"/v1/trials?job={job}&limit=1")
    assert [one["trial"] for one in answer["trials"]] == [2]
    assert answer["totals"][0]["kept"] == 1
    assert [one["trial"] for one in (await house.op.get(f"/v1/jobs/{job}"))["trials"]] == [1, 2]
    assert len((await house.op.get(f"/v1/jobs/{job}/why"))["trials"]) == 2
    assert (await house.vision.get("/v1/trials"))["total"] == 0
    for path, status, told in (
        ("kind=pakc", 400, "no such kind: pakc: did you mean pack?"),
        ("verdict=fine", 400, "no such verdict: fine; there are kept, open, undone, void"),
        ("vc=nlpp", 404, "there is no virtual cluster nlpp: did you mean nlp?"),
        ("job=j99", 404, "there is no job j99"),
        ("job=train", 404, "there is no job train: did you mean j2, named train?"),
        ("job=x", 404, "there is no job x: ids look like j17"),
    ):
        assert (await house.op.get(f"/v1/trials?{path}", status))["error"]["text"] == told
    assert (await house.vision.get("/v1/trials?vc=nlp", 403))["error"]["reason"] == "wrong-vc"
    assert (await house.vision.get(f"/v1/trials?job={job}", 404))["error"][
        "reason"
    ] == "unknown-job"


# --- on the terminal ------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.setenv("SKEP_TOKEN", "secret")
        monkeypatch.setenv("SKEP_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("TZ", "UTC")
        yield made


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def told(limit: int = 9) -> dict[str, Any]:
    ledger = Ledger()
    for fact in (begun(1, "j1", "j2"), over(1, "j1", "j2", gain=123), begun(2, "j3", "j4")):
        ledger.apply(fact)
    found = ledger.matching(Asked())
    rows = msgspec.to_builtins(found[-limit:])
    answer = {"trials": rows, "total": len(found), "totals": totals(found), "forgotten": 5}
    return dict(json.loads(json.dumps(answer)))


def test_ledger(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/trials", told())
    code, out, err = run("ledger", "--vc", "nlp", "--kind", "pack", "--verdict", "kept")
    assert gateway.last("GET /v1/trials").query == {
        "vc": "nlp",
        "kind": "pack",
        "limit": "100",
        "verdict": "kept",
    }
    first, second, *_ = out.splitlines()[1:]
    assert first.split()[:4] == ["1", "pack", "j1", "j2"]
    assert first.endswith("kept      1.00x  +12.3% (+7.3 to +17.3)  trial-gains")
    assert second.endswith("open      1.00x                       -  by-policy")
    assert out.splitlines()[-1].split() == ["pack", "1", "1", "0", "0", "+12.3%"]
    assert (code, err) == (0, "5 older trials are not counted here\n")
    assert json.loads(run("ledger", "--json")[1]) == told()
    gateway.on("GET /v1/trials", told(limit=1))
    assert "1 of 2 trials; -n 2 shows all" in run("ledger", "-n", "1")[2]
    gateway.on("GET /v1/trials", {"trials": [], "total": 0, "totals": [], "forgotten": 0})
    assert run("ledger", "--job", "j1") == (0, "", "no trials\n")
    assert run("ledger", "-n", "-1")[0] == 2
    text = "no such kind: pakc: did you mean pack?"
    gateway.refuse("GET /v1/trials", 400, "bad-value", text)
    assert run("ledger", "--kind", "pakc") == (2, "", f"skep ledger: {text}\n")


def test_a_growth_names_its_sizes(gateway: FakeGateway, run: Run) -> None:
    answer = told()
    answer["trials"][1].update(kind="grow", jobs=["j3"], workers=2, grown=4)
    gateway.on("GET /v1/trials", answer)
    assert "j3 (2 to 4 workers)" in run("ledger")[1]


def test_why_shows_what_was_tried_with_a_job(gateway: FakeGateway, run: Run) -> None:
    answer = {
        "job": "j1",
        "state": "running",
        "reasons": [],
        "would_change": [],
        "trials": told()["trials"],
    }
    gateway.on("GET /v1/jobs/j1/why", answer)
    out = run("why", "j1")[1].splitlines()
    assert out[1] == "what was tried with it:"
    assert len(out) == 5


# --- probes ---------------------------------------------------------------------------------------


def test_it_is_told_what_probes_took_and_when_that_is_all() -> None:
    state = ClusterState()
    state.cells.cluster.vcs["nlp"] = VirtualCluster(gpus=1)
    assert budgets(state, "", at(0)) == []
    begin, lasts = at(0), seconds(300)
    known = [
        Probe(n, "j1", "bert", "cpu", 2, 2, 1, 2, begin, after(begin, lasts), after(begin, lasts))
        for n in range(2)
    ]
    state.probes.of_vc["nlp"] = known
    (told,) = budgets(state, "nlp", at(400))
    assert told == {"vc": "nlp", "probes": 2, "used_s": 1200, "most_s": 1728, "why": None}
    known.append(replace(known[0], trial=9))
    (told,) = budgets(state, "", at(400))
    assert (told["used_s"], told["why"]) == (1800, Reason.PROBE_BUDGET_USED)
    (told,) = budgets(state, "nlp", at(86_400 + 100))
    assert told["probes"] == 3
    known.append(replace(known[0], trial=10, at=at(50_000), until=at(50_100), ended=at(50_100)))
    (told,) = budgets(state, "nlp", at(90_000))
    assert (told["probes"], told["used_s"]) == (1, 200)
    known.pop()
    assert budgets(state, "vision", at(400)) == []
    assert budgets(state, "nlp", at(90_000)) == []


def test_what_a_probe_measured_is_told_in_words() -> None:
    first = replace(begun(3, "j1", kind=Kind.PROBE), workers=2, grown=4, nodes=("n1",))
    line = texts.describe(first)
    assert line is not None
    assert line.text == "probe 3 begins: j1 from 2 to 4 workers on n1"
    last = replace(over(3, "j1", verdict=Verdict.UNDONE, gain=800), why=Reason.PROBED)
    line = texts.describe(last)
    assert line is not None
    assert line.text == "probe 3 measured 4 mini-batches/s (+80 %) of j1"
