"""What commands print of arrays: one line each, tasks by name, and what is asked for a retry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from skep_services.cli.main import main
from tests.cli_kit import FakeGateway, ended, fake_gateway, row

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
