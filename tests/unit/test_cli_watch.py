"""`skep ps -w`: what is shown when something happens, on a terminal and elsewhere."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from skep_services.cli import watch
from skep_services.cli.client import Client, Target
from skep_services.cli.job_table import job_columns
from skep_services.cli.news import News
from tests.cli_kit import FakeGateway, Told, ended, fake_gateway, row

LISTS = [
    [],
    [row("j1"), row("j2", state="queued", place="")],
    [row("j1", rate_milli=1, steps=130), row("j2", state="queued", place="")],
    [row("j1"), row("j2")],
    [row("j2")],
]


class Over(Exception):  # noqa: N818 - it ends a test
    """Nothing more happens."""


class Beats:
    """Says that something happened, so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def wait(self, timeout_s: float) -> bool:
        del timeout_s
        if not self.left:
            raise Over
        self.left -= 1
        return True


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    monkeypatch.setattr(watch, "ASK_EVERY_S", 0.0)
    with fake_gateway() as made:
        lists = list(LISTS)

        def listed(_: Any) -> Told:
            rows = lists.pop(0)
            return Told(value={"jobs": rows, "total": len(rows)})

        made.on("GET /v1/jobs", listed)
        made.on("GET /v1/jobs/j1", ended("j1"))
        yield made


def show(gateway: FakeGateway, times: int, told: Any = None) -> None:
    client, news = Client(Target(gateway.url, "", "")), Beats(times)
    with pytest.raises(Over):
        watch.watch(client, news, "/v1/jobs", job_columns, told)  # type: ignore[arg-type]


def test_a_row_is_told_when_its_job_changes_and_once_more_when_it_has_ended(
    gateway: FakeGateway,
) -> None:
    told: list[list[tuple[str, str]]] = []
    show(
        gateway, len(LISTS), lambda rows: told.append([(one["job"], one["state"]) for one in rows])
    )
    assert told == [
        [("j1", "running"), ("j2", "queued")],
        [("j2", "running")],
        [("j1", "succeeded")],
    ]


def test_the_title_is_printed_once(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    show(gateway, len(LISTS))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["JOB", "j1", "j2", "j2", "j1"]


def test_a_terminal_has_the_table_and_gets_its_own_screen_back(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    show(gateway, len(LISTS) - 1)
    frames = screen.getvalue().split(watch.HOME)
    assert frames[0] == watch.NEW_SCREEN
    assert len(frames) == len(LISTS) + 1
    assert "no jobs" in frames[1]
    assert "1 running, 1 queued" in frames[2]
    assert frames[-1].endswith(watch.OLD_SCREEN)


def wait_for_the_end(news: News) -> None:
    while news.wait(30):
        pass


def test_news_go_on_after_a_lost_connection_and_say_what_stopped_them() -> None:
    with fake_gateway() as made:
        answers = [
            Told(pieces=[b'id: 4\ndata: {"seq": 4}\n\n'], cut=True),
            Told(pieces=[b'id: 5\ndata: {"seq": 5}\n\n'], cut=True),
            Told(403, {"error": {"reason": "role-too-low", "text": "no"}}),
        ]
        made.on("GET /v1/events", lambda _: answers.pop(0))
        news = News(Target(made.url, "", ""), since=3, vc="nlp")
        with pytest.raises(Exception, match="no"):
            wait_for_the_end(news)
        assert [event["seq"] for event in news.take()] == [4, 5]
        asked = [one.query for one in made.asked]
        assert asked[0] == {"follow": "1", "since": "3", "vc": "nlp"}
        assert [one["since"] for one in asked] == ["3", "4", "5"]
