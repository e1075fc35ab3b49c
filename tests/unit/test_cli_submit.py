"""`skep submit` and `skep run`."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skep_services.cli import run as run_module
from skep_services.cli import specs, submit
from skep_services.cli.client import Client, Target
from skep_services.cli.exits import CommandError
from skep_services.cli.main import main, parser_of
from tests.cli_kit import Asked, FakeGateway, Told, ended, fake_gateway, row

Run = Callable[..., tuple[int, str, str]]
DEADLINE_S = 120.0

ONE = "name: one\nvc: nlp\ncommand: [echo, hi]\nenv: {A: b}\n"


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        for name in ("SKEP_VC", "TRACEPARENT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.chdir(tmp_path)
        made.on("GET /v1/vcs", {"vcs": [{"vc": "nlp"}]})
        numbers = iter(range(1, 100))
        made.on(
            "POST /v1/jobs", lambda _: Told(201, {"job": f"j{next(numbers)}", "accepted": True})
        )
        yield made


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def posted(gateway: FakeGateway) -> list[Asked]:
    return [asked for asked in gateway.asked if asked.method == "POST"]


# --- submit ---------------------------------------------------------------------------------------


def test_submit_sends_every_document_with_a_key_of_its_own(
    gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(f"{ONE}---\nname: two\nscript: train.py\nworkdir: sub\n")
    code, out, _ = run("submit", str(path))
    assert (code, out) == (0, "j1 one submitted\nj2 two submitted\n")
    first, second = posted(gateway)
    assert first.json() == {
        "name": "one",
        "vc": "nlp",
        "command": ["echo", "hi"],
        "env": {"A": "b"},
        "workdir": str(tmp_path),
    }
    assert second.json()["workdir"] == str(tmp_path / "sub")
    # A file that names no virtual cluster means the only one there is.
    assert second.json()["vc"] == "nlp"
    keys = [asked.headers["idempotency-key"] for asked in (first, second)]
    assert len(set(keys)) == 2
    assert "traceparent" not in first.headers


def test_submit_applies_the_command_line(
    gateway: FakeGateway, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(f"{ONE}---\n{ONE}")
    monkeypatch.setenv("TRACEPARENT", "00-1-2-01")
    code, out, _ = run(
        "submit",
        str(path),
        "-q",
        "--name",
        "x",
        "--vc",
        "other",
        "--key",
        "k",
        "--set",
        "resources.gpus=2",
        "--set",
        "env.A=1",
    )
    assert (code, out) == (0, "j1\nj2\n")
    first, second = posted(gateway)
    tree = first.json()
    assert (tree["name"], tree["vc"], tree["resources"]) == ("x", "other", {"gpus": 2})
    assert tree["env"] == {"A": "1"}
    assert first.headers["traceparent"] == "00-1-2-01"
    assert [one.headers["idempotency-key"] for one in (first, second)] == ["k", "k-1"]
    answer = json.loads(run("submit", "--json", str(path))[1])
    assert [one["accepted"] for one in answer["jobs"]] == [True, True]


def test_nothing_is_sent_when_one_spec_is_wrong(
    gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(f"{ONE}---\nname: two\ncomand: x\nenv:\n  A: 1\nresources:\n  gpus: 99\n")
    code, out, err = run("submit", str(path))
    assert (code, out) == (1, "")
    assert f"{path}:7: $.comand: unknown key `comand` (unknown-key): did you mean `command`?" in err
    assert f"{path}:9: $.env.A: " in err
    assert posted(gateway) == []
    code, out, _ = run("submit", str(path), "--json")
    paths = [one["path"] for one in json.loads(out)["error"]["problems"]]
    assert "$.comand" in paths
    path.write_text("- not a spec\n")
    assert "$: a spec is an object with keys" in run("submit", str(path))[2]
    path.write_text(f"{ONE}labels: {{x: {'y' * 70_000}}}\n")
    assert "at most 65536 are accepted" in run("submit", str(path))[2]
    assert posted(gateway) == []


def test_yaml_that_made_text_a_number_is_explained() -> None:
    told = submit._suggestion("$.env.A", "Expected `str`, got `int`")
    assert told == "put the value into quotes"
    assert submit._suggestion("$.resources.gpus", "Expected `int`, got `str`") == ""


def test_cluster_has_the_last_word(gateway: FakeGateway, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(f"{ONE}resources:\n  gpus: 9\n")
    problem = {"path": "$.resources.gpus", "reason": "too-many-gpus", "text": "there are 8 GPUs"}
    gateway.refuse("POST /v1/jobs", 422, "too-many-gpus", "refused", problems=[problem], job="j7")
    code, out, err = run("submit", str(path))
    assert (code, out) == (1, "")
    assert f"refused: {path}:6: $.resources.gpus: there are 8 GPUs (too-many-gpus)\n" in err
    code, out, _ = run("submit", str(path), "--json")
    assert json.loads(out)["jobs"][0]["reason"] == "too-many-gpus"
    gateway.refuse("POST /v1/jobs", 403, "wrong-vc", "not your VC")
    assert f"refused: {path}: not your VC" in run("submit", str(path))[2]


def test_unknown_job_in_a_refusal_is_told(gateway: FakeGateway, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(ONE)
    answer = {"error": {"reason": "unknown-vc", "text": "no such VC"}, "job": "j7"}
    gateway.on("POST /v1/jobs", answer, 422)
    assert "(it is known as j7)" in run("submit", str(path))[2]


def test_unchecked_specs_are_left_to_the_cluster(
    gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text("name: x\nvc: nlp\nfuture: 2030-01-01\n---\n- a list\n")
    assert run("submit", "--no-check", str(path))[0] == 0
    assert posted(gateway)[0].json()["future"] == "2030-01-01"
    assert posted(gateway)[1].json() == ["a list"]


def test_submission_without_a_verdict_is_stored(
    gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(ONE)
    gateway.on("POST /v1/jobs", {"job": "j1", "accepted": None}, 202)
    code, out, _ = run("submit", str(path))
    assert code == 0
    assert "j1 one is stored; admission has not judged it yet" in out


def test_bus_that_is_away_leaves_a_key_to_repeat_with(
    gateway: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(ONE)
    gateway.refuse("POST /v1/jobs", 503, "bus", "the bus does not answer")
    code, _, err = run("submit", str(path), "--key", "mine")
    assert code == 4
    assert "repeat with --key mine" in err
    assert run("submit", str(path), "--key", "a\nb")[0] == 2


def test_virtual_cluster_of_a_spec_that_names_none(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(Target(gateway.url, "", ""))
    assert submit.default_vc(client) == "nlp"
    gateway.on("GET /v1/vcs", {"vcs": [{"vc": "a"}, {"vc": "default"}]})
    assert submit.default_vc(client) == "default"
    gateway.on("GET /v1/vcs", {"vcs": [{"vc": "a"}, {"vc": "b"}]})
    with pytest.raises(CommandError, match=r"which virtual cluster.*there are: a, b"):
        submit.default_vc(client)
    gateway.on("GET /v1/vcs", {"vcs": []})
    with pytest.raises(CommandError, match="there is none"):
        submit.default_vc(client)
    monkeypatch.setenv("SKEP_VC", "b")
    assert submit.default_vc(client) == "b"


# --- run ------------------------------------------------------------------------------------------


def arguments(*words: str) -> Namespace:
    return parser_of("run", run_module.COMMANDS["run"]).parse_args(list(words))


def test_spec_of_a_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN", "t")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    plain = run_module.spec_of(arguments("--", "python", "train.py", "--lr", "3"))
    assert plain == {
        "name": "python",
        "resources": {"gpus": 1, "workers": 1},
        "workdir": str(tmp_path),
        "command": ["python", "train.py", "--lr", "3"],
    }
    full = run_module.spec_of(
        arguments(
            "--gpus",
            "2",
            "--workers",
            "3",
            "--gpu-type",
            "h200",
            "--name",
            "n",
            "--vc",
            "v",
            "--time",
            "2h",
            "--retries",
            "1",
            "--priority",
            "5",
            "--opportunistic",
            "--env",
            "A=b=c",
            "--env",
            "TOKEN",
            "--python",
            "/opt/env/bin/python",
            "--no-distributed",
            "dir/train.py",
            "-x",
        )
    )
    assert full == {
        "name": "n",
        "vc": "v",
        "resources": {"gpus": 2, "workers": 3, "gpu_type": "h200"},
        "workdir": str(tmp_path),
        "script": "dir/train.py",
        "args": ["-x"],
        "limits": {"time": "2h", "retries": 1},
        "priority": 5,
        "service_class": "opportunistic",
        "env": {"A": "b=c", "TOKEN": "t"},
        "python": "/opt/env/bin/python",
        "distributed": False,
    }
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    inside = run_module.spec_of(arguments("--image", "a:1", "--pull", "train.py"))
    assert inside["runtime"] == {"image": "a:1", "pull": "missing"}
    assert "python" not in inside, "the environment of this shell is not in the image"
    for words in ([], ["--"], ["--env", "NOT_SET_HERE", "true"], ["--pull", "true"]):
        with pytest.raises(CommandError) as caught:
            run_module.spec_of(arguments(*words))
        assert caught.value.code == 2


@pytest.mark.parametrize("rank", ["9", "x", "1", "-1", "9" * 5000])
def test_a_rank_that_is_none_is_refused_before_the_job_is_submitted(
    gateway: FakeGateway, run: Run, rank: str
) -> None:
    code, out, err = run("run", f"--rank={rank}", "--vc", "nlp", "--", "true")
    assert (code, out) == (2, "")
    assert "--rank" in err
    assert not gateway.asked


def test_run_prints_the_output_and_exits_as_the_job_did(gateway: FakeGateway, run: Run) -> None:
    waits: dict[str, Any] = {
        "state": "queued",
        "started_at": None,
        "attempt": 0,
        "why": "waits-for-gpus",
    }
    states = iter([row(**waits), row(**waits), row(), row()])
    gateway.on("GET /v1/jobs/j1", lambda _: Told(200, next(states, ended())))
    gateway.on("GET /v1/jobs/j1/logs", lambda _: Told(pieces=[b"step 1\n", b"step 2\n"]))
    code, out, err = run("run", "--", "python", "train.py")
    assert (code, out) == (0, "step 1\nstep 2\n")
    assert err.splitlines() == [
        "j1 python submitted",
        "j1 is queued (waits-for-gpus)",
        "j1 succeeded after 10s",
    ]
    gateway.on("GET /v1/jobs/j2", ended("j2", "failed", detail="exit status 3"))
    gateway.on("GET /v1/jobs/j2/logs", lambda _: Told(pieces=[b"x"]))
    code, out, _ = run("run", "--json", "--", "false")
    assert code == 1
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0] == {"rank": 0, "text": "x"}
    assert lines[1]["state"] == "failed"


def test_run_that_is_refused_or_detached(gateway: FakeGateway, run: Run) -> None:
    assert run("run", "-d", "--", "true")[:2] == (0, "j1\n")
    assert json.loads(run("run", "-d", "--json", "--vc", "nlp", "true")[1])["job"] == "j2"
    assert run("run", "--gpus", "99", "--", "true")[0] == 1
    assert len(posted(gateway)) == 2
    gateway.refuse("POST /v1/jobs", 422, "too-many-gpus", "there are 8 GPUs")
    code, _, err = run("run", "--", "true")
    assert code == 1
    assert "refused: the command line: there are 8 GPUs" in err


@pytest.fixture
def job_that_runs(gateway: FakeGateway) -> Iterator[threading.Event]:
    """A job whose log goes on until it is cancelled; the event is set once the log is read."""
    followed, cancelled = threading.Event(), threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b"begun\n"
        followed.set()
        cancelled.wait(DEADLINE_S)

    def cancel(asked: Asked) -> Told:
        cancelled.set()
        return Told(202, {"job": "j1", "accepted": True})

    gateway.on("GET /v1/jobs/j1/logs", lambda _: Told(pieces=pieces()))
    gateway.on("DELETE /v1/jobs/j1", cancel)
    gateway.on(
        "GET /v1/jobs/j1",
        lambda _: Told(200, ended(state="cancelled") if cancelled.is_set() else row()),
    )
    yield followed
    cancelled.set()


def signal_once(event: threading.Event, number: signal.Signals) -> threading.Thread:
    """Send this process a signal once the event is set."""

    def send() -> None:
        assert event.wait(DEADLINE_S)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_is_cancelled(
    gateway: FakeGateway, run: Run, job_that_runs: threading.Event, number: signal.Signals
) -> None:
    thread = signal_once(job_that_runs, number)
    kept = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        code, out, err = run("run", "--", "sleep", "100")
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)
        thread.join()
    assert code == 130
    # The interrupt may come before what was read is printed.
    assert out in {"", "begun\n"}
    assert "cancelling j1 ..." in err
    assert "j1 cancelled after 10s" in err


class Person(io.StringIO):
    """Standard input and error of somebody at a terminal."""

    def isatty(self) -> bool:
        return True


class Impatient(Person):
    """Presses Ctrl-C again instead of answering."""

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        raise KeyboardInterrupt


@pytest.mark.parametrize("answer, cancelled", [("n\n", False), ("\n", True), ("y\n", True)])
def test_person_is_asked_whether_to_cancel(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, answer: str, cancelled: bool
) -> None:
    gateway.on("DELETE /v1/jobs/j1", {}, 202)
    gateway.on("GET /v1/jobs/j1", row())
    heard = Person()
    monkeypatch.setattr(sys, "stdin", Person(answer))
    monkeypatch.setattr(sys, "stderr", heard)
    client = Client(Target(gateway.url, "", ""))
    assert run_module.interrupted(client, "j1", ask=True) == 130
    assert "cancel j1? [Y/n]" in heard.getvalue()
    assert ("j1 goes on: skep logs -f j1" in heard.getvalue()) is not cancelled
    assert ("j1 is being stopped" in heard.getvalue()) is cancelled
    assert any(asked.method == "DELETE" for asked in gateway.asked) is cancelled


def test_second_interrupt_cancels_and_a_refusal_is_told(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.refuse("DELETE /v1/jobs/j1", 409, "already-ended", "j1 has ended")
    heard = Person()
    monkeypatch.setattr(sys, "stdin", Impatient())
    monkeypatch.setattr(sys, "stderr", heard)
    client = Client(Target(gateway.url, "", ""))
    assert run_module.interrupted(client, "j1", ask=True) == 130
    assert "j1: j1 has ended" in heard.getvalue()

    def again(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "ask_cancel", again)
    assert run_module.interrupted(client, "j1", ask=False) == 130
    assert "not waiting for the end of j1" in heard.getvalue()


def test_documents_of_the_command_line_have_no_lines() -> None:
    assert specs.Document("the command line", {}, {}).where("$.name") == "the command line"
