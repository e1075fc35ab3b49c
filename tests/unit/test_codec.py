"""From deliveries to events: which subject carries what, and what is unreadable."""

from typing import Any

import msgspec
import pytest

from skep.units import Instant
from skep.wire import subjects
from skep.wire.admin import DrainNode, SetVcs
from skep.wire.advice import QueueAdvice
from skep.wire.cluster import VirtualCluster
from skep.wire.codec import (
    CancelRequest,
    Facts,
    Submission,
    Unreadable,
    encode,
    fresh_trace,
    is_trace,
    read,
)
from skep.wire.facts import EpochBegan, JobOver, NodeLost
from skep.wire.findings import Rates
from skep.wire.message import Message
from skep.wire.reports import NodeReport
from tests.kit import T0, TRACE, bind, exited, heartbeat, joined, started, stop


def test_a_submission() -> None:
    headers = {"Nats-Msg-Id": "k1", "Skep-Reply": "_INBOX.vc-nlp.x", "traceparent": TRACE}
    assert read("skep.v1.submit.nlp", b"anything", headers, 17, T0) == Submission(
        job="j17", vc="nlp", raw=b"anything", at=T0, key="k1", reply="_INBOX.vc-nlp.x", trace=TRACE
    )


@pytest.mark.parametrize("headers", [{}, {"traceparent": "garbage"}])
def test_a_submission_without_a_trace_gets_one_from_its_position(headers: dict[str, str]) -> None:
    event = read("skep.v1.submit.nlp", b"{}", headers, 17, T0)
    assert event == Submission(
        job="j17", vc="nlp", raw=b"{}", at=T0, trace=fresh_trace("nlp", 17, T0)
    )
    assert is_trace(event.trace)
    assert event == read("skep.v1.submit.nlp", b"{}", headers, 17, T0)
    assert event.trace != read("skep.v1.submit.nlp", b"{}", headers, 18, T0).trace


def test_a_cancellation() -> None:
    headers = {"Skep-Reply": "_INBOX.vc-nlp.x"}
    assert read("skep.v1.cancel.nlp", b'{"job":"j1"}', headers, 3, T0) == CancelRequest(
        vc="nlp", raw=b'{"job":"j1"}', at=T0, reply="_INBOX.vc-nlp.x"
    )


@pytest.mark.parametrize(
    "subject, message",
    [
        (subjects.admin("vcs"), SetVcs(vcs={"nlp": VirtualCluster(gpus=3)})),
        (subjects.admin("drain"), DrainNode(node="node-1")),
        (subjects.node_event("node-1", "joined"), joined()),
        (subjects.node_event("node-1", "started"), started("j1")),
        (subjects.node_event("node-1", "exited"), exited("j1")),
        (subjects.command("node-1"), bind()),
        (subjects.command("node-1"), stop()),
        (subjects.heartbeat("node-1"), heartbeat()),
        (subjects.report("node-1"), NodeReport(node="node-1", at=T0, jobs=())),
        (subjects.finding("rates"), Rates(at=T0, jobs=())),
        (subjects.ADVICE_QUEUE, QueueAdvice(at=T0, expires_at=T0, jobs=())),
    ],
)
def test_typed_messages(subject: str, message: Message) -> None:
    assert read(subject, encode(message), {}, 0, T0) == message


def record(*facts: Any) -> bytes:
    return msgspec.json.encode(
        {"v": 1, "n": 2, "prev": "", "epoch": 1, "at": T0, "pos": {}, "facts": facts}
    )


@pytest.mark.parametrize(
    "service, fact",
    [
        ("admission", JobOver(job="j1")),
        ("admission", EpochBegan(epoch=1, owner="x")),
        ("allocator", NodeLost(node="node-1")),
        ("allocator", EpochBegan(epoch=2, owner="y")),
    ],
)
def test_records_of_other_services_are_their_facts(service: str, fact: Any) -> None:
    assert read(f"skep.v1.fact.{service}", record(fact), {}, 9, T0) == Facts(
        service=service, at=T0, facts=(fact,)
    )


@pytest.mark.parametrize(
    "subject, payload, text",
    [
        ("other.subject", b"{}", "not one of our subjects"),
        ("skep.v1.health.gateway", b"{}", "nothing is read from `health`"),
        ("skep.v1.fact.gossip", b"{}", "no service 'gossip' writes facts"),
        ("skep.v1.fact.allocator", record(JobOver(job="j1")), "Invalid value 'job-over'"),
        ("skep.v1.fact.admission", b"\xff", "JSON is malformed"),
        ("skep.v1.fact.admission", b'{"x":' * 5_000, "maximum recursion depth"),
        ("skep.v1.admin.vcs", b"", "Input data was truncated"),
        ("skep.v1.admin.vcs", b'{"type":"set-vcs","vcs":{},"more":1}', "unknown field `more`"),
        (
            "skep.v1.admin.vcs",
            b'{"type":"set-vcs","vcs":{"nlp":{"gpus":4},"cv":{"gpus":-1}}}',
            "$.vcs.cv.gpus: `gpus` is -1; it must be 0 to 1000000 (bad-value)",
        ),
        (
            "skep.v1.admin.vcs",
            b'{"type":"set-vcs","vcs":{"cv":{"gpus":1,"jobs_max":-1}}}',
            "$.vcs.cv.jobs_max: `jobs_max` is -1; it must be 0 to 1000000 (bad-value)",
        ),
        (
            "skep.v1.admin.vcs",
            b'{"type":"set-vcs","vcs":{"a.b":{"gpus":1}}}',
            "$.vcs: 'a.b' is no name for a virtual cluster",
        ),
        ("skep.v1.admin.vcs", b'{"type":"fire-all"}', "Invalid value 'fire-all'"),
        ("skep.v1.node.node-1.joined", b"[" * 5_000, "Expected `object`, got `array`"),
        ("skep.v1.node.node-1.joined", b'{"x":' * 5_000, "maximum recursion depth"),
        ("skep.v1.heartbeat.node-1", b'{"type":"heartbeat"}', "missing required field `node`"),
        ("skep.v1.cmd.node-1", b"{}", "missing required field `type`"),
        ("skep.v1.report.node-1", b"\xff\xfe", "JSON is malformed"),
        ("skep.v1.finding.rates", b"null", "Expected `object`, got `null`"),
        ("skep.v1.advice.queue", b"7", "Expected `object`, got `int`"),
    ],
)
def test_garbage_is_unreadable_and_says_why(subject: str, payload: bytes, text: str) -> None:
    event = read(subject, payload, {}, 1, T0)
    assert isinstance(event, Unreadable)
    assert event.subject == subject
    assert text in event.text


@pytest.mark.parametrize(
    "subject, message",
    [
        (subjects.node_event("node-2", "exited"), exited("j1")),
        (subjects.heartbeat("node-2"), heartbeat()),
        (subjects.report("node-2"), NodeReport(node="node-1", at=T0, jobs=())),
        (subjects.command("node-2"), stop()),
    ],
)
def test_a_node_speaks_only_for_itself(subject: str, message: Message) -> None:
    assert read(subject, encode(message), {}, 1, T0) == Unreadable(
        subject=subject, text="speaks of node 'node-1' on the subject of 'node-2'"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        TRACE.upper(),
        TRACE[:-1],
        TRACE + "0",
        "01" + TRACE[2:],
        TRACE.replace("-", "_"),
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        TRACE.replace("a", "g"),
        TRACE + "-more",
    ],
)
def test_what_is_not_a_traceparent(text: str) -> None:
    assert not is_trace(text)


def test_traces() -> None:
    assert is_trace(TRACE)
    assert is_trace(fresh_trace("nlp", 1, Instant(0)))
