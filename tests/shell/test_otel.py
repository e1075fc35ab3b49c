"""Spans: onto the bus always, and through the SDK by OTLP where the variables say so."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import Any

import pytest

from skep_services.adapters.memory import ManualClock, MemoryBroker, MemoryBus
from skep_services.adapters.otel import FLUSH_MAX, GATHERED_MAX, OtelTracer
from skep_services.ports import Delivery
from skep_services.what_if import end, fork
from tests.collector import collecting

TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
DEADLINE_S = 120.0


def _fail(error: Exception) -> None:
    raise error


@pytest.mark.asyncio
async def test_spans_travel_on_the_bus() -> None:
    broker = MemoryBroker(ManualClock())
    bus = MemoryBus(broker, "allocator", _fail)
    heard: asyncio.Queue[Delivery] = asyncio.Queue()
    await bus.listen("skep.v1.span.allocator", heard.put)
    tracer = OtelTracer("allocator", "allocator", bus)
    tracer.span("allocator JobBound", TRACE, 10, 30, {"job": "j1", "order": 4})
    await tracer.flush()
    message = await asyncio.wait_for(heard.get(), DEADLINE_S)
    (span,) = json.loads(message.payload)
    assert span.pop("span_id") != "b" * 16
    assert span == {
        "trace_id": "a" * 32,
        "parent_id": "b" * 16,
        "name": "allocator JobBound",
        "service": "allocator",
        "start_ns": 10,
        "end_ns": 30,
        "attributes": {"job": "j1", "order": 4},
    }
    tracer.root("submit", TRACE, 5, 40, {"job": "j1"})
    tracer.span("admission Admitted", TRACE, 10, 30, {"job": "j1"})
    await tracer.flush()
    message = await asyncio.wait_for(heard.get(), DEADLINE_S)
    root, child = json.loads(message.payload)
    assert (root["trace_id"], root["span_id"], root["parent_id"]) == ("a" * 32, "b" * 16, "")
    assert (root["start_ns"], root["end_ns"]) == (5, 40)
    assert (child["trace_id"], child["parent_id"]) == ("a" * 32, "b" * 16)
    assert child["span_id"] != "b" * 16
    tracer.span("not sampled", TRACE[:-2] + "00", 1, 2, {})
    for number in range(GATHERED_MAX + 5):
        tracer.span(f"s{number}", TRACE, 1, 2, {})
    await tracer.flush()
    sizes = []
    for _ in range(GATHERED_MAX // FLUSH_MAX):
        piece = await asyncio.wait_for(heard.get(), DEADLINE_S)
        sizes.append(len(json.loads(piece.payload)))
    assert sizes == [FLUSH_MAX] * (GATHERED_MAX // FLUSH_MAX), "bounded, the newest kept"
    tracer.close()
    await bus.close()


@pytest.mark.asyncio
async def test_otlp_where_the_variables_say_so(monkeypatch: Any) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        bus = MemoryBus(MemoryBroker(ManualClock()), "admission", _fail)
        tracer = OtelTracer("admission", "admission", bus)
        heard: asyncio.Queue[Delivery] = asyncio.Queue()
        await bus.listen("skep.v1.span.admission", heard.put)
        tracer.span("admission Admitted", TRACE, 10, 30, {"job": "j9"})
        await tracer.flush()
        message = await asyncio.wait_for(heard.get(), DEADLINE_S)
        (span,) = json.loads(message.payload)
        await asyncio.to_thread(tracer.close)
    (got,) = collector.spans
    assert (got.service, got.name) == ("skep-admission", "admission Admitted")
    assert (got.trace_id, got.parent_id, got.span_id) == ("a" * 32, "b" * 16, span["span_id"])
    assert (got.start_ns, got.end_ns, got.attributes) == (10, 30, {"job": "j9"})
    assert not collector.refused


@pytest.mark.asyncio
async def test_copies_of_the_process_export_nothing(monkeypatch: Any) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")

    def threads() -> bytes:
        tracer.span("of the copy", TRACE, 10, 30, {})
        names = [thread.name for thread in threading.enumerate()]
        tracer.close()
        return json.dumps([os.getpid(), names]).encode()

    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        bus = MemoryBus(MemoryBroker(ManualClock()), "allocator", _fail)
        tracer = OtelTracer("allocator", "allocator", bus)
        tracer.span("allocator JobBound", TRACE, 10, 30, {})
        pid, pipe = fork(threads)
        try:
            told = await asyncio.to_thread(os.read, pipe, 10_000)
        finally:
            os.close(pipe)
            end(pid)
        assert json.loads(told) == [pid, ["MainThread"]]
        tracer.span("allocator JobRan", TRACE, 40, 50, {})
        await asyncio.to_thread(tracer.close)
    assert [span.name for span in collector.spans] == ["allocator JobBound", "allocator JobRan"]
