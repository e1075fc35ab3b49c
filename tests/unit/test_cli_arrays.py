"""What commands print of arrays: one line each, tasks by name, and what is asked for a retry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from skep_services.cli import render, run_array
from skep_services.cli.client import Client, Target
from skep_services.cli.main import main
from tests.cli_kit import FakeGateway, Told, ended, fake_gateway, row

COUNTS = {
    "total": 100,
    "most": 8,
    "queued": 2,
    "running": 6,
    "succeeded": 12,
    "failed": 0,
    "cancelled": 1,
}
SAID = "100 tasks: 6 running, 2 queued, 12 succeeded, 1 cancelled, 79 to come"


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    with fake_gateway() as made:
        monkeypatch.setenv("SKEP_API", made.url)
        monkeypatch.setenv("SKEP_TOKEN", "secret")
        yield made


def array(**changes: Any) -> dict[str, Any]:
    return row("j7", tasks=COUNTS, why=None, **changes)


def test_ps_has_one_line_for_an_array(
    gateway: FakeGateway, capfd: pytest.CaptureFixture[str]
) -> None:
    gateway.on("GET /v1/jobs", {"jobs": [array()], "total": 1})
    assert main(("ps",)) == 0
    assert SAID in capfd.readouterr().out


@pytest.mark.parametrize(
    "words, asked", [(("--tasks",), ("tasks", "1")), (("--array", "j7"), ("array", "j7"))]
)
def test_ps_opens_arrays(
    gateway: FakeGateway,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    asked: tuple[str, str],
) -> None:
    gateway.on("GET /v1/jobs", {"jobs": [row("j9", task="j7[0]")], "total": 1})
    assert main(("ps", "-q", *words)) == 0
    assert capfd.readouterr().out == "j7[0]\n"
    assert asked in gateway.last("GET /v1/jobs").query.items()


def test_wait_says_how_the_tasks_ended(
    gateway: FakeGateway, capfd: pytest.CaptureFixture[str]
) -> None:
    counts = {**COUNTS, "queued": 0, "running": 0, "succeeded": 99}
    gateway.on("GET /v1/jobs/j7", ended("j7", "cancelled", tasks=counts))
    assert main(("wait", "j7")) == 1
    said = "(100 tasks: 99 succeeded, 1 cancelled)"
    assert capfd.readouterr().out.endswith(f"{said}\n")


def test_retry_exits_with_the_worst_outcome(
    gateway: FakeGateway, capfd: pytest.CaptureFixture[str]
) -> None:
    gateway.on("POST /v1/jobs/j7/retry", {"job": "j7", "accepted": True}, 202)
    text = "array j8 has no task that failed"
    gateway.refuse("POST /v1/jobs/j8/retry", 409, "nothing-failed", text)
    assert main(("retry", "j7", "j8")) == 1
    told = capfd.readouterr()
    assert told.out == "the failed tasks of j7 are begun anew\n"
    assert told.err == "j8: array j8 has no task that failed\n"


def test_a_task_is_cancelled_by_its_name(
    gateway: FakeGateway, capfd: pytest.CaptureFixture[str]
) -> None:
    gateway.on("DELETE /v1/jobs/j7%5B3%5D", {"job": "j7[3]", "accepted": True}, 202)
    assert main(("cancel", "j7[3]")) == 0
    assert capfd.readouterr().out == "j7[3] is being cancelled\n"


def test_ps_says_what_an_array_waits_for(
    gateway: FakeGateway, capfd: pytest.CaptureFixture[str]
) -> None:
    waits = row("j7", tasks=COUNTS, why="waits-for-jobs", needs="j3", state="queued")
    gateway.on("GET /v1/jobs", {"jobs": [waits], "total": 1})
    assert main(("ps",)) == 0
    assert f"waits-for-jobs: j3; {SAID}" in capfd.readouterr().out


def stands(state: str, **counts: int) -> dict[str, Any]:
    """Return the row of an array of four tasks."""
    zero = dict.fromkeys(("queued", "running", "succeeded", "failed", "cancelled"), 0)
    return row("j7", tasks={"total": 4, "most": 2, **zero, **counts}, why=None, state=state)


def test_run_shows_how_the_tasks_stand_and_which_failed(
    gateway: FakeGateway, capfd: pytest.CaptureFixture[str]
) -> None:
    gateway.on("GET /v1/vcs", {"vcs": [{"vc": "nlp"}]})
    gateway.on("POST /v1/jobs", {"job": "j7", "accepted": True, "problems": []}, 202)
    told = [
        stands("running", running=2),
        stands("running", running=2),
        stands("running", running=2, failed=1, succeeded=1),
        ended("j7", "failed", tasks=stands("", failed=1, succeeded=3)["tasks"]),
    ]
    gateway.on("GET /v1/jobs/j7", lambda _: Told(200, told.pop(0)))
    failed = ended("j9", "failed", task="j7[2]")
    gateway.on("GET /v1/jobs", {"jobs": [failed], "total": 1})
    assert main(("run", "--array", "0-3%2", "--name", "s", "--", "true")) == 1
    assert gateway.last("POST /v1/jobs").json()["array"] == "0-3%2"
    assert capfd.readouterr().err.splitlines()[:6] == [
        "j7 s submitted",
        "j7 4 tasks: 2 running, 2 to come",
        "j7 4 tasks: 2 running, 1 succeeded, 1 failed",
        "j7[2] failed (exited-nonzero)",
        "`skep retry j7` begins the failed tasks anew",
        "j7 failed after 10s (4 tasks: 3 succeeded, 1 failed)",
    ]


@pytest.mark.parametrize(
    "words, said",
    [
        (("--array", "", "--", "true"), "`array` is empty: it has no task"),
        (("--array", "3-1", "--", "true"), "`3-1` is reversed: write `1-3`"),
        (("--array", "0-3%0", "--", "true"), "`%0` must be `%` and a number from 1 on"),
        (("--array", "0-3", "--rank", "0", "--", "true"), "--rank chooses the output of one job"),
    ],
)
def test_run_refuses_arrays_that_cannot_be(
    gateway: FakeGateway, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    gateway.on("GET /v1/vcs", {"vcs": [{"vc": "nlp"}]})
    assert main(("run", *words)) == (2 if "--rank" in words else 1)
    assert said in capfd.readouterr().err


def test_a_terminal_is_shown_a_table_in_its_place(
    gateway: FakeGateway, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "is_terminal", lambda _: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    over = ended("j7", "succeeded", tasks=stands("", succeeded=4)["tasks"])
    told = [stands("running", running=2, succeeded=1), over]
    gateway.on("GET /v1/jobs/j7", lambda _: Told(200, told.pop(0)))
    task = row("j8", task="j7[1]", state="running", place="node-1:0")
    gateway.on("GET /v1/jobs", {"jobs": [task], "total": 12})
    client = Client(Target(gateway.url, "secret", ""))
    assert run_array.watched(client, "j7")["state"] == "succeeded"
    first, _, second = capfd.readouterr().err.partition("\x1b[4A\x1b[J")
    lines = first.splitlines()
    assert lines[0] == "j7 4 tasks: 2 running, 1 succeeded, 1 to come"
    assert lines[1].split() == ["TASK", "JOB", "STATE", "SINCE", "WHERE"]
    assert [*lines[2].split()[:3], lines[2].split()[-1]] == ["j7[1]", "j8", "running", "node-1:0"]
    assert lines[3] == "and 11 more: `skep ps --array j7`"
    assert (len(lines), second) == (4, "")
