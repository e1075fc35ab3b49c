"""`skep top`: what stands on its screen, which keys do what, and what is refused."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skep_services.cli import top
from skep_services.cli.client import Target
from skep_services.cli.main import main
from skep_services.cli.top import texts
from skep_services.cli.top.feed import Feed, Seen, Wish
from tests.cli_kit import SECOND, T0, FakeGateway, Told, fake_gateway, row

ROWS = [
    row("j1", name="resnet", owner="ada"),
    row("j2", state="queued", place="", attempt=0, started_at=None, rate_milli=None, steps=0),
    row("j3", name="an-unusually-long-name-of-a-job", vc="a-long-name-of-a-vc"),
]


# --- what stands there ----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_tables_are_as_wide_as_the_terminal_at_most(width: int) -> None:
    nodes = [
        {
            "node": "node-1",
            "state": "up",
            "gpus": 8,
            "free": 2,
            "gpu_type": "h100",
            "cpus": 64,
            "memory": 2**40,
            "last_heard_at": T0,
            "address": "10.0.0.1",
            "jobs": [f"j{number}" for number in range(50)],
        }
    ]
    vcs = [
        {
            "vc": "vision",
            "gpus": 8,
            "used": 4,
            "borrowed": 0,
            "running": 2,
            "queued": 9,
            "suspended": 0,
            "policy": "fifo",
            "cells": [{"chain": "h100", "level": "node", "owned": 1, "bound": 1, "bad": 1}],
        }
    ]
    for view, rows in (("jobs", ROWS), ("nodes", nodes), ("vcs", vcs)):
        made = texts.columns(view, rows, T0 + 60 * SECOND, width)
        assert sum(one.width for one in made) + 2 * (len(made) - 1) <= width, view
        assert all(len(cell) <= one.width for one in made for cell in one.cells)
    head = texts.head(ROWS, 900, "by name", 1.0, "", width)
    assert len(head) == width
    assert head.endswith("live")
    assert texts.head(ROWS, 3, "", 1.0, "the cluster is away", width).endswith("out of date")


def test_tasks_of_an_array_hold_gpus_though_it_has_no_place() -> None:
    tasks = {"total": 10, "running": 2, "most": 2}
    array = {**ROWS[0], "place": "", "ended_at": None, "gpus": 3, "tasks": tasks}
    assert "   6 GPUs held" in texts.head([array], 1, "", 1.0, "", 80)


def test_bars_and_lines() -> None:
    assert texts.bar(1, 4, 8) == "██░░░░░░"
    assert texts.bar(9, 4, 4) == "████"
    assert texts.bar(0, 0, 4) == "░░░░"
    assert texts.line([0, 500, 1000], 10) == "▁▄█"
    assert texts.line(range(100), 5) == "█████"
    assert texts.line([0, 0], 5) == ""


def test_what_is_written_by_others_does_not_steer_the_terminal() -> None:
    hostile = row("j1", name="\x1b[2Jgone")
    assert "\x1b" not in "".join(
        cell for one in texts.columns("jobs", [hostile], T0, 80) for cell in one.cells
    )
    told = {"reasons": [{"text": "\x1b]0;title\x07", "reason": "x", "needs": ""}]}
    assert "\x1b" not in "".join(texts.pane("why", hostile, told, [], 80))


def test_a_filter_looks_at_id_name_vc_and_owner() -> None:
    found = [
        [one["job"] for one in texts.matching(ROWS, text)] for text in ("ADA", "j2", "LONG", "")
    ]
    assert found == [["j1"], ["j2"], ["j3"], ["j1", "j2", "j3"]]


# --- what is fetched ------------------------------------------------------------------------------


class Gateway:
    """A gateway with some jobs, whose event stream says something when `happens` is set."""

    def __init__(self, fake: FakeGateway) -> None:
        self.fake = fake
        self.happens = threading.Event()
        self.rows = list(ROWS)
        fake.on("GET /v1/jobs", lambda _: Told(value={"jobs": self.rows, "total": len(self.rows)}))
        fake.on("GET /v1/events", lambda _: Told(pieces=self._events()))
        fake.on("GET /v1/jobs/j1/why", {"job": "j1", "reasons": [], "would_change": []})
        fake.on("GET /v1/jobs/j1/logs", lambda asked: Told(pieces=[b"more\n"]))

    def _events(self) -> Iterator[bytes]:
        yield b": events follow\n\n"
        while self.happens.wait(30):
            self.happens.clear()
            yield b'id: 7\ndata: {"seq": 7}\n\n'

    def count(self, route: str) -> int:
        return sum(f"{one.method} {one.path}" == route for one in self.fake.asked)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with fake_gateway() as made:
        yield Gateway(made)


class Screen:
    """Takes what a feed shows."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.shown = threading.Condition()

    def __call__(self, seen: Seen) -> None:
        with self.shown:
            self.seen = seen
            self.shown.notify_all()

    def until(self, reached: Callable[[Seen], bool]) -> Seen:
        with self.shown:
            assert self.shown.wait_for(lambda: reached(self.seen), 30), self.seen
            return self.seen


def test_only_what_is_shown_is_asked_for_and_only_when_something_happens(gateway: Gateway) -> None:
    feed, screen = Feed(Target(gateway.fake.url, "secret", ""), "nlp"), Screen()
    feed.start(screen)
    screen.until(lambda seen: len(seen.jobs) == 3)
    assert gateway.fake.last("GET /v1/jobs").query == {
        "state": "active",
        "vc": "nlp",
        "order": "queue",
        "limit": "500",
    }
    gateway.rows = ROWS[:1]
    gateway.happens.set()
    screen.until(lambda seen: len(seen.jobs) == 1)
    feed.want(Wish(job="j1", pane="output"))
    screen.until(lambda seen: "more" in seen.output)
    feed.close()
    assert gateway.count("GET /v1/jobs/j1/why") == gateway.count("GET /v1/nodes") == 0
    assert list(feed.rates["j1"])[:1] == [12_345]
    asked = [one.query for one in gateway.fake.asked if one.path.endswith("/logs")]
    assert asked[0] == {"rank": "0", "attempt": "1", "tail": "200"}
    assert all(one["offset"] for one in asked[1:])


def test_a_gateway_that_is_away_makes_the_screen_out_of_date(gateway: Gateway) -> None:
    feed, screen = Feed(Target(gateway.fake.url, "secret", ""), None), Screen()
    gateway.fake.refuse("GET /v1/jobs", 503, "bus-away", "the bus is away")
    feed.start(screen)
    assert "the bus is away" in screen.until(lambda seen: bool(seen.error)).error
    gateway.fake.on("GET /v1/jobs", {"jobs": ROWS, "total": 3})
    gateway.happens.set()
    screen.until(lambda seen: not seen.error and len(seen.jobs) == 3)
    feed.close()


# --- keys -----------------------------------------------------------------------------------------


class Still(Feed):
    """A feed that fetches nothing: it shows what it is given."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(Target("http://127.0.0.1:1", "", ""), None)
        self.given = seen
        self.rates = {"j1": deque([1, 2, 3])}
        self._show: Callable[[Seen], None] = lambda _: None

    def start(self, show: Callable[[Seen], None]) -> None:
        self._show = show
        show(self.given)

    def want(self, wish: Wish) -> None:
        self.wish = wish
        self._show(self.given._replace(wish=wish))


@pytest.mark.needs("textual")
@pytest.mark.asyncio
async def test_keys_choose_what_is_shown() -> None:
    from textual.widgets import DataTable, Static

    from skep_services.cli.top.app import Top

    node = {"node": "node-1", "state": "up", "gpus": 2, "free": 1, "gpu_type": "cpu", "jobs": []}
    node |= {"cpus": 2, "memory": 1, "last_heard_at": None, "address": ""}
    why = {"reasons": [{"text": "not enough", "reason": "waits-for-gpus"}], "would_change": ["x"]}
    feed = Still(Seen(jobs=ROWS, total=3, things=[node], about=why, output="hello\n", at=1.0))
    app = Top(feed)

    def text(name: str) -> str:
        return str(app.query_one(name, Static).render())

    def first(table: Any) -> list[str]:
        return [str(table.get_row_at(number)[0]) for number in range(table.row_count)]

    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        table = app.query_one("#list", DataTable)
        assert first(table) == ["j1", "j2", "j3"]
        assert "because not enough (waits-for-gpus)" in text("#about")
        assert text("#keys").rstrip().endswith("q quit")
        await pilot.press("j")
        assert feed.wish.job == "j2"
        await pilot.press("l")
        assert (feed.wish.pane, text("#about")) == ("output", "hello")
        await pilot.press("2")
        await pilot.pause()
        assert (feed.wish.view, first(table)) == ("nodes", ["node-1"])
        await pilot.press("1", "slash", *"ada", "enter")
        await pilot.pause()
        assert first(table) == ["j1"]
        await pilot.press("escape", "s", "s", "r", "a", "p")
        await pilot.pause()
        assert first(table) == ["j1", "j2", "j3"]
        assert feed.wish == Wish(job="j1", pane="", order="-name", ended=True)
        await pilot.resize_terminal(120, 40)
        assert text("#head").endswith("live")
        await pilot.press("q")
    assert app.return_value is None


# --- what is refused ------------------------------------------------------------------------------


def test_top_says_what_it_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["top", "--json"]) == 2
    assert "`skep ps --json`" in capsys.readouterr().err
    assert main(["top"]) == 2
    assert (
        capsys.readouterr().err
        == "skep top: skep top needs a terminal: `skep ps -w` prints what changes\n"
    )
    monkeypatch.setattr("skep_services.cli.render.is_terminal", lambda _: True)
    monkeypatch.setenv("TERM", "dumb")
    assert main(["top"]) == 2
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    capsys.readouterr()
    assert main(["top"]) == 1
    assert capsys.readouterr().err == f"skep top: {top.MISSING}\n"
