"""What somebody tries with the stolen credential of one node: each attempt stays in that node.

A node's credential speaks for its node: it can lie about what runs there. It cannot speak for
other nodes, hear others' jobs, write facts, or end a service.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from skep.wire import subjects
from tests.attack.conftest import Target, stored, violations
from tests.support.bare_client import bare_client

NODE = "node-node-1"
MAY_NOT_SAY = (
    *(subjects.STREAMS[name][0] for name in subjects.FACT_STREAMS),
    subjects.kept(subjects.ALLOC, "whole"),
    subjects.admin("vcs"),
    subjects.admin("drain"),
    subjects.submit("nlp"),
    subjects.cancel("nlp"),
    subjects.ask("nlp"),
    subjects.search("nlp"),
    subjects.node_event("node-2", "joined"),
    subjects.node_event("node-2", "exited"),
    subjects.command("node-1"),
    subjects.command("node-2"),
    subjects.heartbeat("node-2"),
    subjects.report("node-2"),
    subjects.span("allocator"),
    subjects.span("node-node-2"),
    subjects.logs("node-2"),
    subjects.outputs("node-2"),
    subjects.code("node-2", subjects.ANY_GATEWAY),
    subjects.snapshot("chunk", "nlp", "0" * 64),
    subjects.snapshot("list", "nlp", "0" * 64),
    "$JS.API.STREAM.MSG.GET.CODE",
    "$JS.API.DIRECT.GET.CODE.skep.v1.snapshot.>",
    subjects.health("allocator"),
    subjects.health("node-node-2"),
    subjects.draft("allocator"),
    subjects.ACCESS_ASKED,
    subjects.ADVICE_QUEUE,
    subjects.ADVICE_OUTLOOK,
    subjects.finding("rate"),
    subjects.JUDGED,
    subjects.reply("nlp", "x"),
    "_INBOX.gateway.x",
    "$JS.API.STREAM.DELETE.NODE",
    "$JS.API.STREAM.MSG.GET.NODE",
    "$JS.API.CONSUMER.CREATE.NODE.mine",
    "$SYS.REQ.SERVER.PING",
)
MAY_NOT_HEAR = (
    ">",
    "skep.v1.>",
    subjects.command("node-2"),
    subjects.command("*"),
    subjects.submit("*"),
    subjects.STREAMS[subjects.ALLOC][0],
    subjects.logs("node-2"),
    subjects.outputs("node-2"),
    subjects.code("*", subjects.ANY_GATEWAY),
    subjects.SNAPSHOTS,
    "_INBOX.node-node-2.>",
    "$SYS.>",
)


@pytest.mark.parametrize("subject", MAY_NOT_SAY)
def test_a_node_cannot_publish_elsewhere(target: Target, subject: str) -> None:
    before = stored(target)
    (violation,) = violations(target, NODE, subject)
    assert subject.lower() in violation.lower()
    after = stored(target)
    assert {name: after[name] for name in after if name != subjects.NODE} == {
        name: before[name] for name in before if name != subjects.NODE
    }


@pytest.mark.parametrize("subject", MAY_NOT_HEAR)
def test_a_node_cannot_listen_to_others(target: Target, subject: str) -> None:
    (violation,) = violations(target, NODE, subject, listen=True)
    assert "subscription" in violation.lower()


JOINED = {
    "type": "node-joined",
    "node": "node-1",
    "identity": "thief",
    "incarnation": 1,
    "address": "127.0.0.1",
    "gpus": [],
    "cpus": 1,
    "memory": 1,
    "at": 1,
}
MEMBER = {"node": "node-1", "identity": "thief", "job": "{victim}", "attempt": 1, "at": 1}
LIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a node that joined for the 10**30th time": ("joined", {**JOINED, "incarnation": 10**30}),
    "a node that joined for the 2**62th time": ("joined", {**JOINED, "incarnation": 2**62}),
    "a device beyond all counting": (
        "joined",
        {**JOINED, "gpus": [{"index": 2**31, "uuid": "x", "type": "cpu", "memory": 1}]},
    ),
    "a negative device": (
        "joined",
        {**JOINED, "gpus": [{"index": -1, "uuid": "x", "type": "cpu", "memory": 1}]},
    ),
    "memory of 2**70 bytes": ("joined", {**JOINED, "memory": 2**70}),
    "a join from the year 2262": ("joined", {**JOINED, "at": 2**63}),
    "a join in the name of node-2": ("joined", {**JOINED, "node": "node-2"}),
    "the end of the other tenant's job": (
        "exited",
        {**MEMBER, "type": "member-exited", "outcome": "succeeded"},
    ),
    "the end of it, for node-2": (
        "exited",
        {**MEMBER, "node": "node-2", "type": "member-exited", "outcome": "failed"},
    ),
    "the start of a job of 20 digits": (
        "started",
        {**MEMBER, "type": "member-started", "job": "j99999999999999999999"},
    ),
    "a mini-batch of a job of 20 digits": (
        "stepped",
        {**MEMBER, "type": "member-stepped", "job": "j99999999999999999999"},
    ),
    "a change nobody ordered": (
        "changed",
        {**MEMBER, "type": "member-changed", "order": 2**63, "manner": "boundary"},
    ),
    "abilities without end": (
        "known",
        {**MEMBER, "type": "member-known", "tier": "cooperative", "can": ["x" * 9_000] * 9},
    ),
    "an unknown event": ("joined", {"type": "node-promoted"}),
    "no event": ("joined", {}),
}


@pytest.mark.parametrize("what", LIES)
def test_a_lie_of_one_node_changes_no_other(target: Target, what: str) -> None:
    event, message = LIES[what]
    payload = json.dumps(message).replace("{victim}", target.victim).encode()

    async def main() -> None:
        async with bare_client(target.cluster.about, NODE) as client:
            await client.publish(subjects.node_event("node-1", event), payload)

    asyncio.run(main())
    assert target.cluster.ended(target.submit("vision", ["true"]))["state"] == "succeeded"
    assert target.cluster.get(f"/v1/jobs/{target.victim}")["state"] == "running"


SOFT = {
    "a heartbeat for node-2": (
        subjects.heartbeat("node-1"),
        {"type": "heartbeat", "node": "node-2", "identity": "x", "at": 1},
    ),
    "a heartbeat of the far future": (
        subjects.heartbeat("node-1"),
        {"type": "heartbeat", "node": "node-1", "identity": "x", "at": 2**70},
    ),
    "a report for node-2": (
        subjects.report("node-1"),
        {"type": "node-report", "node": "node-2", "at": 1, "jobs": []},
    ),
    "a report that is no number": (
        subjects.report("node-1"),
        {"type": "node-report", "node": "node-1", "at": 1e400, "jobs": "x"},
    ),
    "a span from beyond 2**63": (
        subjects.span(NODE),
        {"trace": "0" * 32, "span": "0" * 16, "name": "x", "start_ns": 2**63, "end_ns": 2**64},
    ),
    "a span of a megabyte's half": (subjects.span(NODE), {"name": "x" * 500_000}),
}


@pytest.mark.parametrize("what", SOFT)
def test_a_lie_that_no_stream_keeps_ends_no_service(target: Target, what: str) -> None:
    subject, message = SOFT[what]

    async def main() -> None:
        async with bare_client(target.cluster.about, NODE) as client:
            await client.client.publish(subject, json.dumps(message).encode())
            await client.settle()
            assert client.violations == []

    asyncio.run(main())
    assert target.cluster.ended(target.submit("nlp", ["true"]))["state"] == "succeeded"


def test_the_attempts_left_nothing_behind(target: Target) -> None:
    target.check_intact()
