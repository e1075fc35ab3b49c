"""Every command that asks the gateway: what is asked, what is printed, how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli import jobs, logs
from skep_services.cli.main import COMMANDS, main
from tests.cli_kit import SECOND, T0, Asked, FakeGateway, Told, ended, fake_gateway, row

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.setenv("SKEP_TOKEN", "secret")
        monkeypatch.setenv("SKEP_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("TZ", "UTC")
        monkeypatch.delenv("SKEP_VC", raising=False)
        monkeypatch.delenv("TRACEPARENT", raising=False)
        yield made


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Return what runs a command in this process: (exit code, standard output, standard error)."""

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


# --- the command as such --------------------------------------------------------------------------


def test_overview_names_every_command_and_exit_code(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert "130  interrupted" in out
    assert run()[0] == 2
    assert run("help", "ps")[1].startswith("usage: skep ps")
    assert run("help", "nonsense")[0] == 0


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_with_exit_codes(run: Run, name: str) -> None:
    code, out, _ = run(name, "-h")
    assert code == 0
    assert "--json" in out
    assert "exit codes:" in out


def test_unknown_commands_and_options(run: Run) -> None:
    code, _, err = run("subnit")
    assert (code, err) == (2, "skep: no command 'subnit': did you mean `skep submit`?\n")
    assert "`skep -h` lists" in run("zzz")[2]
    assert run("ps", "--nonsense")[0] == 2
    assert run("ps", "-n", "0")[0] == 2
    assert run("wait")[0] == 2


def test_version(run: Run) -> None:
    code, out, _ = run("version")
    assert code == 0
    assert out.startswith("skep ")
    assert json.loads(run("version", "--json")[1])["python"] == sys.version.split()[0]
    assert run("--version")[1] == out


def test_no_cluster(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SKEP_API", raising=False)
    code, _, err = run("ps", "--home", str(tmp_path))
    assert code == 4
    assert "start one:" in err
    code, out, _ = run("ps", "--json", "--home", str(tmp_path))
    assert (code, json.loads(out)["error"]["reason"]) == (4, "no-cluster")


def test_output_that_nobody_reads_is_no_failure(gateway: FakeGateway) -> None:
    gateway.on("GET /v1/jobs", {"jobs": [row(f"j{n}") for n in range(5000)], "total": 5000})
    command = f"{sys.executable} -m skep_services ps | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, check=True, timeout=120
    )
    assert done.stdout.startswith(b"JOB")
    assert done.stderr == b""


def test_output_that_cannot_be_written_is_a_failure(gateway: FakeGateway) -> None:
    gateway.on("GET /v1/jobs", {"jobs": [row()], "total": 1})
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "skep_services", "ps"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr


def test_common_commands_import_little() -> None:
    heavy = (
        "asyncio",
        "aiohttp",
        "email",
        "http",
        "logging",
        "msgspec",
        "nats",
        "pathlib",
        "shutil",
        "ssl",
        "structlog",
        "subprocess",
        "threading",
        "yaml",
    )
    script = (
        "import sys; from skep_services.cli import main; main.main(['ps', '-h']);"
        "from skep_services.cli import jobs, logs, nodes, show, trace;"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    # Isolated: coverage, where it measures subprocesses, imports some of these itself.
    environment = {name: value for name, value in os.environ.items() if "COVERAGE" not in name}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        env=environment,
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1] == b"[]"


# --- ps -------------------------------------------------------------------------------------------


def test_ps_lists_active_jobs(gateway: FakeGateway, run: Run) -> None:
    rows = [
        row("j1"),
        row(
            "j2",
            state="queued",
            place="",
            attempt=0,
            started_at=None,
            rate_milli=None,
            eta_s=None,
            steps=0,
            total_steps=None,
            why="waits-for-gpus",
            needs="2 GPUs",
        ),
        row("j3", submitted_at=None, why=None),
    ]
    gateway.on("GET /v1/jobs", {"jobs": rows, "total": 5})
    code, out, err = run("ps")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == [
        "JOB",
        "NAME",
        "VC",
        "STATE",
        "GPUS",
        "PRI",
        "AGE",
        "RUN",
        "TRY",
        "RATE",
        "STEPS",
        "ETA",
        "ENDS",
        "PLACE",
        "WHY",
    ]
    assert "12.3/s  120/1000  1m11s  -     node-1:0,1  best-fit-one-node" in lines[1]
    assert lines[2].endswith("waits-for-gpus: 2 GPUs")
    assert err == "3 of 5 jobs; -n 5 shows all\n"
    assert gateway.last("GET /v1/jobs").query == {"state": "active", "limit": "20000"}


def test_ps_filters(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/jobs", {"jobs": [], "total": 0})
    assert "no active jobs" in run("ps")[2]
    code, out, err = run("ps", "-a", "--vc", "nlp", "--name", "a b", "-n", "3")
    assert (code, out, err) == (0, "", "no jobs\n")
    query = gateway.last("GET /v1/jobs").query
    assert query == {"state": "all", "vc": "nlp", "name": "a b", "limit": "3"}
    assert run("ps", "-q") == (0, "", "")
    run("ps", "--state", "failed")
    assert gateway.last("GET /v1/jobs").query["state"] == "failed"
    gateway.on("GET /v1/jobs", {"jobs": [row("j1"), row("j2")], "total": 2})
    assert run("ps", "-q") == (0, "j1\nj2\n", "")


def test_ps_of_a_virtual_cluster_that_there_is_not(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/jobs", {"jobs": [], "total": 0})
    gateway.on("GET /v1/vcs", {"vcs": [{"vc": "vision"}, {"vc": "nlp"}]})
    told = "no jobs; there is no virtual cluster 'visoin': did you mean vision?\n"
    assert run("ps", "-a", "--vc", "visoin") == (0, "", told)
    assert run("ps", "-a", "--vc", "nlp") == (0, "", "no jobs\n")


def test_long_lists_are_decoded_as_short_ones(gateway: FakeGateway, run: Run) -> None:
    rows = [row(f"j{number}") for number in range(2_500)]
    gateway.on("GET /v1/jobs", {"jobs": rows, "total": 2_500})
    assert run("ps", "-q")[1].split() == [one["job"] for one in rows]
    gateway.on("GET /v1/jobs", lambda _: Told(pieces=[b"{" + b" " * 1_100_000]))
    code, _, err = run("ps")
    assert (code, err.startswith("skep ps: the gateway's answer is not JSON: ")) == (4, True)


def test_ps_passes_on_how_jobs_are_chosen_and_sorted(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/jobs", {"jobs": [], "total": 0})
    run("ps", "-l", "team=x", "--user", "ada", "--state", "running,queued", "--sort", "gpus", "-r")
    query = gateway.last("GET /v1/jobs").query
    assert query == {
        "state": "running,queued",
        "label": "team=x",
        "user": "ada",
        "limit": "20000",
        "order": "-gpus",
    }


def test_ps_shows_the_columns_that_are_asked_for(gateway: FakeGateway, run: Run) -> None:
    rows = [row("j1", labels={"team": "x", "n": "1"}), row("j2", total_steps=None)]
    gateway.on("GET /v1/jobs", {"jobs": rows, "total": 2})
    lines = run("ps", "-o", "job,labels,done,class")[1].splitlines()
    assert [line.split() for line in lines] == [
        ["JOB", "LABELS", "DONE", "CLASS"],
        ["j1", "team=x,n=1", "12%", "guaranteed"],
        ["j2", "-", "-", "guaranteed"],
    ]
    assert run("ps", "-o", "+workers")[1].splitlines()[0].split()[-2:] == ["WHY", "WORKERS"]
    assert "SUBMITTED" in run("ps", "-o", "wide")[1].splitlines()[0]


@pytest.mark.parametrize(
    "words, told",
    [
        (("-o", "jobb"), "-o: no column 'jobb': did you mean job?"),
        (("-o", "json"), "-o: no column 'json': `--json` prints everything as JSON"),
        (("-o", ""), "-o: no column '': there are job, name, vc"),
        (("-r",), "--reverse is about --sort by a column"),
        (("-w", "-q"), "-w shows a table, and -q is for scripts: choose one"),
    ],
)
def test_ps_refuses_what_means_nothing(
    gateway: FakeGateway, run: Run, words: tuple[str, ...], told: str
) -> None:
    gateway.on("GET /v1/jobs", {"jobs": [], "total": 0})
    code, out, err = run("ps", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"skep ps: {told}")
    assert err.count("\n") == 1


def test_ps_json_is_what_the_gateway_said(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/jobs", {"jobs": [row()], "total": 1})
    assert json.loads(run("ps", "--json")[1]) == {"jobs": [row()], "total": 1}


# --- one job --------------------------------------------------------------------------------------


def whole(**changes: Any) -> dict[str, Any]:
    attempt = {
        "attempt": 1,
        "place": "node-1:0,1",
        "why": "best-fit-one-node",
        "ranked": "arrival",
        "bound_at": T0 + SECOND,
        "started_at": T0 + 2 * SECOND,
        "first_step_at": T0 + 3 * SECOND,
        "ended_at": None,
        "outcome": None,
        "detail": "",
        "steps": 120,
        "step_ns": 80_000_000,
        "members": [],
    }
    spec = {
        "name": "train",
        "vc": "nlp",
        "script": "train.py",
        "args": ["--lr", "3"],
        "workdir": "/data",
        "resources": {"gpus": 2, "cpus": 1, "memory": 2**30, "topology": {"hard": True}},
        "limits": {"time": 3600, "retries": 1},
        "labels": {"team": "x"},
    }
    more = {
        "spec": spec,
        "problems": [],
        "detail": "",
        "attempts": [attempt],
        "trace": "00-aa-bb-01",
        "key": "k",
        "repeated_by": ["j9"],
    }
    return {**row(), **more, **changes}


def test_show(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/jobs/j1", whole())
    code, out, _ = run("show", "j1")
    assert code == 0
    for text in (
        "j1  train  running",
        "wants       2 GPUs, 1 CPU per worker, 1GiB per worker, workers must share a node",
        "runs        train.py --lr 3",
        "tier        observed",
        "limits      1h00m at most, 1 retry",
        "rate        12.3/s, 120/1000 mini-batches, 1m11s left",
        "waited      1.0s",
        "repeated by j9",
        "80ms",
    ):
        assert text in out
    assert json.loads(run("show", "--json", "j1")[1]) == {**whole(), "links": []}


def test_show_has_the_pages_of_a_job(gateway: FakeGateway, run: Run) -> None:
    links = [
        {"kind": "wandb", "by": "log", "url": "https://wandb.ai/a/b/runs/c"},
        {"kind": "tensorboard", "by": "log", "folder": "/runs/\x1b[2Jx"},
    ]
    gateway.on("GET /v1/jobs/j1", whole())
    gateway.on("GET /v1/jobs/j1/links", {"job": "j1", "links": links, "log": True})
    out = run("show", "j1")[1]
    assert "wandb       https://wandb.ai/a/b/runs/c" in out
    assert "(skep tensorboard j1)" in out
    assert "\x1b[2J" not in out
    assert json.loads(run("show", "--json", "j1")[1])["links"] == links


def test_show_of_a_refused_job_lists_its_problems(gateway: FakeGateway, run: Run) -> None:
    problem = {
        "path": "$.resources.gpu",
        "reason": "unknown-key",
        "text": "unknown key `gpu`",
        "suggestion": "did you mean `gpus`?",
    }
    refused = whole(state="refused", spec="not even JSON", attempts=[], problems=[problem, {}])
    gateway.on("GET /v1/jobs/j1", refused)
    out = run("show", "j1")[1]
    assert "$.resources.gpu: unknown key `gpu` (unknown-key): did you mean `gpus`?" in out
    assert "ATTEMPT" not in out


def test_show_of_other_kinds_of_jobs(gateway: FakeGateway, run: Run) -> None:
    spec = {"command": ["sh", "-c", "echo a b"], "limits": {"retries": 3}}
    changes = {"workers": 4, "gpus": 8, "gpu_type": "h200", "steps": 0}
    gateway.on("GET /v1/jobs/j1", whole(spec={**spec, "resources": {"gpus": 2}}, **changes))
    out = run("show", "j1")[1]
    assert "wants       8 GPUs (4 workers x 2), type h200" in out
    assert "runs        sh -c 'echo a b'" in out
    assert "tier        not known before it trains" in out
    assert "3 retries" in out
    gateway.on("GET /v1/jobs/j1", whole(spec=spec, state="failed", **changes))
    assert "tier        opaque" in run("show", "j1")[1]
    gateway.on("GET /v1/jobs/j1", whole(spec={"command": "a | b", "resources": {"topology": {}}}))
    assert "runs        a | b" in run("show", "j1")[1]


def test_unknown_job_exits_3(gateway: FakeGateway, run: Run) -> None:
    gateway.refuse("GET /v1/jobs/j99", 404, "unknown-job", "there is no job j99")
    assert run("show", "j99") == (3, "", "skep show: there is no job j99\n")
    code, out, _ = run("show", "j99", "--json")
    assert (code, json.loads(out)["error"]["reason"]) == (3, "unknown-job")


def test_why(gateway: FakeGateway, run: Run) -> None:
    answer = {
        "job": "j1",
        "state": "queued",
        "reasons": [{"reason": "waits-for-gpus", "text": "not enough GPUs are free", "needs": "2"}],
        "would_change": ["2 GPUs become free"],
    }
    gateway.on("GET /v1/jobs/j1/why", answer)
    code, out, _ = run("why", "j1")
    assert code == 0
    assert out.splitlines() == [
        "j1  queued",
        "  because not enough GPUs are free: 2 (waits-for-gpus)",
        "what would change it:",
        "  2 GPUs become free",
    ]
    assert json.loads(run("why", "j1", "--json")[1]) == {**answer, "if_stopped": ""}
    gateway.on("GET /v1/jobs/j1/why", {**answer, "state": "failed"})
    assert "what would help:" in run("why", "j1")[1]
    gateway.on("GET /v1/jobs/j1/why", {**answer, "would_change": []})
    assert "what would" not in run("why", "j1")[1]


def test_changes_are_asked_for_and_waited_for(gateway: FakeGateway, run: Run) -> None:
    asked = {"job": "j1", "ask": "suspend", "number": 7, "accepted": True}
    gateway.on("POST /v1/jobs/j1/suspend", asked, 202)
    gateway.refuse("POST /v1/jobs/j2/suspend", 409, "already-ended", "j2 has ended")
    assert run("suspend", "j1") == (0, "j1 is asked to stand still\n", "")
    code, out, err = run("suspend", "j1", "j2", "--release")
    assert (code, out, err) == (1, "j1 is asked to stand still\n", "j2: j2 has ended\n")
    assert json.loads(run("suspend", "j1", "--json")[1]) == {"jobs": [asked]}

    told = {"number": 7, "ask": "suspend", "result": "done", "why": None, "detail": ""}
    gateway.on("GET /v1/jobs/j1", {**row("j1", state="suspended"), "asks": [told]})
    assert run("suspend", "j1", "--wait") == (0, "j1 stands still\n", "")
    undone = {**told, "result": "undone", "why": "not-taken", "detail": "node-1"}
    gateway.on("GET /v1/jobs/j1", {**row("j1", state="running"), "asks": [undone]})
    assert run("suspend", "j1", "--wait") == (1, "", "j1: suspend undone (not-taken: node-1)\n")
    gateway.on("GET /v1/jobs/j1", {**row("j1", state="running"), "asks": []})
    code, _, err = run("suspend", "j1", "--wait", "--timeout", "0")
    assert (code, err) == (5, "j1: not in time; it is still under way\n")
    gateway.on("GET /v1/jobs/j1", {**ended("j1"), "asks": []})
    code, _, err = run("suspend", "j1", "--wait")
    assert (code, err) == (1, "j1: suspend overtaken (already-ended: succeeded)\n")


def test_cancel_exits_with_the_worst_outcome(gateway: FakeGateway, run: Run) -> None:
    gateway.on("DELETE /v1/jobs/j1", {"job": "j1", "accepted": True}, 202)
    gateway.refuse("DELETE /v1/jobs/j2", 409, "already-ended", "j2 has ended")
    assert run("cancel", "j1") == (0, "j1 is being cancelled\n", "")
    code, out, err = run("cancel", "j1", "j2")
    assert (code, out, err) == (1, "j1 is being cancelled\n", "j2: j2 has ended\n")
    code, out, _ = run("cancel", "j3", "j2", "--json")
    assert code == 3
    assert [one["accepted"] for one in json.loads(out)["jobs"]] == [False, False]
    gateway.refuse("DELETE /v1/jobs/j1", 503, "bus", "the bus does not answer")
    assert run("cancel", "j1")[0] == 4


# --- wait -----------------------------------------------------------------------------------------


def test_wait_polls_until_all_have_ended(gateway: FakeGateway, run: Run) -> None:
    answers = iter([row("j1"), row("j1"), ended("j1")])
    gateway.on("GET /v1/jobs/j1", lambda _: Told(200, next(answers)))
    gateway.on("GET /v1/jobs/j2", ended("j2", "failed", detail="rank 0: exit status 3"))
    gateway.on("GET /v1/jobs/j3", ended("j3", "cancelled", started_at=None))
    code, out, _ = run("wait", "j1", "j1")
    assert (code, out) == (0, "j1 succeeded after 10s\n")
    assert gateway.last("GET /v1/jobs/j1").query == {"wait": "ended", "timeout_s": "30"}
    gateway.on("GET /v1/jobs/j1", ended("j1"))
    code, out, _ = run("wait", "j1", "j2", "j3")
    assert code == 1
    assert out.splitlines()[1:] == ["j2 failed after 10s (rank 0: exit status 3)", "j3 cancelled"]
    code, out, _ = run("wait", "j2", "--json")
    assert (code, json.loads(out)["jobs"][0]["state"]) == (1, "failed")
    assert run("wait", "-q", "j1") == (0, "", "")


def test_wait_gives_up_in_time(gateway: FakeGateway, run: Run) -> None:
    waiting = row("j1", state="queued", started_at=None, why="waits-for-gpus", needs="2 GPUs")
    gateway.on("GET /v1/jobs/j1", waiting)
    code, out, err = run("wait", "j1", "-t", "0.05s")
    assert code == 5
    assert out == "j1 queued (waits-for-gpus: 2 GPUs)\n"
    assert "not everything ended in time" in err
    assert json.loads(run("wait", "j1", "-t", "0", "--json")[1])["timeout"] is True
    assert gateway.last("GET /v1/jobs/j1").query["timeout_s"] == "0"
    assert run("wait", "j1", "-t", "soon")[0] == 2
    assert run("wait", "j1", "-t", "400d")[0] == 2


def test_wait_for_the_start(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/jobs/j1", row("j1"))
    assert run("wait", "--for", "started", "j1") == (0, "j1 running (best-fit-one-node)\n", "")
    assert [jobs.seconds(text) for text in ("90", "90s", "2m", "1h", "1d")] == [
        90,
        90,
        120,
        3600,
        86400,
    ]


# --- logs -----------------------------------------------------------------------------------------


def test_logs_of_one_rank(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/jobs/j1", row(workers=2))
    gateway.on("GET /v1/jobs/j1/logs", lambda _: Told(pieces=[b"one\n", b"tw", b"o\xff"]))
    code, out, _ = run("logs", "j1", "--attempt", "2")
    assert (code, out) == (0, "one\ntwo�")
    query = gateway.last("GET /v1/jobs/j1/logs").query
    assert query == {"rank": "0", "attempt": "2", "follow": "0"}
    lines = run("logs", "j1", "--json", "--rank", "1")[1].splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one\n", "tw", "o�"]


def test_logs_of_all_ranks_have_their_rank_in_front(gateway: FakeGateway, run: Run) -> None:
    def answer(asked: Asked) -> Told:
        rank = asked.query["rank"].encode()
        return Told(pieces=[b"a" + rank, b"\nb" + rank + b"\nend"])

    gateway.on("GET /v1/jobs/j1", row(workers=2))
    gateway.on("GET /v1/jobs/j1/logs", answer)
    out = run("logs", "j1", "--rank", "all")[1]
    assert out.splitlines() == ["[0] a0", "[0] b0", "[0] end", "[1] a1", "[1] b1", "[1] end"]


def test_logs_that_cannot_be(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/jobs/j1", row(workers=2))
    assert run("logs", "j1", "--rank", "2")[0] == 3
    assert run("logs", "j1", "--rank", "one")[0] == 2
    gateway.on("GET /v1/jobs/j1", row(state="queued", attempt=0))
    code, out, err = run("logs", "j1")
    assert (code, out) == (0, "")
    assert "not started yet" in err
    gateway.on("GET /v1/jobs/j1", row())
    gateway.on("GET /v1/jobs/j1/logs", lambda _: Told(pieces=[b"half"], cut=True))
    code, _, err = run("logs", "j1")
    assert code == 4
    assert "in the middle of an answer" in err


def test_followed_log_goes_on_at_the_byte_where_it_was_cut(gateway: FakeGateway, run: Run) -> None:
    text = b"0123456789"

    def answer(asked: Asked) -> Told:
        begin = int(asked.query.get("offset", 0))
        assert asked.query["follow"] == "1"
        return (
            Told(pieces=[text[begin : begin + 4]], cut=True)
            if begin < 8
            else Told(pieces=[text[begin:]])
        )

    gateway.on("GET /v1/jobs/j1", ended())
    gateway.on("GET /v1/jobs/j1/logs", answer)
    assert run("logs", "-f", "j1")[1] == "0123456789"


def test_logs_pass_on_which_part_is_asked_for(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/jobs/j1", row())
    gateway.on(
        "GET /v1/jobs/j1/logs", lambda _: Told(pieces=[b'{"offset":9,"text":"a loss\\n"}\n'])
    )
    words = ("--tail", "5", "--since", "10m", "--grep", "a l*", "-i")
    assert run("logs", "j1", *words) == (0, "a loss\n", "")
    query = gateway.last("GET /v1/jobs/j1/logs").query
    asked = {"rank": "0", "attempt": "latest", "follow": "0"}
    assert query == {**asked, "tail": "5", "since_s": "600", "grep": "a l*", "any_case": "1"}
    lines = run("logs", "j1", "--grep", "loss", "--json")[1].splitlines()
    assert [json.loads(line) for line in lines] == [{"rank": 0, "text": "a loss\n"}]


def test_followed_lines_with_a_text_go_on_where_the_gateway_says(
    gateway: FakeGateway, run: Run
) -> None:
    gateway.on("GET /v1/jobs/j1", ended("j1"))
    answers = [
        Told(pieces=[b'{"offset":50,"text":"one\\n"}\n{"offset":1000000,"text":""}\n'], cut=True),
        Told(pieces=[b'{"offset":1000007,"text":"two\\n"}\n']),
    ]
    gateway.on("GET /v1/jobs/j1/logs", lambda _: answers.pop(0))
    assert run("logs", "-f", "j1", "--grep", "o", "-n", "3") == (0, "one\ntwo\n", "")
    first, second = [one.query for one in gateway.asked if one.path.endswith("/logs")]
    assert (first["tail"], first.get("offset")) == ("3", None)
    assert (second.get("tail"), second["offset"], second["grep"]) == (None, "1000000", "o")


@pytest.mark.parametrize(
    "words",
    [
        ("--tail", "-1"),
        ("--tail", "x"),
        ("--tail", "100001"),
        ("--since", "soon"),
        ("--since", "-5m"),
        ("--grep", ""),
        ("--grep", "a\nb"),
        ("--grep", "x" * 257),
        ("--ignore-case",),
    ],
)
def test_parts_of_logs_that_cannot_be(
    gateway: FakeGateway, run: Run, words: tuple[str, ...]
) -> None:
    gateway.on("GET /v1/jobs/j1", row())
    code, out, err = run("logs", "j1", *words)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("skep logs: ")
    assert not [one for one in gateway.asked if one.path.endswith("/logs")]


def test_followed_log_goes_on_with_later_attempts(gateway: FakeGateway, run: Run) -> None:
    states = iter([row(attempt=1), row(attempt=1), row(attempt=1), row(attempt=2)])
    gateway.on("GET /v1/jobs/j1", lambda _: Told(200, next(states, ended(attempt=2))))
    gateway.on("GET /v1/jobs/j1/logs", lambda asked: Told(pieces=[asked.query["attempt"].encode()]))
    code, out, err = run("logs", "-f", "j1")
    assert (code, out) == (0, "12")
    assert "--- j1: attempt 2 ---" in err
    states = iter([row(attempt=2)])
    assert run("logs", "-f", "j1", "--attempt", "1")[1] == "1"


def test_followed_log_of_a_job_that_never_started(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/jobs/j1", ended(state="cancelled", attempt=0, started_at=None))
    assert run("logs", "-f", "j1") == (0, "", "")


def test_followed_ranks_come_together(gateway: FakeGateway, run: Run) -> None:
    gateway.on("GET /v1/jobs/j1", ended(workers=3))
    gateway.on(
        "GET /v1/jobs/j1/logs",
        lambda asked: Told(pieces=[b"from " + asked.query["rank"].encode() + b"\n"]),
    )
    out = run("logs", "-f", "j1", "--rank", "all")[1]
    assert sorted(out.splitlines()) == ["[0] from 0", "[1] from 1", "[2] from 2"]
    gateway.refuse("GET /v1/jobs/j1/logs", 404, "no-attempt", "j1 has no attempt 1")
    assert run("logs", "-f", "j1", "--rank", "all")[0] == 3
    assert len(logs.ranks_of("all", row(workers=100_000))) == logs.RANKS_MAX


# --- events ---------------------------------------------------------------------------------------


def event(seq: int, **changes: Any) -> dict[str, Any]:
    given = {
        "seq": seq,
        "at": T0,
        "kind": "job-bound",
        "text": "placed",
        "job": "j1",
        "vc": "nlp",
        "attempt": 1,
        "node": "node-1",
        "reason": "",
    }
    return {**given, **changes}


def test_events(gateway: FakeGateway, run: Run) -> None:
    listed = [event(1), event(2, job="", text="is back\x1b"), event(3, attempt=2)]
    gateway.on("GET /v1/events", {"events": listed})
    code, out, _ = run("events", "--since", "0", "--job", "j1", "--vc", "nlp")
    assert code == 0
    assert out.splitlines() == [
        "22:13:20.000  j1        placed",
        "22:13:20.000  node-1    is back�",
        "22:13:20.000  j1        placed (attempt 2)",
    ]
    assert gateway.last("GET /v1/events").query == {"since": "0", "job": "j1", "vc": "nlp"}
    assert json.loads(run("events", "--json")[1]) == {"events": listed}
    gateway.on("GET /v1/events", {"events": []})
    assert run("events") == (0, "", "")


def test_followed_events_go_on_after_the_last_one_seen(gateway: FakeGateway, run: Run) -> None:
    def stream(asked: Asked) -> Told:
        since = int(asked.query.get("since", 6))
        if since >= 8:
            return Told(404, {"error": {"reason": "end", "text": "the test is over"}})
        data = json.dumps(event(since + 1))
        return Told(pieces=[b": hello\n\n", f"id: {since + 1}\ndata: {data}\n\n".encode()])

    gateway.on("GET /v1/events", stream)
    code, out, err = run("events", "-f")
    assert code == 3
    assert out.count("placed") == 2
    assert "the test is over" in err
    lines = run("events", "-f", "--json", "--since", "7")[1].splitlines()
    assert json.loads(lines[0])["seq"] == 8


# --- resources ------------------------------------------------------------------------------------


def test_gpus(gateway: FakeGateway, run: Run) -> None:
    free = {
        "node": "node-1",
        "index": 0,
        "type": "cpu",
        "memory": 2**30,
        "job": None,
        "vc": None,
        "rank": None,
        "utilisation": None,
        "borrowed": False,
        "beside": [],
        "quarantined": True,
    }
    held = {
        **free,
        "index": 1,
        "job": "j1",
        "vc": "nlp",
        "rank": 0,
        "utilisation": 97.4,
        "borrowed": True,
        "beside": ["j5"],
        "quarantined": False,
    }
    gateway.on("GET /v1/gpus", {"gpus": [free, held]})
    code, out, err = run("gpu", "ls")
    assert code == 0
    assert out.splitlines()[1].split()[-1] == "quarantined"
    assert out.splitlines()[2].split() == [
        "node-1",
        "1",
        "cpu",
        "1GiB",
        "97%",
        "j1+j5",
        "0",
        "nlp",
        "borrowed",
    ]
    assert err == "1 of 2 GPUs held\n"
    assert json.loads(run("gpu", "ls", "--json")[1])["gpus"][1] == held
    gateway.on("GET /v1/gpus", {"gpus": []})
    assert "no node has joined" in run("gpu", "ls")[2]
    assert run("gpu", "ls", "node-1")[0] == 2


def test_quarantine(gateway: FakeGateway, run: Run) -> None:
    route = "POST /v1/admin/quarantine"
    gateway.on(route, {})
    told = "GPU 3 of node-1 counts as bad; what runs there goes on\n"
    assert run("gpu", "quarantine", "node-1", "3")[1] == told
    assert gateway.last(route).json() == {"node": "node-1", "device": 3, "quarantine": True}
    assert "back into use" in run("gpu", "quarantine", "node-1", "3", "--undo")[1]
    assert gateway.last(route).json() == {"node": "node-1", "device": 3, "quarantine": False}
    answer = json.loads(run("gpu", "quarantine", "--json", "node-1", "0")[1])
    assert answer == {"node": "node-1", "device": 0, "quarantine": True}
    for words in ((), ("node-1",), ("node-1", "x")):
        code, _, err = run("gpu", "quarantine", *words)
        assert (code, "which GPU?" in err) == (2, True)
    gateway.refuse(route, 404, "unknown-node", "there is no node x")
    assert run("gpu", "quarantine", "x", "0")[0] == 3


def test_nodes(gateway: FakeGateway, run: Run) -> None:
    node = {
        "node": "node-1",
        "address": "127.0.0.1",
        "state": "up",
        "gpus": 4,
        "free": 2,
        "gpu_type": "cpu",
        "cpus": 2,
        "memory": 2**30,
        "last_heard_at": T0,
        "incarnation": 3,
        "jobs": ["j1", "j2"],
    }
    gateway.on("GET /v1/nodes", {"nodes": [node, {**node, "last_heard_at": None, "jobs": []}]})
    lines = run("node", "ls")[1].splitlines()
    assert lines[1].split()[:3] == ["node-1", "up", "2/4"]
    assert lines[1].endswith("j1 j2")
    assert "never" in lines[2]
    assert json.loads(run("node", "ls", "--json")[1])["nodes"][0] == node
    gateway.on("GET /v1/nodes", {"nodes": []})
    assert "no node has joined" in run("node", "ls")[2]
    assert run("node", "ls", "node-1")[0] == 2
    assert run("node", "drain")[0] == 2
    assert run("node", "burn", "node-1")[0] == 2


def running(**changes: Any) -> dict[str, Any]:
    """Return a job that runs and stores nothing."""
    return whole(state="running", started_at=1, can=[], tier="observed", **changes)


LOST = "is lost: nothing stores it"
NO_REASONS: dict[str, Any] = {"reasons": [], "would_change": []}


def planned(others: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an answer of the planner: a job that starts now."""
    outcome = {
        "start": "now",
        "borrows": False,
        "nodes": 1,
        "place": "node-1:0",
        "why": "best-fit-one-node",
        "text": "",
        "needs": "",
        "ends_at": None,
        "ends_most": None,
        "others": others,
        "others_more": 0,
    }
    named = {"name": "a", "gpus": 1, "vc": "lab", "service_class": "guaranteed"}
    return {**named, "outcome": outcome, "estimate": None}


def test_why_drain_and_plan_say_what_a_stop_loses(
    gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    gateway.on("GET /v1/jobs/j1", running())
    gateway.on("GET /v1/jobs/j1/why", {"job": "j1", "state": "running", **NO_REASONS})
    assert LOST in run("why", "j1")[1]
    assert LOST in json.loads(run("why", "j1", "--json")[1])["if_stopped"]

    gateway.on("POST /v1/admin/drain", {})
    rows = [{"node": "node-1", "jobs": ["j1", "j9"]}, {"node": "node-2", "jobs": ["j2"]}]
    gateway.on("GET /v1/nodes", {"nodes": rows})
    gateway.refuse("GET /v1/jobs/j9", 404, "unknown-job", "there is no job j9")
    out = run("node", "drain", "node-1")[1].splitlines()
    assert out[1] == "if the node is stopped while they run:"
    assert [line.split(":")[0] for line in out[2:]] == ["  j1"]
    assert list(json.loads(run("node", "drain", "node-1", "--json")[1])["if_stopped"]) == ["j1"]

    spec = tmp_path / "job.yaml"
    spec.write_text("{name: a, vc: lab, command: 'true'}")
    stops = {"job": "j1", "what": "stops", "gpus": 1, "rate_milli": None}
    hidden = {**stops, "job": ""}
    gateway.on("POST /v1/plan", planned([stops, hidden]))
    assert LOST in run("plan", str(spec), "--no-check")[1]
    gateway.on("POST /v1/plan", planned([{**stops, "what": "starts"}]))
    assert LOST not in run("plan", str(spec), "--no-check")[1]


def test_drain(gateway: FakeGateway, run: Run) -> None:
    gateway.on("POST /v1/admin/drain", {})
    assert "no further work" in run("node", "drain", "node-1")[1]
    assert gateway.last("POST /v1/admin/drain").json() == {"node": "node-1", "drain": True}
    assert "open for work" in run("node", "undrain", "node-1", "node-2")[1]
    assert gateway.last("POST /v1/admin/drain").json() == {"node": "node-2", "drain": False}
    answer = json.loads(run("node", "drain", "node-1", "--json")[1])
    assert answer == {"nodes": ["node-1"], "drain": True, "if_stopped": {}}
    gateway.refuse("POST /v1/admin/drain", 404, "unknown-node", "there is no node x")
    assert run("node", "drain", "x")[0] == 3
