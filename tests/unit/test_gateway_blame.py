"""Blame over HTTP and on the terminal: it outlives the gateway, and tenants see their own jobs."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skep.ledger.blame.causes import Cause
from skep.ledger.blame.told import Party, Share, Span, Told
from skep.units import seconds
from skep_services.adapters import exported
from skep_services.cli.main import main
from skep_services.gateway.blame import seen_by
from tests.cli_kit import FakeGateway, fake_gateway
from tests.gateway_kit import House, opened, submitted
from tests.kit import spec
from tests.replay_kit import export, history

SEED = 3


def causes(answer: Any) -> dict[str, int]:
    """Return by cause its whole seconds."""
    assert sum(share["ns"] for share in answer["shares"]) == answer["elapsed_ns"]
    return {share["cause"]: share["ns"] // 10**9 for share in answer["shares"]}


@pytest.mark.asyncio
async def test_blame_is_answered_and_outlives_the_gateway(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await house.with_nodes(nodes=1)
        first, second = await submitted(house, gpus=2), await submitted(house)
        house.cluster.runs(first, second=5)
        house.cluster.exits(first, second=25)
        house.cluster.runs(second, second=30)
        await house.caught_up()
        house.cluster.clock.advance(seconds(40))
        before = [await house.op.get(f"/v1/jobs/{job}/blame") for job in (first, second)]
        assert before[0]["end"] == "succeeded"
        assert causes(before[0])["running"] == 20
        assert causes(before[1])["waits-behind"] == 24
        assert before[1]["shares"][1]["parties"][0]["name"] == first
        assert (before[1]["end"], causes(before[1])["running"]) == ("", 10)
        whole = await house.op.get("/v1/blame")
        [nlp] = whole["vcs"]
        assert (nlp["vc"], nlp["jobs"], nlp["unfinished"]) == ("nlp", 2, 1)
        assert causes(nlp)["running"] == 30
        await house.restart()
        assert [await house.op.get(f"/v1/jobs/{job}/blame") for job in (first, second)] == before
        assert await house.op.get("/v1/blame?vc=nlp") == whole
        house.cluster.exits(second, second=50)
        await house.caught_up()
        answer = await house.nlp.get(f"/v1/jobs/{second}/blame")
        assert (answer["end"], causes(answer)["running"]) == ("succeeded", 20)
        assert (await house.vision.get("/v1/blame"))["vcs"] == []
        await _refusals(house, first)


async def _refusals(house: House, job: str) -> None:
    async def told(who: Any, path: str, status: int) -> tuple[str, str]:
        error = (await who.get(path, status))["error"]
        return error["reason"], error["text"]

    there_is_none = ("unknown-job", f"there is no job {job}")
    assert await told(house.vision, f"/v1/jobs/{job}/blame", 404) == there_is_none
    assert (await told(house.op, "/v1/jobs/j99/blame", 404))[0] == "unknown-job"
    assert (await told(house.vision, "/v1/blame?vc=nlp", 403))[0] == "wrong-vc"
    text = "there is no virtual cluster nlpp: did you mean nlp?"
    assert await told(house.op, "/v1/blame?vc=nlpp", 404) == ("unknown-vc", text)
    assert (await told(house.op, "/v1/blame?vc=a.b", 400))[0] == "bad-value"
    refused = await house.op.json("POST", "/v1/jobs", 422, spec(gpus=16, over_quota="refuse"))
    name = refused["job"]
    reason, text = await told(house.op, f"/v1/jobs/{name}/blame", 409)
    assert reason == "no-blame"
    assert text == f"{name} was refused: it never waited or ran; `skep why {name}` says why"


@pytest.mark.asyncio
async def test_a_file_of_an_earlier_version_is_filled_from_the_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await house.with_nodes(nodes=1)
        job = await submitted(house)
        house.cluster.runs(job, second=5)
        house.cluster.exits(job, second=25)
        await house.caught_up()
        before = await house.op.get(f"/v1/jobs/{job}/blame")
        for broken in (
            "DELETE FROM blame_kept; DELETE FROM blamed",
            "UPDATE blame_kept SET doc = '{}'; DELETE FROM blamed",
            "DROP TABLE blame_kept; DROP TABLE blamed",
        ):
            await house.stop()
            with sqlite3.connect(house.path) as file:
                file.executescript(broken)
            file.close()
            await house.start()
            assert await house.op.get(f"/v1/jobs/{job}/blame") == before, broken
        await house.stop()
        with sqlite3.connect(house.path) as file:
            file.executescript("DELETE FROM blamed")
        file.close()
        await house.start()
        error = (await house.op.get(f"/v1/jobs/{job}/blame", 409))["error"]
        assert "ended too long ago" in error["text"]


def test_other_tenants_jobs_have_no_name() -> None:
    parties = (
        Party("job", 5, "j1", "vision"),
        Party("job", 3, "j2", "nlp"),
        Party("job", 2, "j3", "lab"),
        Party("others", 1),
    )
    told = Told(
        job="j9",
        name="train",
        vc="nlp",
        gpus=1,
        submitted_at=0,
        until=11,
        end="",
        elapsed_ns=11,
        held_gpu_ns=0,
        useful_gpu_ns=0,
        slowed_gpu_ns=0,
        lost_gpu_ns=0,
        shares=(Share(Cause.PREEMPTED, 11, 0, parties),),
        earlier_ns=0,
        spans=(Span(0, 11, Cause.PREEMPTED, parties),),
    )
    seen = seen_by(told, "nlp")
    hidden = parties[1], parties[3], Party("other-tenants", 7)
    assert [share.parties for share in seen.shares] == [hidden]
    assert [span.parties for span in seen.spans] == [hidden]
    assert seen_by(told, "") is told


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


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a cluster's log."""
    path = tmp_path_factory.mktemp("blame") / "log.jsonl.gz"
    export(history(SEED), path)
    return path


def test_a_job_of_an_export_adds_up_on_the_terminal(run: Run, log: Path) -> None:
    code, out, err = run("blame", "--from", str(log), "--json")
    assert (code, err) == (0, "")
    whole = json.loads(out)
    assert {one["vc"] for one in whole["vcs"]} >= {"nlp", "vision"}
    for one in whole["vcs"]:
        causes(one)
    code, out, err = run("blame", "j2", "--spans", "--from", str(log))
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.startswith("j2  ")
    assert any(row.startswith("total") and " 100.0%" in row for row in rows)
    assert any(row.startswith("held ") or row == "it held no GPUs" for row in rows)
    plain = json.loads(run("blame", "j2", "--from", str(log), "--json")[1])
    causes(plain)
    assert list(plain) == [
        "job",
        "name",
        "vc",
        "gpus",
        "submitted_at",
        "until",
        "end",
        "elapsed_ns",
        "held_gpu_ns",
        "useful_gpu_ns",
        "slowed_gpu_ns",
        "lost_gpu_ns",
        "shares",
        "earlier_ns",
        "spans",
    ]


def test_vcs_of_an_export_and_their_useful_gpu_hours(run: Run, log: Path) -> None:
    code, out, _ = run("blame", "--vc", "nlp", "--from", str(log))
    assert code == 0
    assert out.splitlines()[0].startswith("nlp  ")
    last = out.splitlines()[-1].split()
    assert last[0] == "nlp"
    assert all(each.endswith("%") for each in last[2:])


def test_the_gateway_is_asked_without_a_file(gateway: FakeGateway, run: Run, log: Path) -> None:
    job = json.loads(run("blame", "j2", "--from", str(log), "--json")[1])
    gateway.on("GET /v1/jobs/j2/blame", job)
    assert run("blame", "j2") == run("blame", "j2", "--from", str(log))
    vcs = json.loads(run("blame", "--from", str(log), "--json")[1])
    gateway.on("GET /v1/blame", vcs)
    assert run("blame") == run("blame", "--from", str(log))
    run("blame", "--vc", "nlp")
    assert gateway.last("GET /v1/blame").query == {"vc": "nlp"}
    gateway.on("GET /v1/blame", {"at": 0, "vcs": []})
    assert run("blame") == (0, "", "no jobs\n")
    gateway.refuse("GET /v1/jobs/j9/blame", 404, "unknown-job", "there is no job j9")
    assert run("blame", "j9") == (3, "", "skep blame: there is no job j9\n")


@pytest.mark.parametrize(
    "words, code, told",
    [
        (("j2", "--vc", "nlp"), 2, "give a job or --vc, not both"),
        (("--spans",), 2, "--spans is of one job: skep blame JOB --spans"),
        (("--from", "live"), 2, "--from takes a file: without it the cluster is asked"),
        (("j99999", "--from", "LOG"), 3, "LOG: there is no job j99999 in its log; there are j"),
        (("--vc", "nlpp", "--from", "LOG"), 3, "LOG: no job of virtual cluster nlpp is in its log"),
        (("--from", "MISSING"), 1, "MISSING: No such file or directory: name an export of"),
        (("--from", "EMPTY"), 1, "EMPTY: the allocator's log there holds no job"),
        (("--from", "CUT"), 1, "CUT: cut short or damaged: "),
        (("--from", "HALF"), 1, "line 40: not a message of an export: "),
        (("--from", "NOISE"), 1, "NOISE, line 1: not a message of an export: "),
        (("--from", "GAP"), 1, "fact log"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: tuple[str, ...], code: int, told: str, run: Run, log: Path, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("MISSING", "EMPTY", "HALF", "NOISE", "GAP")}
    files |= {"LOG": log, "CUT": tmp_path / "cut.gz"}
    packed = log.read_bytes()
    lines = gzip.decompress(packed).splitlines(keepends=True)
    files["EMPTY"].write_bytes(b"")
    files["CUT"].write_bytes(packed[: len(packed) // 2])
    files["HALF"].write_bytes(b"".join(lines[:40])[:-20])
    files["NOISE"].write_bytes(b"\x00\xff not a log\n")
    streams = exported.read(log)
    del streams["ALLOC"][10]
    exported.write(files["GAP"], streams)
    given = [str(files.get(word, word)) for word in words]
    found, out, err = run("blame", *given)
    for name, path in files.items():
        err = err.replace(str(path), name)
    assert (found, out) == (code, ""), err
    assert told in err
    assert len(err.splitlines()) == 1
    if "--from" in words and code == 1 and words[-1] not in {"EMPTY", "MISSING"}:
        assert "export the log again" in err
