"""Which decision becomes which span and log line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from skep.machines.agent import PublishEvent, StartRank
from skep.machines.base import Call, Effect, Record, Send, Tick
from skep.units import Instant
from skep.wire.codec import Facts, Unreadable, read
from skep.wire.commands import BindJob, RankPlan
from skep.wire.facts import End, JobEnded, JobQueued, JobWaits, Refused
from skep.wire.node import MemberStarted
from skep.wire.reasons import Reason
from skep.wire.reports import Heartbeat
from skep.wire.spec import JobSpec
from skep_services.tracing import Decided, Decisions, spans

TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
QUEUED = JobQueued(
    job="j1",
    spec=JobSpec(name="n", vc="v", command=("true",)),
    submitted_at=Instant(1),
    trace=TRACE,
)
ENDED = JobEnded(
    job="j1", end=End.FAILED, why=Reason.EXITED_NONZERO, attempts=1, at=Instant(2), trace=TRACE
)
BIND = BindJob(
    order=3,
    epoch=1,
    settled=0,
    node="n1",
    identity="i",
    job="j1",
    attempt=2,
    name="n",
    vc="v",
    argv=("true",),
    ranks=(RankPlan(rank=0, local_rank=0, devices=(0,)),),
    world=1,
    node_rank=0,
    nodes=1,
    master_address="127.0.0.1",
    master_port=1,
    trace=TRACE,
)
STARTED = MemberStarted(node="n1", identity="i", job="j1", attempt=2, at=Instant(5), trace=TRACE)


class Warned:
    """A logger that keeps what it is warned of."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def warning(self, event: str, **more: Any) -> None:
        self.kept.append({"event": event, **more})


class Spans:
    """A tracer that keeps what it is told."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str]] = []
        self.roots: list[tuple[str, str, int, int]] = []
        self.flushes = 0

    def root(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        assert attributes == {"job": "j1", "vc": "nlp"}
        self.roots.append((name, trace, start_ns, end_ns))

    def span(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        assert start_ns <= end_ns
        assert attributes["job"] == "j1"
        self.kept.append((name, trace))

    async def flush(self) -> None:
        self.flushes += 1


def test_facts_commands_and_calls_become_spans_of_their_job() -> None:
    effects: list[Effect] = [
        Record(QUEUED),
        Record(JobWaits(job="j1", why=Reason.WAITS_FOR_GPUS)),
        Send("skep.v1.cmd.n1", BIND),
        Call(StartRank("j1.2.0", BIND, BIND.ranks[0])),
        Call(PublishEvent(1, "s", "k", STARTED)),
    ]
    found = list(spans("allocator", Tick(), effects))
    assert [name for name, _, _ in found] == [
        "allocator JobQueued",
        "allocator BindJob",
        "allocator StartRank",
        "allocator PublishEvent",
    ]
    assert {trace for _, trace, _ in found} == {TRACE}
    assert found[1][2] == {"job": "j1", "attempt": 2, "node": "n1", "order": 3}


def test_the_advisor_has_spans_though_it_decides_nothing_durable() -> None:
    event = Facts(service="allocator", at=Instant(1), facts=(QUEUED, ENDED))
    names = [name for name, _, _ in spans("advisor", event, [])]
    assert names == ["advisor Ranked", "advisor Learned"]
    assert list(spans("admission", event, [])) == []


@pytest.mark.parametrize("brought", ["", TRACE])
def test_the_root_span_of_a_trace_made_here_is_told_once(brought: str) -> None:
    headers = {"traceparent": brought} if brought else {}
    event = read("skep.v1.submit.nlp", b"{}", headers, 1, Instant(5))
    refused = Refused(job="j1", vc="nlp", problems=(), submitted_at=Instant(5), trace=event.trace)
    lines: list[Decided] = []
    kept = Spans()
    observer = Decisions("admission", Warned(), lines.extend, kept)
    observer.decided(event, [Record(refused)], Instant(7), Instant(9))
    observer.decided(event, [], Instant(17), Instant(19))  # Read again after a restart.
    assert kept.kept == [("admission Refused", event.trace)]
    assert kept.roots == ([] if brought else [("submit", event.trace, 5, 9)])


@pytest.mark.asyncio
async def test_one_line_and_the_spans_of_each_decision() -> None:
    lines: list[Decided] = []
    warned, kept = Warned(), Spans()
    observer = Decisions("allocator", warned, lines.extend, kept)
    observer.decided(Tick(), [Record(ENDED)], Instant(1), Instant(1_500_000_000_000_000_000))
    beat = Heartbeat(node="n1", identity="i", at=Instant(1))
    observer.decided(Tick(), [Send("s", beat)], Instant(1), Instant(2))
    observer.decided(Tick(), [], Instant(1), Instant(2))
    observer.decided(
        beat, [Record(JobWaits(job="", why=Reason.WAITS_BEHIND))], Instant(1), Instant(1)
    )
    observer.decided(Unreadable(subject="s", text="t"), [], Instant(1), Instant(2))
    assert warned.kept == [{"event": "unreadable", "subject": "s", "text": "t"}]
    assert lines == [], "written with the step they belong to"
    await observer.flush()
    assert [json.loads(msgspec.json.encode(line)) for line in lines] == [
        {
            "service": "allocator",
            "took": "Tick",
            "out": ["JobEnded"],
            "job": "j1",
            "trace": "a" * 32,
            "timestamp": "2017-07-14T02:40:00.000000Z",
            "event": "decided",
            "level": "info",
        },
        {
            "service": "allocator",
            "took": "Heartbeat",
            "out": ["JobWaits"],
            "job": "",
            "trace": "",
            "timestamp": "1970-01-01T00:00:00.000000Z",
            "event": "decided",
            "level": "info",
        },
    ]
    assert kept.kept == [("allocator JobEnded", TRACE)]
    assert kept.flushes == 1
