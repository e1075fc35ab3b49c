"""Spans of the decisions: to the cluster's own store, and by OTLP where configured.

What a span is and what it is called follow OpenTelemetry. The SDK makes and exports the spans of
those that have set an OTLP endpoint; for the cluster's own store they are made here, because a
span of the SDK costs as much as the decision that it describes.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from skep.wire import codec, subjects
from skep_services.adapters.stored_span import SAMPLED, StoredSpan
from skep_services.ports import Bus

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
GATHERED_MAX = 2_000
"""Spans held between two flushes; a flush follows every batch of decisions, so this is never
reached unless the bus is away, and then the oldest go."""
FLUSH_MAX = 500
"""Spans in one message: about 200 KiB."""


class OtelTracer:
    """The Tracer port: spans travel on `skep.v1.span.<identity>`, and by OTLP where configured.

    As in the SDK, a trace whose flags say that it is not sampled gets no spans.
    """

    def __init__(self, service: str, identity: str, bus: Bus) -> None:
        """Prepare to trace; the standard OTEL_* variables decide about OTLP."""
        configured = any(os.environ.get(name) for name in ENDPOINTS)
        self._otlp = _otlp(service) if configured else None
        self._service = service
        self._spans: deque[StoredSpan] = deque(maxlen=GATHERED_MAX)
        self._bus = bus
        self._subject = subjects.span(identity)

    def span(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        """Note one finished span below the one that `trace` names; see the port.

        Args:
            trace: A traceparent; one whose flags say that it is not sampled gets no spans.
            start_ns: When it began (wall-clock ns).
            end_ns: When it ended (wall-clock ns).
            attributes: What it is about; what is no whole number is kept as text.
        """
        _, trace_id, parent_id, flags = trace.split("-")
        if int(flags, 16) & SAMPLED:
            span_id = f"{random.getrandbits(64) or 1:016x}"
            self._keep((trace_id, span_id, parent_id), name, (start_ns, end_ns), attributes)

    def root(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        """Note the finished span that `trace` itself names, which has no parent; see the port.

        Args:
            trace: A traceparent that was made here.
            start_ns: When it began (wall-clock ns).
            end_ns: When it ended (wall-clock ns).
            attributes: What it is about; what is no whole number is kept as text.
        """
        _, trace_id, span_id, _ = trace.split("-")
        self._keep((trace_id, span_id, ""), name, (start_ns, end_ns), attributes)

    def _keep(
        self,
        ids: tuple[str, str, str],
        name: str,
        times: tuple[int, int],
        attributes: Mapping[str, Any],
    ) -> None:
        kept = {
            key: value if isinstance(value, int) else str(value)
            for key, value in attributes.items()
        }
        stored = StoredSpan(*ids, name, self._service, *times, kept)
        self._spans.append(stored)
        if self._otlp is not None:
            self._otlp.export(stored)

    async def flush(self) -> None:
        """Publish the spans that have gathered."""
        while self._spans:
            spans = [self._spans.popleft() for _ in range(min(FLUSH_MAX, len(self._spans)))]
            await self._bus.send(self._subject, codec.encode(spans), {})

    def close(self) -> None:
        """Export what is left and stop the exporter's thread."""
        if self._otlp is not None:
            self._otlp.close()


class Export(Protocol):
    """Where spans go beside the bus."""

    def export(self, span: StoredSpan) -> None:
        """Take a finished span, without waiting."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


def _otlp(service: str) -> Export:
    """Return the SDK's exporter; imported here, as it costs time and memory only its users pay."""
    from skep_services.adapters.otel_export import OtlpExport  # noqa: PLC0415

    return OtlpExport(service)
