"""Spans through the OpenTelemetry SDK: to the cluster's own store, and by OTLP where configured."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from skep.wire import subjects
from skep_services.ports import Bus

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
GATHERED_MAX = 2_000
"""Spans held between two flushes; a flush follows every batch of decisions, so this is never
reached unless the bus is away, and then the oldest go."""
FLUSH_MAX = 500
"""Spans in one message: about 200 KiB."""


class StoredSpan(msgspec.Struct, frozen=True):
    """One finished span as the gateway keeps it; ids in hex, times in wall-clock ns."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


class _Gather(SpanProcessor):
    """Keeps finished spans until they are flushed onto the bus."""

    def __init__(self, service: str) -> None:
        self.service = service
        self.spans: list[StoredSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        context, parent = span.get_span_context(), span.parent
        if context is None or span.start_time is None or span.end_time is None:
            return
        self.spans.append(
            StoredSpan(
                trace_id=f"{context.trace_id:032x}",
                span_id=f"{context.span_id:016x}",
                parent_id=f"{parent.span_id:016x}" if parent else "",
                name=span.name,
                service=self.service,
                start_ns=span.start_time,
                end_ns=span.end_time,
                attributes=dict(span.attributes or {}),
            )
        )
        del self.spans[:-GATHERED_MAX]


class _Ids(RandomIdGenerator):
    """Random ids, but for a span whose ids were told to others before it began."""

    def __init__(self) -> None:
        self.given: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.given is None else self.given[0]

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self.given is None else self.given[1]


class OtelTracer:
    """The Tracer port over the SDK; spans also travel on `skep.v1.span.<identity>`."""

    def __init__(self, service: str, identity: str, bus: Bus) -> None:
        """Prepare to trace; the standard OTEL_* variables decide about OTLP."""
        ids = _Ids()
        resource = Resource.create({"service.name": f"skep-{service}"})
        provider = TracerProvider(resource=resource, id_generator=ids)
        self._gather = _Gather(service)
        provider.add_span_processor(self._gather)
        if any(os.environ.get(name) for name in ENDPOINTS):
            provider.add_span_processor(BatchSpanProcessor(_exporter()))
        self._provider, self._ids = provider, ids
        self._tracer = provider.get_tracer("skep")
        self._bus = bus
        self._subject = subjects.span(identity)

    def span(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        """Note one finished span below the one that `trace` names."""
        _, trace_id, span_id, flags = trace.split("-")
        context = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
        self._span(name, otel.set_span_in_context(NonRecordingSpan(context)),
                   start_ns, end_ns, attributes)  # fmt: skip

    def root(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        """Note the finished span that `trace` itself names, which has no parent."""
        _, trace_id, span_id, _ = trace.split("-")
        self._ids.given = (int(trace_id, 16), int(span_id, 16))
        self._span(name, Context(), start_ns, end_ns, attributes)
        self._ids.given = None

    def _span(
        self, name: str, parent: Context, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        kept = {key: value if isinstance(value, int) else str(value)
                for key, value in attributes.items()}  # fmt: skip
        self._tracer.start_span(name, parent, start_time=start_ns, attributes=kept).end(end_ns)

    async def flush(self) -> None:
        """Publish the spans that have gathered."""
        while self._gather.spans:
            spans: Sequence[StoredSpan] = self._gather.spans[:FLUSH_MAX]
            del self._gather.spans[:FLUSH_MAX]
            await self._bus.send(self._subject, msgspec.json.encode(spans), {})

    def close(self) -> None:
        """Export what is left and stop the exporter's thread."""
        self._provider.shutdown()


def _exporter() -> Any:
    """Return the OTLP exporter; imported here, as it costs memory only its users should pay."""
    from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415

    return trace_exporter.OTLPSpanExporter()
