"""What the page lists and watches: tables with cursors, and the stream of their changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.units import seconds
from skep.wire import codec, subjects
from skep.wire.findings import JobRate, Rates, Stalled
from skep.wire.roles import Role
from skep.wire.spec import SizeHint
from skep_services.gateway import feed, state
from skep_services.gateway import tables as state_tables
from skep_services.gateway.columns import HISTORY, TABLES
from skep_services.gateway.rows import Times
from skep_services.gateway.table_rows import Soft, differs
from tests.gateway_kit import DEADLINE_S, Client, House, error, opened, submitted
from tests.kit import at
from tests.search_kit import tree

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr(feed, "TICK_S", 0.02)
    # The clock of the house stands still: what is looked at by the clock is looked at every time.
    for name in ("SLOW_EVERY", "SOFT_EVERY", "LATELY_EVERY"):
        monkeypatch.setattr(state_tables, name, 0)
    async with opened(tmp_path) as made:
        await made.with_nodes()
        yield made


async def tables(client: Client, wanted: str = "") -> dict[str, dict[str, dict[str, Any]]]:
    """Return the tables by name, each with its rows by key, each by column."""
    told = await client.get(f"/v1/state?tables={wanted}")
    return {
        name: {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}
        for name, table in told["tables"].items()
    }


class Watcher:
    """A client of the stream of changes, and the tables as it knows them."""

    def __init__(self, answer: Any) -> None:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        self._lines: AsyncIterator[bytes] = aiter(answer.content)
        self.tables: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in TABLES}
        self.cursor = ""
        self.resets = 0

    async def event(self) -> None:
        """Take over the next event."""
        kind = ""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                line = (await anext(self._lines)).decode().rstrip("\n")
                name, _, text = line.partition(": ")
                if name == "id":
                    self.cursor = text
                elif name == "event":
                    kind = text
                elif name == "data":
                    break
        data = msgspec.json.decode(text)
        if kind == "reset":
            self.resets += 1
            assert data["cursor"] == self.cursor
            return
        for table, changed in data["tables"].items():
            for row in changed["rows"]:
                self.tables[table][row[0]] = dict(zip(TABLES[table], row, strict=True))
            for key in changed["gone"]:
                self.tables[table].pop(key, None)

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            await self.event()

    def rate_of(self, job: str) -> tuple[int, int, int] | None:
        row = self.tables["jobs"].get(job)
        return (row["rate_milli"], row["steps"], row["progress"]) if row else None

    def state_of(self, job: str) -> str | None:
        row = self.tables["jobs"].get(job)
        return row["state"] if row else None


async def listed(client: Client, wanted: str = "") -> tuple[str, dict[str, Any]]:
    told = await client.get(f"/v1/state?tables={wanted}")
    return told["cursor"], told["tables"]


async def test_a_listing_and_its_changes_tell_a_jobs_life(house: House) -> None:
    cursor, told = await listed(house.op)
    assert list(told) == list(TABLES)
    assert [told[name]["columns"] for name in TABLES] == [list(TABLES[name]) for name in TABLES]
    assert [row[0] for row in told["nodes"]["rows"]] == ["node-1", "node-2"]
    assert len(told["gpus"]["rows"]) == 4
    async with house.op.open(f"/v1/state/changes?since={cursor}") as answer:
        watcher = Watcher(answer)
        job = await submitted(house, labels={"team": "<b>"})
        await watcher.until(lambda: watcher.state_of(job) == "bound")
        row = watcher.tables["jobs"][job]
        assert (row["vc"], row["gpus"], row["labels"]) == ("nlp", 1, {"team": "<b>"})
        assert row["why"]
        assert row["text"]
        node = row["nodes"][0]
        await watcher.until(lambda: watcher.tables["gpus"].get(f"{node}/0") is not None)
        assert watcher.tables["gpus"][f"{node}/0"]["job"] == job
        assert watcher.tables["nodes"][node]["jobs"] == [[job, "nlp"]]
        house.cluster.runs(job)
        await watcher.until(lambda: watcher.state_of(job) == "running")
        await watcher.until(lambda: watcher.tables["vcs"]["nlp"]["used"] == 1)
        house.cluster.exits(job)
        await watcher.until(lambda: watcher.state_of(job) == "succeeded")
        await watcher.until(lambda: watcher.tables["gpus"][f"{node}/0"]["state"] == "free")
        await watcher.until(lambda: watcher.tables["totals"]["all"]["gpus"]["held"] == 0)
    # Who lists now has what the watcher has.
    now = await tables(house.op)
    assert now["jobs"] == watcher.tables["jobs"]
    assert now["gpus"][f"{node}/0"] == watcher.tables["gpus"][f"{node}/0"]


async def test_arrays_count_their_tasks_and_searches_are_listed(house: House) -> None:
    array = await submitted(house, array="0-2%2", over_quota="wait")
    rows = (await tables(house.op, "jobs"))["jobs"]
    assert rows[array]["tasks"] | {"running": 2, "total": 3, "waiting": 1} == rows[array]["tasks"]
    assert rows[array]["text"] == "3 tasks: 2 running, 1 to come"
    first = next(row for row in rows.values() if row["task"] == f"{array}[0]")
    house.cluster.runs(first["job"])
    house.cluster.exits(first["job"])
    await house.caught_up()
    rows = (await tables(house.op, "jobs"))["jobs"]
    # An ended task is only counted: an array of thousands would leave no room for other jobs.
    assert first["job"] not in rows
    assert rows[array]["tasks"]["succeeded"] == 1
    assert sum((await tables(house.op, "totals"))["totals"]["all"]["jobs"].values()) == 2
    async with house.op.open("/v1/state/changes?tables=searches") as answer:
        watcher = Watcher(answer)
        begun = await house.op.json("POST", "/v1/searches", 201, tree(sampler="client"))
        found = watcher.tables["searches"]
        await watcher.until(lambda: begun["search"] in found)
        assert (found[begun["search"]]["vc"], found[begun["search"]]["state"]) == ("nlp", "active")
    assert not (await tables(house.vision, "searches"))["searches"]


async def test_a_reader_resumes_and_one_from_elsewhere_is_reset(house: House) -> None:
    cursor, _ = await listed(house.op, "jobs")
    job = await submitted(house)
    async with house.op.open(
        "/v1/state/changes?tables=jobs&since=no-1", Last_Event_ID=cursor
    ) as answer:
        watcher = Watcher(answer)
        await watcher.until(lambda: watcher.state_of(job) == "bound")
        assert set(watcher.tables) == set(TABLES)
        assert not watcher.tables["gpus"]
        assert not watcher.resets
    for stale in ("feed-1", f"{cursor.split('-')[0]}-999999"):
        async with house.op.open(f"/v1/state/changes?since={stale}") as answer:
            watcher = Watcher(answer)
            await watcher.event()
            assert watcher.resets == 1
            assert watcher.cursor.split("-")[0] == cursor.split("-")[0]
    await house.restart()
    async with house.op.open(f"/v1/state/changes?since={cursor}") as answer:
        watcher = Watcher(answer)
        await watcher.event()
        assert watcher.resets == 1
    after = await tables(house.op, "jobs")
    assert after["jobs"][job]["state"] == "bound"


async def test_callers_see_the_rows_of_their_clusters(house: House) -> None:
    mine = await submitted(house)
    other = await submitted(house, vc="vision", opportunistic=True)
    async with house.vision.open("/v1/state/changes") as answer:
        watcher = Watcher(answer)
        seen = await tables(house.vision)
        assert list(seen["jobs"]) == [other]
        assert list(seen["vcs"]) == ["vision"]
        assert seen["totals"]["all"]["jobs"] == {"bound": 1}
        assert seen["totals"]["all"]["gpus"]["held"] == 2
        held = [gpu for gpu in seen["gpus"].values() if gpu["state"] == "held"]
        assert sorted(str(gpu["job"]) for gpu in held) == sorted(["None", other])
        assert mine not in str(seen)
        third = await submitted(house)
        house.cluster.runs(other)
        await watcher.until(lambda: watcher.state_of(other) == "running")
        assert list(watcher.tables["jobs"]) == [other]
        assert third not in str(watcher.tables)
    viewer = await house.as_person("eva", {"nlp": Role.VIEWER})
    seen = await tables(viewer)
    assert sorted(seen["jobs"]) == sorted([mine, third])
    assert list(seen["vcs"]) == ["nlp"]
    everything = await tables(house.op)
    assert sorted(everything["jobs"]) == sorted([mine, other, third])
    narrowed = await house.op.get("/v1/state?vc=vision&tables=jobs")
    assert [row[0] for row in narrowed["tables"]["jobs"]["rows"]] == [other]
    assert (await viewer.get("/v1/state?vc=vision", 403))["error"]
    assert (await house.nobody.get("/v1/state", 401))["error"]
    stranger = await house.as_person("kim")
    assert (await stranger.get("/v1/state", 403))["error"]


async def test_alerts_come_and_go(house: House) -> None:
    job = await submitted(house)
    house.cluster.runs(job)
    await house.caught_up()
    async with house.op.open("/v1/state/changes?tables=alerts") as answer:
        watcher = Watcher(answer)
        found = watcher.tables["alerts"]
        stalled = Stalled(at=at(20), job=job, attempt=1, since=at(10))
        await house.bus.send(subjects.finding("stalled"), codec.encode(stalled), {})
        await watcher.until(lambda: f"job-stalled/{job}" in found)
        alert = found[f"job-stalled/{job}"]
        assert (alert["severity"], alert["kind"], alert["about"]) == ("warning", "job", job)
        assert (alert["vc"], alert["since"]) == ("nlp", at(10))
        assert alert["todo"].startswith(f"`skep logs {job}`")
        await house.op.json("POST", "/v1/admin/quarantine", 202, {"node": "node-1", "device": 1})
        await house.caught_up()
        await watcher.until(lambda: "gpu-bad/node-1/1" in found)
        over = Stalled(at=at(30), job=job, attempt=1, since=at(10), over=True)
        await house.bus.send(subjects.finding("stalled"), codec.encode(over), {})
        await watcher.until(lambda: f"job-stalled/{job}" not in found)
    # Everyone sees nodes, and only who sees the job is told of it.
    assert "gpu-bad/node-1/1" in (await tables(house.vision, "alerts"))["alerts"]


async def test_a_rate_alone_changes_a_row(house: House) -> None:
    job = await submitted(house, size=SizeHint(mini_batches=1_000))
    house.cluster.runs(job)
    await house.caught_up()
    async with house.op.open("/v1/state/changes?tables=jobs") as answer:
        watcher = Watcher(answer)
        for steps, rate in ((100, 1_000), (200, 1_200)):
            told = Rates(
                at=at(20 + steps), jobs=(JobRate(job=job, attempt=1, steps=steps, rate_milli=rate),)
            )
            await house.bus.send(subjects.finding("rates"), codec.encode(told), {})
            while watcher.rate_of(job) != (rate, steps, steps):
                await watcher.event()


async def test_rates_that_are_alike_are_not_shown_again() -> None:
    def soft(rate: int | None = 1_000, progress: int | None = 100, end: float = 1_000) -> Soft:
        times = Times(int(at(end)), int(at(end)), int(at(end)))
        return Soft(rate, 900, 10, progress, None, times)

    alike = (soft(), soft(1_020), soft(980), soft(progress=120), soft(end=1_019), soft(end=985))
    others = (soft(1_021), soft(979), soft(None), soft(progress=121), soft(end=1_021))
    assert not any(differs(soft(), one, at(0)) for one in alike)
    assert all(differs(soft(), one, at(0)) for one in others)


async def test_what_is_wrong_is_refused(house: House) -> None:
    for path, part in (
        ("/v1/state?tables=job", "jobs"),
        ("/v1/state?tables=jobs,,gpus", "no such table"),
        ("/v1/state?vc=a/b", "`vc` must be a VC's name"),
        ("/v1/state/changes?since=12", "cursor"),
        ("/v1/state/changes?since=-1", "cursor"),
        ("/v1/state/changes?since=x-1-2", "cursor"),
        ("/v1/history?hours=0", "from 1 to 168"),
        ("/v1/history?hours=169", "from 1 to 168"),
        ("/v1/history?hours=-1", "`hours` must be a number"),
    ):
        told = await house.op.get(path, 400)
        assert error(told)[0] == "bad-value"
        assert part in told["error"]["text"], told


async def test_streams_of_a_tenant_are_bounded(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "PAGES_MAX", 1)
    async with house.nlp.open("/v1/state/changes") as answer:
        Watcher(answer)
        told = await house.nlp.get("/v1/state/changes", 429)
        assert "streams of changes" in told["error"]["text"]
    monkeypatch.setattr(state, "READERS_MAX", 0)
    assert (await house.op.get("/v1/state/changes", 503))["error"]["reason"] == "too-many-streams"


async def test_a_listing_is_compressed_once_for_many(house: House) -> None:
    await submitted(house)
    plain = house.op.headers | {"Accept-Encoding": "identity"}
    async with house.session.get(house.base + "/v1/state", headers=plain) as answer:
        assert "Content-Encoding" not in answer.headers
        whole = await answer.json()
    async with house.session.get(house.base + "/v1/state", headers=house.op.headers) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert (await answer.json())["tables"]["jobs"] == whole["tables"]["jobs"]


async def test_the_history_survives_a_restart(house: House) -> None:
    job = await submitted(house)
    house.cluster.runs(job)
    house.cluster.clock.advance(seconds(700.0))
    house.cluster.exits(job, second=650)
    await house.caught_up()
    told = await house.op.get("/v1/history?hours=1")
    assert told["columns"] == list(HISTORY)
    assert told["step_s"] == 300
    rows = [dict(zip(HISTORY, row, strict=True)) for row in told["rows"]]
    assert sum(row["started"] for row in rows) == 1
    assert sum(row["succeeded"] for row in rows) == 1
    assert any(row["held"] > 0.9 and row["training"] > 0.9 for row in rows)
    assert any(row["used"] > 0.9 for row in rows)
    await house.restart()
    again = await house.op.get("/v1/history?hours=1")
    assert again == told
    other = await house.vision.get("/v1/history")
    assert sum(row[HISTORY.index("started")] for row in other["rows"]) == 0
    # Which GPUs are held everybody sees, and what held them only those whose jobs they are.
    assert sum(row[HISTORY.index("held")] for row in other["rows"]) > 0.9
    assert sum(row[HISTORY.index("used")] for row in other["rows"]) == 0
