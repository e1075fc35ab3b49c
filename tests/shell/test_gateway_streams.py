"""What the gateway streams: events and logs, over a real server and a memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.units import seconds
from skep.wire import codec, subjects
from skep.wire.findings import RateLearned
from skep.wire.node import Outcome
from skep_services.gateway import hub, logs, streams
from skep_services.ports import Delivery
from tests.gateway_kit import DEADLINE_S, House, error, opened, submitted
from tests.kit import at

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        yield made


# --- events ---------------------------------------------------------------------------------------


class Reader:
    """A client of an event stream."""

    def __init__(self, answer: Any) -> None:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        self._answer = answer
        self._lines: AsyncIterator[bytes] = aiter(answer.content)

    async def line(self) -> str:
        async with asyncio.timeout(DEADLINE_S):
            return (await anext(self._lines)).decode().rstrip("\n")

    async def event(self) -> tuple[str, dict[str, Any]]:
        """Return the next event: its id and what it says. Comments are skipped."""
        while not (line := await self.line()).startswith("id: "):
            pass
        data = await self.line()
        assert data.startswith("data: ")
        return line[4:], msgspec.json.decode(data[6:])

    async def kinds(self, count: int) -> list[str]:
        return [(await self.event())[1]["kind"] for _ in range(count)]

    async def comment(self) -> str:
        while not (line := await self.line()).startswith(": "):
            pass
        return line


async def test_events_arrive_as_they_happen(house: House) -> None:
    await house.with_nodes()
    async with house.op.open("/v1/events?follow=1") as answer:
        reader = Reader(answer)
        assert await reader.comment() == ": events follow"
        await submitted(house)
        assert await reader.kinds(3) == ["admitted", "job-queued", "job-bound"]
        found = RateLearned(at=at(0), job="j1", attempt=1, rate_milli=500)
        await house.bus.send(subjects.finding("learned"), codec.encode(found), {})
        number, event = await reader.event()
        assert (event["kind"], event["job"], event["vc"]) == ("rate-learned", "j1", "nlp")
        assert event["seq"] == int(number) == house.gateway.hub.newest


async def test_a_reader_resumes_where_it_was(house: House) -> None:
    await house.with_nodes()
    await submitted(house)
    every = (await house.op.get("/v1/events?since=0"))["events"]
    last = str(every[-2]["seq"])
    async with house.op.open("/v1/events?follow=1&since=1", Last_Event_ID=last) as answer:
        assert (await Reader(answer).event())[1] == every[-1]
    async with house.op.open("/v1/events?follow=1&since=0") as answer:
        kinds = [event["kind"] for event in every]
        assert await Reader(answer).kinds(len(every)) == kinds
    assert (await house.op.get(f"/v1/events?since={last}"))["events"] == every[-1:]
    assert (await house.op.get("/v1/events?limit=1"))["events"] == every[-1:]
    # The ring is empty after a restart, the store is not.
    await house.restart()
    async with house.op.open("/v1/events?follow=1&since=0&job=j1") as answer:
        reader = Reader(answer)
        assert await reader.kinds(3) == ["admitted", "job-queued", "job-bound"]
        await submitted(house)
        house.cluster.runs("j1")
        # What agents and the allocator say comes in either order.
        assert sorted(await reader.kinds(3)) == ["job-ran", "member-ran", "member-stepped"]


async def test_a_tenant_reads_only_its_own_events(house: House) -> None:
    await house.with_nodes()
    async with house.vision.open("/v1/events?follow=1&since=0") as answer:
        reader = Reader(answer)
        await submitted(house)
        job = await submitted(house, vc="vision", opportunistic=True)
        _, event = await reader.event()
        assert (event["job"], event["kind"]) == (job, "admitted")


async def test_numbers_of_a_file_that_is_gone_mean_nothing(house: House) -> None:
    await house.with_nodes()
    async with house.op.open("/v1/events?follow=1&since=999") as answer:
        reader = Reader(answer)
        assert await reader.comment() == ": events follow"
        assert await reader.comment() == ": the numbering began anew"
        await submitted(house)
        assert await reader.kinds(1) == ["admitted"]


async def test_a_reader_that_is_too_slow_is_cut(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.with_nodes()
    go_on = asyncio.Event()
    wait = hub.Hub.wait

    async def slow(self: hub.Hub, seq: int, timeout_s: float) -> bool:
        found = await wait(self, seq, timeout_s)
        await go_on.wait()
        return found

    monkeypatch.setattr(hub.Hub, "wait", slow)
    async with house.op.open("/v1/events?follow=1") as answer:
        reader = Reader(answer)
        assert await reader.comment() == ": events follow"
        # As if ten thousand events had passed meanwhile.
        house.gateway.hub.show([(house.gateway.hub.newest + 20_000, "", "", b"{}")])
        go_on.set()
        assert await reader.comment() == ": too slow; go on with Last-Event-ID"
        assert await answer.content.read() == b"\n"
    assert house.gateway.hub.cut == 1


async def test_a_silent_stream_says_that_it_lives_and_there_may_be_so_many(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ALIVE_EVERY_S", 0.01)
    monkeypatch.setattr(streams, "READERS_MAX", 1)
    async with house.op.open("/v1/events?follow=1") as answer:
        reader = Reader(answer)
        await reader.comment()
        assert await reader.comment() == ": alive"
        refused = await house.op.get("/v1/events?follow=1", 503)
        assert error(refused)[0] == "too-many-streams"


async def test_one_tenant_does_not_have_all_event_streams(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STREAMS_MAX", 1)
    async with house.vision.open("/v1/events?follow=1") as answer:
        await Reader(answer).comment()
        refused = await house.vision.get("/v1/events?follow=1", 429)
        assert error(refused)[0] == "too-many-streams"
        assert (await house.op.get("/v1/limits"))["near"]
        assert (await house.nlp.get("/v1/limits"))["near"] == []
        async with house.nlp.open("/v1/events?follow=1") as other:
            await Reader(other).comment()


async def test_a_client_that_takes_nothing_is_cut(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STALL_S", 0.02)
    monkeypatch.setattr(streams, "ALIVE_EVERY_S", 0.01)

    async def stuck(*_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async with house.op.open("/v1/events?follow=1") as answer:
        await Reader(answer).comment()
        monkeypatch.setattr("aiohttp.web.StreamResponse.write", stuck)
        with pytest.raises(Exception, match=r"payload|Connection|closed"):
            await answer.content.read()


# --- logs -----------------------------------------------------------------------------------------


class Output:
    """An agent's answers about one rank's output, by attempt."""

    def __init__(self, house: House, node: str = "node-1") -> None:
        self.house, self.node = house, node
        self.files: dict[tuple[int, int], bytes] = {}
        self.live: set[int] = set()
        self.asked: list[dict[str, Any]] = []
        self.more = asyncio.Event()
        self.begins: int | None = 0
        """Where what was written lately begins; None: the agent is too old to know."""

    async def open(self) -> None:
        await self.house.cluster.bus.listen(subjects.logs(self.node), self._answer)

    async def _answer(self, asked: Delivery) -> None:
        wanted = msgspec.json.decode(asked.payload)
        self.asked.append(wanted)
        self.more.set()
        data = self.files.get((wanted["attempt"], wanted["rank"]))
        size = -1 if data is None else len(data)
        piece = (data or b"")[wanted["offset"] :][: wanted["limit"]]
        ended = "0" if wanted["attempt"] in self.live else "1"
        headers = {"Skep-Size": str(size), "Skep-Ended": ended}
        if self.begins is not None and wanted.get("ago_s") is not None:
            headers["Skep-Begin"] = str(self.begins)
        await self.house.cluster.bus.send(asked.reply, piece, headers)

    async def until_asked(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.asked) < count:
                self.more.clear()
                await self.more.wait()


async def text_of(house: House, path: str) -> str:
    async with house.op.open(path) as answer:
        assert answer.status == 200, await answer.text()
        return str(await answer.text())


@pytest_asyncio.fixture
async def output(house: House, monkeypatch: pytest.MonkeyPatch) -> Output:
    monkeypatch.setattr(logs, "FOLLOW_EVERY_S", 0.01)
    monkeypatch.setattr(logs, "NEWS_EVERY_S", 0.05)
    monkeypatch.setattr(logs, "PIECE_TIMEOUT_S", 0.1)
    made = Output(house)
    await made.open()
    return made


async def test_output_is_fetched_piece_by_piece(house: House, output: Output) -> None:
    await house.with_nodes(nodes=1)
    job = await submitted(house, workers=2)
    house.cluster.runs(job)
    await house.caught_up()
    output.live = {1}
    output.files = {(1, 0): b"x" * 600_000, (1, 1): "zwölf".encode()}
    assert len(await text_of(house, f"/v1/jobs/{job}/logs")) == 600_000
    assert {asked["limit"] for asked in output.asked} == {262_144}
    assert await text_of(house, f"/v1/jobs/{job}/logs?rank=1&attempt=1") == "zwölf"
    assert await text_of(house, f"/v1/jobs/{job}/logs?rank=1&offset=4") == "lf"
    assert await text_of(house, f"/v1/jobs/{job}/logs?rank=1&offset=100") == ""
    assert error(await house.op.get(f"/v1/jobs/{job}/logs?rank=2", 404))[0] == "no-rank"
    assert error(await house.op.get(f"/v1/jobs/{job}/logs?attempt=7", 404))[0] == "no-attempt"
    async with house.op.open(f"/v1/jobs/{job}/logs") as answer:
        assert answer.headers["Skep-Attempt"] == "1"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_last_lines_and_what_was_written_lately(house: House, output: Output) -> None:
    await house.with_nodes(nodes=1)
    job = await submitted(house)
    house.cluster.runs(job)
    await house.caught_up()
    lines = [b"%d %s\n" % (number, b"x" * 1000) for number in range(900)]
    whole = b"".join(lines)
    output.files[1, 0] = whole + b"no end"
    path = f"/v1/jobs/{job}/logs"

    async def get(query: str) -> str:
        return await text_of(house, f"{path}?{query}")

    assert await get("tail=1") == "no end"
    assert await get("tail=3") == (lines[-2] + lines[-1] + b"no end").decode()
    # Some 700 lines are in three pieces of an agent's.
    assert (await get("tail=700")).startswith("201 x")
    assert len(await get("tail=5000")) == len(whole) + 6
    assert await get("tail=0") == ""
    output.files[1, 0] = whole
    assert await get("tail=2") == (lines[-2] + lines[-1]).decode()
    output.begins = len(whole) - len(lines[-1])
    assert await get("since_s=60") == lines[-1].decode()
    assert await get("since_s=60&tail=2") == lines[-1].decode()
    assert [asked["ago_s"] for asked in output.asked if "ago_s" in asked] == [60, 60]
    async with house.op.open(f"{path}?tail=1") as answer:
        assert answer.headers["Skep-Offset"] == str(output.begins)
    output.begins = None
    assert error(await house.op.get(f"{path}?since_s=60", 409))[0] == "agent-too-old"


async def test_lines_with_a_text_come_with_where_to_go_on(house: House, output: Output) -> None:
    await house.with_nodes(nodes=1)
    job = await submitted(house, retries=1)
    house.cluster.runs(job)
    await house.caught_up()
    output.live = {1}
    path = f"/v1/jobs/{job}/logs"
    first = b"a loss\nb\nc LOSS\n" + b"x" * 300_000 + b"\nd loss\n"
    output.files[1, 0] = first + b"e lo"

    async def told(query: str) -> list[dict[str, Any]]:
        lines = (await text_of(house, f"{path}?{query}")).splitlines()
        return [msgspec.json.decode(line) for line in lines]

    async def found(query: str) -> str:
        return "".join(one["text"] for one in await told(query))

    assert await found("grep=loss") == "a loss\nd loss\n"
    assert await found("grep=loss&any_case=1") == "a loss\nc LOSS\nd loss\n"
    assert await found("grep=lo&tail=2") == "d loss\ne lo"
    assert await found("grep=.*") == ""
    ends = [one["offset"] for one in await told("grep=d+loss")]
    assert await found(f"grep=loss&offset={ends[0]}") == ""
    async with house.op.open(f"{path}?grep=loss&follow=1&tail=1") as answer:
        assert answer.content_type == "application/x-ndjson"
        line = await answer.content.readline()
        assert msgspec.json.decode(line) == {"offset": len(first), "text": "d loss\n"}
        output.files[1, 0] += b"ss\n"
        line = await answer.content.readline()
        assert msgspec.json.decode(line) == {"offset": len(first) + 7, "text": "e loss\n"}
        # The next attempt's output has another beginning.
        output.files[2, 0] = b"loss of the second\n"
        output.live = {2}
        house.cluster.exits(job, outcome=Outcome.EXITED)
        house.cluster.runs(job, 2)
        line = await answer.content.readline()
        assert msgspec.json.decode(line) == {"offset": 19, "text": "loss of the second\n"}


@pytest.mark.parametrize(
    "query", ["grep=", "grep=" + "x" * 300, "grep=a%0Ab", "tail=-1", "tail=x", "since_s=-1"]
)
async def test_odd_parts_of_an_output_are_refused(house: House, output: Output, query: str) -> None:
    await house.with_nodes(nodes=1)
    job = await submitted(house)
    assert error(await house.op.get(f"/v1/jobs/{job}/logs?{query}", 400))[0] == "bad-value"
    assert not output.asked


async def test_only_so_many_logs_are_searched_at_once(
    house: House, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SEARCHERS_MAX", 0)
    await house.with_nodes(nodes=1)
    job = await submitted(house)
    assert error(await house.op.get(f"/v1/jobs/{job}/logs?grep=x", 503))[0] == "too-many-streams"
    assert not output.asked


async def test_following_goes_on_over_attempts_to_the_end_of_the_job(
    house: House, output: Output
) -> None:
    await house.with_nodes(nodes=1)
    house.cluster.clock.advance(seconds(1))
    blocker = await submitted(house, gpus=2)
    job = await submitted(house, retries=1)
    async with house.op.open(f"/v1/jobs/{job}/logs?follow=1") as answer:
        house.cluster.runs(blocker)
        house.cluster.exits(blocker)
        output.live = {1}
        await output.until_asked(1)  # Placed, and there is no file yet.
        house.cluster.runs(job)
        output.files[1, 0] = b"first"
        async with asyncio.timeout(DEADLINE_S):
            assert await answer.content.readexactly(5) == b"first"
            output.files[1, 0] += b" and last"
            assert await answer.content.readexactly(9) == b" and last"
        output.live = {2}
        output.files[2, 0] = b" second"
        house.cluster.exits(job, outcome=Outcome.EXITED)
        house.cluster.runs(job, 2)
        async with asyncio.timeout(DEADLINE_S):
            assert await answer.content.readexactly(7) == b" second"
        output.live = set()
        house.cluster.exits(job, 2)
        async with asyncio.timeout(DEADLINE_S):
            assert await answer.content.read() == b""
    assert await text_of(house, f"/v1/jobs/{job}/logs?follow=1&attempt=1") == "first and last"


async def test_only_so_many_logs_are_followed_at_once(
    house: House, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FOLLOWERS_MAX", 0)
    await house.with_nodes(nodes=1)
    job = await submitted(house)
    assert error(await house.op.get(f"/v1/jobs/{job}/logs?follow=1", 503))[0] == "too-many-streams"
    assert not output.asked


async def test_there_is_no_output_before_the_start(house: House, output: Output) -> None:
    await house.with_nodes(nodes=1)
    await submitted(house, gpus=2)
    job = await submitted(house)
    told = await house.op.get(f"/v1/jobs/{job}/logs", 404)
    assert "it is queued" in told["error"]["text"]
    # Followed, it ends with the job.
    async with house.op.open(f"/v1/jobs/{job}/logs?follow=1") as answer:
        await house.op.json("DELETE", f"/v1/jobs/{job}", 202)
        assert await answer.read() == b""
    assert not output.asked


async def test_a_node_that_is_away_is_said_or_waited_for(house: House, output: Output) -> None:
    await house.with_nodes(nodes=1)
    job = await submitted(house)
    house.cluster.runs(job)
    await house.caught_up()
    output.node = "node-2"
    for pump in list(house.cluster.broker.pumps.values()):
        if getattr(pump, "subject", "") == subjects.logs("node-1"):
            await pump.close()
    told = await house.op.get(f"/v1/jobs/{job}/logs", 503)
    assert error(told)[0] == "node-away"
    async with house.op.open(f"/v1/jobs/{job}/logs?follow=1") as answer:
        again = Output(house)
        again.files, again.live = {(1, 0): b"back"}, {1}
        await again.open()
        async with asyncio.timeout(DEADLINE_S):
            assert await answer.content.readexactly(4) == b"back"


async def test_following_a_dead_node_ends_with_the_job(
    house: House, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "UNANSWERED_MAX", 2)
    await house.with_nodes(nodes=1)
    job = await submitted(house)
    house.cluster.runs(job)
    house.cluster.exits(job)
    await house.caught_up()
    for pump in list(house.cluster.broker.pumps.values()):
        if getattr(pump, "subject", "") == subjects.logs("node-1"):
            await pump.close()
    assert await text_of(house, f"/v1/jobs/{job}/logs?follow=1") == ""
    assert not output.asked


async def test_a_client_that_leaves_stops_the_asking(
    house: House, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FOLLOWERS_MAX", 1)
    await house.with_nodes(nodes=1)
    job = await submitted(house)
    house.cluster.runs(job)
    await house.caught_up()
    output.live, output.files = {1}, {(1, 0): b"x"}
    path = f"/v1/jobs/{job}/logs?follow=1"
    async with house.op.open(path) as answer:
        await answer.content.readexactly(1)
        await house.op.get(path, 503)
        answer.close()
    status = 503
    async with asyncio.timeout(DEADLINE_S):
        while status == 503:  # Until the first one's place is free.
            async with house.op.open(path) as answer:
                status = answer.status
                answer.close()
    assert status == 200
