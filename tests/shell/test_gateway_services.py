"""Requests that a gateway passes on to replicas: what reaches a replica, and what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from skep.wire import subjects
from skep.wire.reasons import Reason
from skep.wire.service import ServiceSpec, parse_service_tree
from skep.wire.service_facts import (
    ReplicaAdded,
    ReplicaAdmitted,
    ReplicaStand,
    ReplicaStood,
    ServiceBegan,
    ServiceEnding,
)
from skep_services.gateway import front
from tests.gateway_kit import House, opened, submitted
from tests.kit import at, joined

pytestmark = pytest.mark.asyncio

HOSTILE = {
    "Set-Cookie": "a=b",
    "Clear-Site-Data": '"*"',
    "Content-Security-Policy": "script-src *",
    "Service-Worker-Allowed": "/",
    "Strict-Transport-Security": "max-age=1",
}
DEADLINE_S = 30.0


RAW = {
    "/control": b"HTTP/1.1 200 OK\r\nX-A: a\x01b\r\nContent-Length: 0\r\n\r\n",
    "/switch": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "/zero": b"HTTP/1.1 000 Zero\r\nContent-Length: 0\r\n\r\n",
}
"""What a replica answers that no client must get, by path."""


class Replica:
    """A server of a tenant's."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.cut = 0
        """Requests that it ends without an answer from here on."""
        self.holds = asyncio.Event()
        """Set once a request for `/hold`, which it never answers, is here."""
        self.let_go = asyncio.Event()
        """Set once nobody waits for that answer."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response()
        given = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append(
            (
                request.method,
                request.path_qs,
                given,
                b"".join([piece async for piece in request.content.iter_any()]),
            )
        )
        if request.path == "/hold":
            self.holds.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.let_go.set()
        if request.path in RAW:
            assert request.transport is not None
            request.transport.write(RAW[request.path])
            request.transport.close()
        if self.cut:
            self.cut -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=201, text="answer", headers={**HOSTILE, "X-Own": "1"})


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[tuple[Replica, int]]:
    made = Replica()
    server = web.Server(made.answer, auto_decompress=False, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield made, runner.addresses[0][1]
    await runner.cleanup()


@pytest_asyncio.fixture
async def asleep(tmp_path: Path, replica: tuple[Replica, int]) -> AsyncIterator[House]:
    """Yield a gateway with a service that has no replica, as none was asked for."""
    port = replica[1]
    async with opened(tmp_path) as made:
        made.cluster.set_vcs(nlp=1, vision=0)
        made.cluster.join(joined("node-1", 1, address="127.0.0.1", ports=(port, port)))
        began = ServiceBegan(spec=llm(**NONE), service="v1", at=at(4))
        made.cluster.store_record(subjects.SEARCH_FACTS, (began,), at(4))
        await made.caught_up()
        yield made


@contextlib.asynccontextmanager
async def serving(folder: Path, replica: tuple[Replica, int], address: str) -> AsyncIterator[House]:
    """Yield a gateway with a service whose one replica, on a node of this address, is ready."""
    port = replica[1]
    async with opened(folder) as made:
        made.cluster.set_vcs(nlp=1, vision=0)
        made.cluster.join(joined("node-1", 1, address=address, ports=(port, port)))
        began = ServiceBegan(spec=llm(), service="v1", at=at(4))
        made.cluster.store_record(subjects.SEARCH_FACTS, (began,), at(4))
        await replica_runs(made)
        await until_ready(made)
        replica[0].asked.clear()
        yield made


@pytest_asyncio.fixture
async def house(tmp_path: Path, replica: tuple[Replica, int]) -> AsyncIterator[House]:
    async with serving(tmp_path, replica, "127.0.0.1") as made:
        yield made


NONE = {"replicas": 0, "replicas_max": 1, "requests_per_s": 9, "wait": 30}


def llm(**more: Any) -> ServiceSpec:
    job = {"command": "serve"}
    tree = {"name": "llm", "vc": "nlp", "job": job, "health": "/health", **more}
    found = parse_service_tree(tree)
    assert isinstance(found, ServiceSpec), found
    return found


async def replica_runs(house: House) -> None:
    """Have a replica of the service run."""
    job = await submitted(house)
    house.cluster.runs(job)
    service: dict[str, Any] = {"service": "v1", "at": at(4)}
    facts = (
        ReplicaAdded(replica=1, revision=1, **service),
        ReplicaAdmitted(replica=1, job=job, **service),
        ReplicaStood(replica=1, stand=ReplicaStand.RUNNING, attempt=1, **service),
    )
    house.cluster.store_record(subjects.SEARCH_FACTS, facts, at(4))
    await house.caught_up()


async def ask(house: House, method: str, path: str, **options: Any) -> tuple[int, Any, str]:
    """Return status, headers and text of an answer."""
    headers = {**house.nlp.headers, **options.pop("headers", {})}
    url = f"{house.base}/v1/services/nlp.llm/http/{path}"
    async with house.session.request(method, url, headers=headers, **options) as answer:
        return answer.status, answer.headers, await answer.text()


async def until_ready(house: House) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await ask(house, "GET", "health"))[0] != 200:
            pass


async def test_a_replica_learns_no_token_and_sets_nothing_on_the_page(
    house: House, replica: tuple[Replica, int]
) -> None:
    given = {"Cookie": "s=1", "X-Mine": "2", "Connection": "close"}
    status, headers, text = await ask(house, "POST", "a%2Fb?c=d", headers=given, data=b"body")
    ((method, path, seen, body),) = replica[0].asked
    assert (status, text, method, path, body) == (201, "answer", "POST", "/a%2Fb?c=d", b"body")
    assert seen["x-mine"] == "2"
    assert not {"authorization", "cookie"} & seen.keys()
    assert headers["X-Own"] == "1"
    assert headers["Content-Security-Policy"] == "sandbox"
    assert not (HOSTILE.keys() - {"Content-Security-Policy"}) & set(headers)


async def test_only_what_may_be_repeated_is_asked_again(
    house: House, replica: tuple[Replica, int]
) -> None:
    for method in ("POST", "PUT", "DELETE", "GET"):
        replica[0].asked.clear()
        replica[0].cut = 1
        status, _, text = await ask(house, method, "x")
        assert (status, len(replica[0].asked)) == (502, 1), text
    assert (await ask(house, "GET", "x"))[0] == 201


async def test_what_is_too_large_or_of_another_reaches_no_replica(
    house: House, replica: tuple[Replica, int]
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(65):
            yield bytes(1024 * 1024)

    status, _, text = await ask(house, "POST", "x", data=pieces())
    assert (status, "at most 64 MiB" in text) == (413, True)
    status, _, text = await ask(house, "GET", "x", headers={"Upgrade": "websocket"})
    assert (status, "not built" in text) == (501, True)
    replica[0].asked.clear()
    for client, expected in ((house.vision, 404), (house.nobody, 401)):
        url = f"{house.base}/v1/services/nlp.llm/http/x"
        async with house.session.get(url, headers=client.headers) as answer:
            assert answer.status == expected
    assert not replica[0].asked


async def test_a_replica_that_ends_gets_no_more_requests(
    house: House, replica: tuple[Replica, int]
) -> None:
    job = next(iter(house.cluster.allocator.machine.state.jobs))
    house.cluster.exits(job)
    await house.caught_up()
    async with asyncio.timeout(DEADLINE_S):
        while (found := await ask(house, "GET", "x"))[0] != 503:
            pass
    assert found[1]["Retry-After"] == "1"
    assert "no replica of llm is ready" in found[2]


async def waiting(house: House, count: int) -> None:
    """Wait until so many requests wait at the gateway."""
    url = f"{house.base}/v1/services/v1"
    async with asyncio.timeout(DEADLINE_S):
        while True:
            async with house.session.get(url, headers=house.nlp.headers) as answer:
                if (await answer.json())["waiting"] == count:
                    return


async def test_a_request_to_a_service_without_replicas_waits_for_one(
    asleep: House, replica: tuple[Replica, int]
) -> None:
    asked = asyncio.create_task(ask(asleep, "POST", "x", data=b"body"))
    await waiting(asleep, 1)
    assert not replica[0].asked
    await replica_runs(asleep)
    status, _, text = await asked
    assert (status, text) == (201, "answer")
    assert [body for _, _, _, body in replica[0].asked] == [b"body"]
    await waiting(asleep, 0)


async def test_requests_wait_in_bounded_number_and_time_and_not_for_what_ends(
    asleep: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "WAITING_MAX", 1)
    first = asyncio.create_task(ask(asleep, "GET", "x"))
    await waiting(asleep, 1)
    status, headers, text = await ask(asleep, "GET", "x")
    assert (status, headers["Retry-After"]) == (503, "5")
    assert "1 requests wait for it" in text
    ends = ServiceEnding(service="v1", why=Reason.CANCELLED, at=at(5))
    asleep.cluster.store_record(subjects.SEARCH_FACTS, (ends,), at(5))
    status, headers, text = await first
    assert (status, headers["Retry-After"]) == (503, "1")
    assert "no replica of llm is ready" in text


async def test_a_request_that_waited_too_long_is_refused(
    asleep: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServiceSpec, "seconds_of", lambda spec, name: 0)
    status, headers, text = await ask(asleep, "GET", "x")
    assert (status, headers["Retry-After"]) == (503, "5")
    assert "no replica of llm was ready within 0 s: skep services v1 says why" in text


async def test_a_request_whose_client_has_gone_waits_no_longer(
    asleep: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "GONE_S", 0.05)
    asked = asyncio.create_task(ask(asleep, "GET", "x"))
    await waiting(asleep, 1)
    asked.cancel()
    await waiting(asleep, 0)


async def test_a_body_reaches_a_replica_as_it_was_sent(
    house: House, replica: tuple[Replica, int]
) -> None:
    packed = gzip.compress(b"body " * 100)
    given = {"Content-Encoding": "gzip"}
    status, _, text = await ask(house, "POST", "a%0Ab", headers=given, data=packed)
    assert (status, text) == (201, "answer")
    ((_, path, seen, body),) = replica[0].asked
    assert (path, seen["content-encoding"], body) == ("/a%0Ab", "gzip", packed)
    for path in ("jobs", "services"):
        url, headers = f"{house.base}/v1/{path}", {**house.nlp.headers, **given}
        async with house.session.post(url, headers=headers, data=packed) as answer:
            assert answer.status == 415
            assert "without Content-Encoding" in await answer.text()


async def test_a_body_is_not_waited_for_where_a_replica_knows_no_expect(
    house: House, replica: tuple[Replica, int]
) -> None:
    """As curl sends a large body: it waits for a word, which the gateway gives."""
    async with asyncio.timeout(DEADLINE_S):
        status, _, _ = await ask(house, "POST", "x", data=b"body", expect100=True)
    ((_, _, seen, body),) = replica[0].asked
    assert (status, body, "expect" in seen) == (201, b"body", False)


@pytest.mark.parametrize("path", RAW)
async def test_what_is_no_answer_is_the_replicas_failure(house: House, path: str) -> None:
    status, _, text = await ask(house, "POST", path[1:])
    assert (status, "replica-failed" in text, "no HTTP" in text) == (502, True, True), text


async def test_a_replica_is_let_go_once_the_client_has_gone(
    house: House,
    replica: tuple[Replica, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(front, "GONE_S", 0.05)
    asked = asyncio.create_task(ask(house, "GET", "hold"))
    async with asyncio.timeout(DEADLINE_S):
        await replica[0].holds.wait()
        asked.cancel()
        await replica[0].let_go.wait()
        url = f"{house.base}/v1/services/v1"
        while True:
            async with house.session.get(url, headers=house.nlp.headers) as answer:
                if not (await answer.json())["open"]:
                    break
    assert not [each for each in caplog.records if each.name == "aiohttp.server"]


async def test_cookies_of_a_replica_reach_no_other_replica(
    tmp_path: Path, replica: tuple[Replica, int]
) -> None:
    """A node with a name: a jar of cookies keeps none of bare addresses."""
    async with serving(tmp_path, replica, "localhost") as house:
        for _ in range(2):
            assert (await ask(house, "GET", "x"))[0] == 201
    assert ["cookie" in seen for _, _, seen, _ in replica[0].asked] == [False, False]


async def test_more_requests_are_counted_than_latencies_are_kept() -> None:
    load, now = front.Load(), 1000.0
    for number in range(30_000):
        load.ask(now + number / 1000)
    assert load.rate(now + 29.999) == 1000.0
    assert load.rate(now + 45.0) == pytest.approx(500, rel=0.05)
    assert load.rate(now + 100.0) == 0.0
    assert load.new == 30_000
