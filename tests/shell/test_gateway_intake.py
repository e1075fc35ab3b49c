"""What the gateway cannot take in is passed over, counted and reported; the rest is taken in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.wire import codec, subjects
from skep.wire.facts import NodeAdded, NodeDrained
from skep.wire.reasons import Reason
from skep.wire.search_facts import SearchTrialOver, TrialEnd
from skep.wire.trials import Kind, TrialBegun
from skep_services.ports import Delivery
from tests.gateway_kit import House, opened, submitted
from tests.kit import T0, joined

pytestmark = pytest.mark.asyncio

SPAN = {
    "trace_id": "ab" * 16,
    "span_id": "cd" * 8,
    "name": "x",
    "service": "s",
    "start_ns": 1,
    "end_ns": 2,
}


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        yield made


def publish(house: House, subject: str, body: Any) -> None:
    payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
    broker = house.cluster.broker
    stored = sum(len(broker.stream(name).messages) for name in subjects.STREAMS)
    broker.store(subject, payload, {subjects.KEY_HEADER: f"hostile-{stored}"})


def recorded(house: House, service: str, *facts: Any) -> None:
    house.cluster.store_record(f"{subjects.PREFIX}.fact.{service}", facts, T0)


async def metric(house: House, name: str) -> float:
    async with house.session.get(f"{house.base}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    (value,) = [line.split()[-1] for line in lines if line.startswith(f"{name} ")]
    return float(value)


async def test_hostile_words_of_a_node_change_nothing_over_restarts(house: House) -> None:
    await house.with_nodes()
    join = msgspec.to_builtins(joined("node-1"))
    step = {
        "type": "member-stepped",
        "node": "node-1",
        "identity": "id-node-1",
        "job": "j1",
        "attempt": 1,
        "at": 1,
    }
    hostile = [
        {**join, "incarnation": 10**30},
        {**join, "gpus": [{"index": 2**31, "type": "cpu"}]},
        {**step, "job": "j99999999999999999999"},
        {**step, "job": "j9223372036854775808"},
        {**step, "at": 2**63},
        b"\xff",
        b"[" * 100_000,
    ]
    for body in hostile:
        publish(house, subjects.node_event("node-1", "any"), body)
    await house.caught_up()
    for _ in range(2):
        fold = house.gateway.indexer.fold
        assert fold.state.nodes["node-1"].joined == joined("node-1", 2)
        assert fold.heard["node-1"].heard_incarnation == 1
        await submitted(house)
        await house.restart()
        await house.caught_up()
    assert house.gateway.indexer.passed_over == 0


async def test_spans_out_of_bounds_are_dropped_and_counted(house: House) -> None:
    indexer = house.gateway.indexer
    for start in (2**63, -1, 1e400, 2**62):
        body = msgspec.json.encode([{**SPAN, "start_ns": 7}]).replace(b"7", str(start).encode())
        await indexer.deliver_spans(Delivery(subject="skep.v1.span.agent", payload=body))
    await indexer.settle()
    assert indexer.spans_dropped == 3
    assert len(await indexer.spans("ab" * 16)) == 1


async def test_a_fact_that_cannot_be_taken_in_costs_that_fact_alone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.with_nodes()
    fold = house.gateway.indexer.fold
    taken = fold.apply

    def broken(event: Any, at: Any) -> None:
        if isinstance(event, codec.Facts) and isinstance(event.facts[0], NodeAdded):
            raise KeyError("a bug")
        taken(event, at)

    monkeypatch.setattr(fold, "apply", broken)
    recorded(
        house,
        "allocator",
        NodeAdded(joined=joined("node-2")),
        NodeDrained(node="node-1", drain=True),
    )
    await house.caught_up()
    assert fold.state.nodes["node-1"].drained
    assert await metric(house, "skep_passed_over_total") == 1
    assert "KeyError: 'a bug'" in house.gateway.indexer.passed_latest
    assert "ALLOC" in house.gateway.indexer.passed_latest


async def test_a_row_that_sqlite_cannot_hold_is_left_out(house: House) -> None:
    await house.with_nodes()
    begun = TrialBegun(
        trial=2**63,
        kind=Kind.PACK,
        vc="nlp",
        jobs=(),
        families=(),
        at=T0,
        until=T0,
        needed_milli=0,
        why=Reason.REQUESTED,
    )
    recorded(house, "allocator", begun, NodeDrained(node="node-1", drain=True))
    await house.caught_up()
    assert house.gateway.indexer.passed_over == 1
    assert "OverflowError" in house.gateway.indexer.passed_latest
    await house.restart()
    assert house.gateway.indexer.fold.state.nodes["node-1"].drained
    await submitted(house)


async def test_a_fact_of_a_search_that_is_not_known_is_passed_over(house: House) -> None:
    over = SearchTrialOver(search="s7", trial=1, end=TrialEnd.DONE, why=Reason.REQUESTED, at=T0)
    recorded(house, "searches", over)
    await house.with_nodes()
    assert house.gateway.indexer.passed_over == 1
    assert (await house.op.get("/v1/searches"))["searches"] == []


async def test_what_is_unreadable_is_counted(house: House) -> None:
    publish(house, subjects.node_event("node-1", "any"), b"{")
    publish(house, subjects.admin("vcs"), {"type": "set-vcs", "vcs": {"a": {"gpus": 2**60}}})
    await house.caught_up()
    assert await metric(house, "skep_unreadable_total") == 2
