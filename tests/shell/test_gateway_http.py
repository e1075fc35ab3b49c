"""The gateway over HTTP: a real server and a real database, the machines behind a memory bus."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from skep.units import seconds
from skep.wire import codec, subjects
from skep.wire.admin import DrainNode
from skep.wire.findings import JobRate, Rates
from skep.wire.node import Outcome
from skep.wire.spec import SPEC_BYTES_MAX, SizeHint
from skep_services.adapters.memory import MemoryBus
from skep_services.gateway import server, submit
from skep_services.gateway.rows import State
from skep_services.ports import Delivery, FullError, RefusedError
from tests.gateway_kit import CHAINS, QUOTA, Client, House, error, opened, submitted
from tests.kit import TRACE, at, heartbeat, spec

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        yield made


# --- who may what ---------------------------------------------------------------------------------


async def test_nothing_is_said_without_a_token_but_health_metrics_and_the_page(
    house: House,
) -> None:
    for path in ("/v1/jobs", "/v1/events?follow=1", "/v1/nodes", "/v1/jobs/j1/logs", "/v1/nowhere"):
        assert error(await house.nobody.get(path, 401))[0] == "unauthorized"
    wrong = Client(house.session, house.base, "wrong")
    await wrong.get("/v1/jobs", 401)
    basic = await house.nobody.json("GET", "/v1/jobs", 401, Authorization="Basic op")
    assert "Bearer" in basic["error"]["text"]
    for path in ("/v1/health", "/metrics", "/"):
        async with house.nobody.open(path) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\nHost: here\r\nX-Half: "])
async def test_a_stranger_that_asks_nothing_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    monkeypatch.setattr(server, "QUIET_S", 0.05)
    async with opened(tmp_path) as house, asyncio.timeout(20.0):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(house.base).port)
        writer.write(words)
        assert await reader.read() == b""
        writer.close()


async def test_a_tenant_sees_and_changes_only_its_own(house: House) -> None:
    await house.with_nodes()
    job = await submitted(house)
    assert (await house.nlp.get(f"/v1/jobs/{job}"))["job"] == job
    for path in ("", "/why", "/events", "/trace", "/logs"):
        assert error(await house.vision.get(f"/v1/jobs/{job}{path}", 404))[0] == "unknown-job"
    await house.vision.json("DELETE", f"/v1/jobs/{job}", 404)
    assert (await house.vision.get("/v1/jobs"))["total"] == 0
    assert (await house.nlp.get("/v1/jobs"))["total"] == 1
    assert error(await house.vision.get("/v1/jobs?vc=nlp", 403))[0] == "wrong-vc"
    assert error(await house.vision.json("POST", "/v1/jobs", 403, spec()))[0] == "wrong-vc"
    forbidden = await house.nlp.json("POST", "/v1/admin/drain", 403, {"node": "node-1"})
    assert error(forbidden)[0] == "forbidden"
    assert [row["vc"] for row in (await house.vision.get("/v1/vcs"))["vcs"]] == ["vision"]
    assert {row["job"] for row in (await house.vision.get("/v1/gpus"))["gpus"]} == {None}
    events = (await house.vision.get("/v1/events"))["events"]
    assert events == []
    assert {event["vc"] for event in (await house.nlp.get("/v1/events"))["events"]} == {"nlp"}


# --- submitting -----------------------------------------------------------------------------------


async def test_a_job_is_submitted_shown_and_traced(house: House) -> None:
    await house.with_nodes()
    answer = await house.op.json(
        "POST", "/v1/jobs", 201, spec(size=SizeHint(mini_batches=9)), traceparent=TRACE
    )
    assert answer == {"job": "j1", "accepted": True, "repeated": False}
    await house.caught_up()
    listed = await house.op.get("/v1/jobs")
    [row] = listed["jobs"]
    assert (listed["total"], row["state"], row["place"], row["total_steps"]) == (
        1,
        "bound",
        "node-1:0",
        9,
    )
    shown = await house.op.get("/v1/jobs/j1")
    assert {key: shown[key] for key in row} == row
    assert shown["spec"]["name"] == "train"
    assert (shown["problems"], shown["repeated_by"], shown["trace"]) == ([], [], TRACE)
    assert shown["attempts"][0]["members"][0]["devices"] == [[0]]
    assert len(shown["key"]) == 32
    why = await house.op.get("/v1/jobs/j1/why")
    assert why["reasons"][0]["reason"] == "best-fit-one-node"
    story = (await house.op.get("/v1/jobs/j1/events"))["events"]
    assert [event["kind"] for event in story] == ["admitted", "job-queued", "job-bound"]
    [(name, trace, attributes)] = house.spans.spans
    assert (name, trace, attributes) == ("gateway submit", TRACE, {"job": "j1", "vc": "nlp"})
    headers = house.cluster.broker.stream("SUBMIT").messages[0].headers
    assert headers["Skep-Reply"].startswith("skep.v1.reply.nlp.gateway-")
    assert headers["Nats-Msg-Id"] == shown["key"]


async def test_a_trace_begins_here_if_the_client_has_none(house: House) -> None:
    await house.with_nodes()
    await house.op.json("POST", "/v1/jobs", 201, spec(), traceparent="nonsense")
    headers = house.cluster.broker.stream("SUBMIT").messages[0].headers
    assert codec.is_trace(headers["traceparent"])
    about = {"job": "j1", "vc": "nlp"}
    assert house.spans.roots == [("gateway submit", headers["traceparent"], about)]
    assert house.spans.spans == []


async def test_the_same_key_is_the_same_job(house: House) -> None:
    await house.with_nodes()
    first = await house.op.json("POST", "/v1/jobs", 201, spec(), Idempotency_Key="k")
    again = await house.op.json("POST", "/v1/jobs", 201, spec(), Idempotency_Key="k")
    assert again["job"] == first["job"]
    # The bus forgets keys after an hour, admission does not.
    house.cluster.broker.stream("SUBMIT").keys.clear()
    later = await house.op.json("POST", "/v1/jobs", 201, spec(), Idempotency_Key="k")
    assert later == {"job": "j1", "accepted": True, "repeated": True}
    await house.caught_up()
    shown = await house.op.get("/v1/jobs/j2")
    assert (shown["job"], shown["repeated_by"]) == ("j1", ["j2"])
    assert (await house.op.get("/v1/jobs?state=all"))["total"] == 1


async def test_a_key_another_tenant_used_is_refused(house: House) -> None:
    await house.with_nodes()
    await house.nlp.json("POST", "/v1/jobs", 201, spec(), Idempotency_Key="k")
    other = await house.vision.json("POST", "/v1/jobs", 409, spec(vc="vision"), Idempotency_Key="k")
    assert error(other)[0] == "key-used"
    assert "job" not in other


async def test_a_wrong_spec_is_refused_with_its_problems(house: House) -> None:
    await house.with_nodes()
    wrong = {"name": "x", "vc": "nlp", "comand": "true"}
    answer = await house.op.json("POST", "/v1/jobs", 422, wrong)
    assert error(answer) == ("unknown-key", ["$.comand"])
    assert answer["job"] == "j1"
    await house.caught_up()
    shown = await house.op.get("/v1/jobs/j1")
    assert (shown["state"], shown["spec"]) == ("refused", wrong)
    assert error(await house.op.json("POST", "/v1/jobs", 422, {**wrong, "vc": "none"})) == (
        "unknown-vc",
        ["$.vc"],
    )
    refused = (await house.op.get("/v1/jobs?state=refused"))["jobs"]
    assert [row["job"] for row in refused] == ["j1", "j2"]


@pytest.mark.parametrize(
    "body,reason,path",
    [
        (b"{nonsense", "not-json", "$"),
        (b"[1]", "wrong-type", "$"),
        (b"[" * 5_000, "not-json", "$"),
        (b'{"name": "x", "command": "true"}', "missing-key", "$.vc"),
        (b'{"name": "x", "command": "true", "vc": "a.b"}', "bad-value", "$.vc"),
        (b'{"name": "x", "command": "true", "vc": 7}', "wrong-type", "$.vc"),
    ],
)
async def test_what_names_no_tenant_is_refused_here(
    house: House, body: bytes, reason: str, path: str
) -> None:
    answer = await house.op.json("POST", "/v1/jobs", 422, body)
    assert error(answer) == (reason, [path])
    assert answer["job"] is None
    assert not house.cluster.broker.stream("SUBMIT").messages


@pytest.mark.parametrize("size", [SPEC_BYTES_MAX + 1, 600_000])
async def test_what_is_too_large_is_refused_here(house: House, size: int) -> None:
    answer = await house.op.json("POST", "/v1/jobs", 413, b" " * size)
    assert error(answer) == ("too-large", ["$"])


async def test_a_key_must_be_short_and_plain(house: House) -> None:
    for key in ("k" * 257, "ö"):
        answer = await house.op.json("POST", "/v1/jobs", 400, spec(), Idempotency_Key=key)
        assert error(answer)[0] == "bad-value"


async def test_a_submission_without_a_verdict_is_durable_all_the_same(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.with_nodes()
    monkeypatch.setattr(submit, "VERDICT_TIMEOUT_S", 0.02)
    house.cluster.deaf = True
    answer = await house.op.json("POST", "/v1/jobs", 202, spec())
    assert answer == {"job": "j1", "accepted": None}
    await house.caught_up()
    shown = await house.op.get("/v1/jobs/j1")
    assert (shown["state"], shown["name"], shown["spec"]["name"]) == ("submitted", "", "train")
    assert (await house.op.get("/v1/jobs/j1/why"))["reasons"][0]["reason"] == "submitted"
    assert await house.op.json("DELETE", "/v1/jobs/j1", 202) == {"job": "j1", "accepted": None}


async def test_a_verdict_is_taken_from_the_facts_if_no_reply_comes(house: House) -> None:
    await house.with_nodes()

    async def unheard(subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        del subject, payload, headers

    house.cluster.bus.send = unheard  # type: ignore[method-assign]
    assert (await house.op.json("POST", "/v1/jobs", 201, spec()))["accepted"]
    bad = {"name": "x", "vc": "nlp", "comand": "true"}
    assert error(await house.op.json("POST", "/v1/jobs", 422, bad))[0] == "unknown-key"


async def test_replies_that_nobody_waits_for_or_can_read_are_left(house: House) -> None:
    await house.with_nodes()
    send = house.cluster.bus.send

    async def garbled(subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        await send(subject, b"?", headers)
        await send(subject + "9", payload, headers)

    house.cluster.bus.send = garbled  # type: ignore[method-assign]
    assert (await house.op.json("POST", "/v1/jobs", 201, spec()))["job"] == "j1"


@pytest.mark.parametrize("vc, taken", [("nlp", True), ("vision", False)])
async def test_a_verdict_counts_only_on_a_subject_of_the_vc_that_was_asked_for(
    house: House, monkeypatch: pytest.MonkeyPatch, vc: str, taken: bool
) -> None:
    await house.with_nodes()
    monkeypatch.setattr(submit, "VERDICT_TIMEOUT_S", 30.0 if taken else 0.02)
    house.cluster.deaf = True
    publish = house.bus.publish

    async def answered(subject: str, payload: bytes, key: str, headers: Mapping[str, str]) -> int:
        sequence = await publish(subject, payload, key, headers)
        reply = headers["Skep-Reply"].replace("reply.nlp.", f"reply.{vc}.")
        await house.cluster.bus.send(reply, b'{"job":"j1","accepted":true}', {})
        return sequence

    monkeypatch.setattr(house.bus, "publish", answered)
    answer = await house.op.json("POST", "/v1/jobs", 201 if taken else 202, spec())
    assert answer["accepted"] is (True if taken else None)


class BadBus(MemoryBus):
    """A bus that refuses to publish, or never answers."""

    refuses: RefusedError | None = None

    async def publish(
        self, subject: str, payload: bytes, key: str, headers: Mapping[str, str]
    ) -> int:
        if self.refuses is not None:
            raise self.refuses
        await asyncio.get_running_loop().create_future()
        raise AssertionError


async def test_a_bus_that_does_not_take_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "PUBLISH_TIMEOUT_S", 0.02)
    await house.stop()
    bus = BadBus(house.cluster.broker, "gateway", house.fatal.append)
    await house.start(bus)
    away = await house.op.json("POST", "/v1/jobs", 503, spec(), Idempotency_Key="mine")
    assert (error(away)[0], away["key"]) == ("bus-away", "mine")
    bus.refuses = RefusedError("the message is too large")
    refused = await house.op.json("POST", "/v1/jobs", 503, spec())
    assert error(refused)[0] == "bus-refused"
    bus.refuses = FullError("maximum bytes exceeded")
    body = codec.encode(spec())
    async with house.op.session.post(
        f"{house.op.base}/v1/jobs", data=body, headers=house.op.headers
    ) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
        assert error(await answer.json())[0] == "submissions-full"
    async with house.nobody.open("/metrics") as answer:
        text = await answer.text()
    assert 'skep_gateway_submissions_total{answer="unpublished"} 3.0' in text


# --- jobs -----------------------------------------------------------------------------------------


async def test_jobs_are_listed_by_state_name_and_order(house: House) -> None:
    await house.with_nodes(nodes=1)
    for name in ("a", "b", "a", "b"):
        await submitted(house, name=name, labels={"user": f"u-{name}"})
    await submitted(house, name="c", priority=3, labels={"team": "x"})
    house.cluster.runs("j1")
    house.cluster.exits("j1")
    house.cluster.runs("j2")
    await house.caught_up()

    async def ids(query: str) -> list[str]:
        return [row["job"] for row in (await house.op.get(f"/v1/jobs?{query}"))["jobs"]]

    assert await ids("") == ["j2", "j3", "j4", "j5"]
    assert await ids("order=newest") == ["j5", "j4", "j3", "j2"]
    assert await ids("order=queue") == ["j5", "j2", "j3", "j4"]
    assert await ids("state=all") == ["j1", "j2", "j3", "j4", "j5"]
    assert await ids("state=all&order=newest&limit=2") == ["j5", "j4"]
    assert await ids("state=all&order=queue&limit=5") == ["j5", "j2", "j3", "j4", "j1"]
    assert await ids("state=all&limit=2") == ["j4", "j5"]
    assert await ids("state=ended") == await ids("state=succeeded") == ["j1"]
    assert await ids("state=queued") == ["j3", "j4"]
    assert await ids("state=all&name=a") == ["j1", "j3"]
    assert await ids("state=queued,succeeded") == ["j1", "j3", "j4"]
    assert await ids("state=all&label=user%3Du-a") == ["j1", "j3"]
    assert await ids("state=all&label=user&user=u-b&prefix=j2") == ["j2"]
    assert await ids("state=all&order=-name&limit=3") == ["j5", "j2", "j4"]
    assert await ids("vc=vision") == []
    cut = await house.op.get("/v1/jobs?limit=1")
    assert (len(cut["jobs"]), cut["total"]) == (1, 4)


@pytest.mark.parametrize(
    "query",
    [
        "state=odd",
        "order=odd",
        "limit=-1",
        "limit=x",
        "limit=" + "9" * 30,
        "vc=a.b",
        "label=",
        "&".join(["label=x"] * 9),
        "name=" + "*a" * 5,
        "user=" + "x" * 600,
    ],
)
async def test_odd_queries_are_refused(house: House, query: str) -> None:
    assert error(await house.op.get(f"/v1/jobs?{query}", 400))[0] == "bad-value"


async def test_paths_and_methods_that_are_not_there(house: House) -> None:
    assert error(await house.op.get("/v1/nothing", 404))[0] == "not-found"
    assert error(await house.op.json("PUT", "/v1/jobs", 405))[0] == "method-not-allowed"
    assert error(await house.op.get("/v1/jobs/j1", 404))[0] == "unknown-job"
    assert error(await house.op.get("/v1/jobs/..%2Fetc", 404))[0] == "unknown-job"
    assert error(await house.op.get("/v1/events?follow=2", 400))[0] == "bad-value"
    assert error(await house.op.get("/v1/events?job=odd", 404))[0] == "unknown-job"


async def test_waiting_for_a_job_ends_when_it_does(house: House) -> None:
    await house.with_nodes()
    job = await submitted(house)
    soon = asyncio.create_task(house.op.get(f"/v1/jobs/{job}?wait=started"))
    later = asyncio.create_task(house.op.get(f"/v1/jobs/{job}?wait=ended&timeout_s=30"))
    now = await house.op.get(f"/v1/jobs/{job}?wait=ended&timeout_s=0")
    assert now["state"] == "bound"
    house.cluster.runs(job)
    assert (await soon)["state"] == "running"
    assert not later.done()
    house.cluster.exits(job)
    assert (await later)["state"] == "succeeded"
    assert (await house.op.get(f"/v1/jobs/{job}?wait=ended"))["state"] == "succeeded"
    await house.op.get(f"/v1/jobs/{job}?wait=odd", 400)


async def test_a_job_is_cancelled_once(house: House) -> None:
    await house.with_nodes()
    job = await submitted(house)
    assert await house.op.json("DELETE", f"/v1/jobs/{job}", 202) == {"job": job, "accepted": True}
    await house.caught_up()
    shown = await house.op.get(f"/v1/jobs/{job}")
    assert (shown["state"], shown["cancel_asked"]) == ("stopping", True)
    house.cluster.exits(job, outcome=Outcome.STOPPED)
    await house.caught_up()
    over = await house.op.json("DELETE", f"/v1/jobs/{job}", 409)
    assert (error(over)[0], over["job"]) == ("already-ended", job)
    await house.op.json("DELETE", "/v1/jobs/j9", 404)


async def test_admission_may_know_better_than_the_view(house: House) -> None:
    await house.with_nodes()
    job = await submitted(house)
    row = house.gateway.indexer.fold.active[job].row
    row.vc = "vision"  # As if the view were wrong.
    assert error(await house.op.json("DELETE", f"/v1/jobs/{job}", 404))[0] == "unknown-job"
    row.vc = "nlp"
    house.cluster.runs(job)
    house.cluster.exits(job)
    await house.caught_up()
    row.state = State.RUNNING  # As if the view were late.
    assert error(await house.op.json("DELETE", f"/v1/jobs/{job}", 409))[0] == "already-ended"


async def test_a_refused_submission_that_was_no_json_has_no_spec(house: House) -> None:
    await house.with_nodes()
    headers = {subjects.KEY_HEADER: "bare"}
    house.cluster.broker.store(subjects.submit("nlp"), b"\xff", headers)
    await house.caught_up()
    await asyncio.sleep(0)
    shown = await house.op.get("/v1/jobs/j1?wait=ended")
    assert (shown["state"], shown["spec"]) == ("refused", None)


# --- the cluster ----------------------------------------------------------------------------------


async def test_nodes_gpus_and_tenants(house: House) -> None:
    await house.with_nodes()
    job = await submitted(house)
    await house.bus.send(subjects.heartbeat("node-1"), codec.encode(heartbeat()), {})
    await house.op.json("POST", "/v1/admin/drain", 202, {"node": "node-2"})
    await house.caught_up()
    first, second = (await house.op.get("/v1/nodes"))["nodes"]
    assert (first["state"], first["jobs"], first["last_heard_at"]) == ("up", [job], at(0))
    assert second["state"] == "drained"
    gpus = (await house.op.get("/v1/gpus"))["gpus"]
    assert [gpu["job"] for gpu in gpus] == [job, None, None, None]
    assert (await house.op.get("/v1/vcs"))["vcs"][0]["used"] == 1


async def test_operators_set_tenants(house: House) -> None:
    answer = await house.op.json(
        "POST", "/v1/admin/vcs", 202, {"vcs": {"nlp": {"gpus": 3, "jobs_max": 5}}}
    )
    assert answer == {"accepted": True}
    await house.caught_up()
    [row] = (await house.op.get("/v1/vcs"))["vcs"]
    assert (row["vc"], row["gpus"], row["asked"], row["jobs_max"]) == ("nlp", 0, 3, 5)


@pytest.mark.parametrize(
    "path,status,body,reason",
    [
        ("vcs", 400, b"{", "not-json"),
        ("vcs", 422, {"vcs": {"a.b": {"gpus": 1}}}, "bad-value"),
        ("vcs", 422, {"vcs": {"a": {"gpus": -1}}}, "bad-value"),
        ("vcs", 422, {"vcs": {"a": {"gpus": 1, "jobs_max": -1}}}, "bad-value"),
        ("vcs", 422, {"vcs": {"a": {"gpu": 1}}}, "bad-value"),
        ("vcs", 422, {"vcs": {"a": {"cells": [QUOTA]}}}, "unknown-chain"),
        ("vcs", 422, {"vcs": {"a": {"cells": [QUOTA]}}, "chains": CHAINS}, "infeasible"),
        ("vcs", 413, b" " * 600_000, "too-large"),
        ("quarantine", 404, {"node": "node-9", "device": 0}, "unknown-node"),
        ("quarantine", 422, {"node": "node-9"}, "bad-value"),
        ("drain", 404, {"node": "node-9"}, "unknown-node"),
        ("drain", 422, {"nodes": "node-9"}, "bad-value"),
    ],
)
async def test_odd_wishes_of_operators_are_refused(
    house: House, path: str, status: int, body: Any, reason: str
) -> None:
    answer = await house.op.json("POST", f"/v1/admin/{path}", status, body)
    assert error(answer)[0] == reason


async def test_health_asks_everybody_at_once(house: House) -> None:
    await house.with_nodes()

    async def well(asked: Delivery) -> None:
        await house.cluster.bus.send(asked.reply, b'{"facts": 7}', {})

    async def odd(asked: Delivery) -> None:
        await house.cluster.bus.send(asked.reply, b"?", {})

    for identity in (
        "admission",
        "allocator",
        "introspector",
        "searches",
        "node-node-1",
        "node-node-2",
    ):
        await house.cluster.bus.listen(subjects.health(identity), well)
    broken = await house.cluster.bus.listen(subjects.health("advisor"), odd)
    told = await house.nobody.get("/v1/health")
    assert not told["ok"]
    assert "not readable" in told["services"]["advisor"]["text"]
    assert told["services"]["allocator"] == {"ok": True, "facts": 7}
    own = told["services"]["gateway"]
    assert (own["identity"], own["facts"], own["positions"]["ALLOC"]) == ("gateway", 11, 3)
    await broken.close()
    await house.cluster.bus.listen(subjects.health("advisor"), well)
    assert not (await house.nobody.get("/v1/health"))["ok"]  # It is asked once a second at most.
    house.cluster.clock.advance(seconds(1))
    assert (await house.nobody.get("/v1/health"))["ok"]
    # A drained node may be away.
    house.cluster.heard(DrainNode(node="node-2"), 2)
    await house.caught_up()
    house.cluster.clock.advance(seconds(1))
    told = await house.nobody.get("/v1/health")
    assert told["ok"]


async def test_a_process_that_does_not_answer_is_not_well(house: House) -> None:
    told = await house.nobody.get("/v1/health")
    assert told["services"]["allocator"] == {"ok": False, "text": "no answer within 1 s"}
    await house.bus.send(subjects.health("gateway"), b"", {})  # Nobody to answer to.


async def test_metrics_count_jobs_gpus_and_what_was_read(house: House) -> None:
    await house.with_nodes()
    await submitted(house)
    await submitted(house, gpus=2, workers=2)
    await submitted(house, hold=True)
    rates = Rates(at=at(0), jobs=(JobRate(job="j1", attempt=1, steps=1, rate_milli=1),))
    await house.bus.send(subjects.finding("rates"), codec.encode(rates), {})
    async with house.nobody.open("/metrics") as answer:
        text = await answer.text()
    for line in (
        'skep_jobs{state="bound",vc="nlp"} 1.0',
        'skep_jobs{state="queued",vc="nlp"} 1.0',
        'skep_jobs{state="deferred",vc="nlp"} 1.0',
        "skep_queue_jobs 1.0",
        'skep_deferred_jobs{vc="nlp",why="held"} 1.0',
        'skep_vc_gpus_held{service_class="guaranteed",vc="nlp"} 1.0',
        'skep_vc_gpus{vc="nlp"} 4.0',
        'skep_nodes{state="up"} 2.0',
        "skep_gpus 4.0",
        "skep_gpus_free 3.0",
        'skep_gateway_position{stream="SUBMIT"} 3.0',
        "skep_gateway_waiting 0.0",
        "skep_gateway_rates_age_seconds 0.0",
        'skep_gateway_submissions_total{answer="accepted"} 3.0',
        'skep_gateway_request_seconds_count{method="POST",route="/v1/jobs",status="201"} 3.0',
    ):
        assert line in text, line


async def test_the_page_brings_everything_and_may_do_nothing_else(house: House) -> None:
    async with house.nobody.open("/") as answer:
        text = await answer.text()
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    # All that the document names is of this gateway, and nothing in it runs by itself.
    assert "://" not in text
    assert re.findall(r"<script[^>]*>[^<]", text) == []
    assert "<style" not in text


async def test_a_failure_of_the_gateway_is_an_answer(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skep_services.gateway.cluster.vcs_view", None)
    told = await house.op.get("/v1/vcs", 500)
    assert told["error"]["reason"] == "internal"


# --- spans ----------------------------------------------------------------------------------------


async def test_spans_are_kept_by_trace_and_shown_by_start(house: House) -> None:
    await house.with_nodes()
    await house.op.json("POST", "/v1/jobs", 201, spec(), traceparent=TRACE)
    trace_id = TRACE.split("-")[1]

    def span(name: str, start_ns: int, **more: Any) -> dict[str, Any]:
        return {
            "trace_id": trace_id,
            "span_id": "a" * 16,
            "parent_id": "",
            "name": name,
            "service": "allocator",
            "start_ns": start_ns,
            "end_ns": start_ns + 5,
            "attributes": {"job": "j1", **more},
        }

    where = subjects.span("allocator")
    await house.bus.send(where, codec.encode([span("late", 20), span("early", 10)]), {})
    await house.bus.send(where, codec.encode([span("huge", 30, text="x" * 9_000)]), {})
    await house.bus.send(where, b"[{}]", {})
    told = await house.op.get("/v1/jobs/j1/trace")
    assert told["trace_id"] == trace_id
    assert [one["name"] for one in told["spans"]] == ["early", "late"]
    assert told["spans"][0]["attributes"] == {"job": "j1"}
    assert house.gateway.indexer.spans_dropped == 2


async def test_the_gateway_notes_when_an_end_can_be_seen(house: House) -> None:
    await house.with_nodes()
    await house.op.json("POST", "/v1/jobs", 201, spec(), traceparent=TRACE)
    house.cluster.clock.advance(seconds(20))
    house.cluster.runs("j1")
    house.cluster.exits("j1")
    await house.caught_up()
    assert house.spans.spans[-1] == ("gateway index", TRACE, {"job": "j1", "end": "succeeded"})
