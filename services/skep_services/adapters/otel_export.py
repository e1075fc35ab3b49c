"""Spans through the OpenTelemetry SDK, by OTLP: configured by its own OTEL_* variables."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from skep_services.adapters.stored_span import SAMPLED, StoredSpan


class _SameIds(IdGenerator):
    """Gives the SDK's span the ids it has in the cluster's own store."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


class _ExporterHere(trace_exporter.OTLPSpanExporter):
    """Exports from the process that made it alone: a copy has neither its sockets nor its locks."""

    def __init__(self) -> None:
        super().__init__()
        self._made_in = os.getpid()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if os.getpid() != self._made_in:
            return SpanExportResult.FAILURE
        return super().export(spans)

    def shutdown(self) -> None:
        if os.getpid() == self._made_in:
            super().shutdown()  # type: ignore[no-untyped-call]


class OtlpExport:
    """Repeats finished spans to the SDK, which samples and exports them.

    The SDK starts its thread anew in every copy of this process (`skep_services.what_if`): there
    it is stopped at once.
    """

    def __init__(self, service: str) -> None:
        """Start the exporter's thread."""
        self._ids = _SameIds()
        resource = Resource.create({"service.name": f"skep-{service}"})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids)
        self._provider.add_span_processor(BatchSpanProcessor(_ExporterHere()))
        self._tracer = self._provider.get_tracer("skep")
        # Behind the SDK's own, which starts the thread: they are called in the order of their
        # registration, and stay registered.
        this = weakref.ref(self._provider)

        def stop_in_copy() -> None:
            provider = this()
            if provider is not None:
                provider.shutdown()

        os.register_at_fork(after_in_child=stop_in_copy)

    def export(self, span: StoredSpan) -> None:
        """Hand a finished span to the SDK, which sends it in its own time."""
        self._ids.trace_id, self._ids.span_id = int(span.trace_id, 16), int(span.span_id, 16)
        parent = Context()
        if span.parent_id:
            flags = TraceFlags(SAMPLED)
            above = SpanContext(self._ids.trace_id, int(span.parent_id, 16), True, flags)
            parent = otel.set_span_in_context(NonRecordingSpan(above))
        started = self._tracer.start_span(
            span.name, parent, start_time=span.start_ns, attributes=span.attributes
        )
        started.end(span.end_ns)

    def close(self) -> None:
        """Export what is left and stop the thread."""
        self._provider.shutdown()
