"""A stand-in for an OpenTelemetry collector: takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

PATH = "/v1/traces"


class Span(NamedTuple):
    """A span as it came over the wire; ids in hex."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


class Collector:
    """`url` is what OTEL_EXPORTER_OTLP_ENDPOINT names; `spans` grows as they come."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.refused: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                kind = self.headers["Content-Type"]
                if self.path != PATH or kind != "application/x-protobuf":
                    collector.refused.append(f"{self.path} {kind}")
                    self.send_error(404)
                    return
                packed = self.headers.get("Content-Encoding") == "gzip"
                collector.take(gzip.decompress(body) if packed else body)
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, body: bytes) -> None:
        """Decode one request and keep its spans."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = _values(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [
                    Span(
                        about["service.name"],
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        _values(span.attributes),
                    )
                    for span in scope.spans
                ]


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Yield a collector that listens on loopback."""
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        thread.join()
        collector.server.server_close()
