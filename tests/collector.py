"""An OpenTelemetry collector for tests: receives OTLP over HTTP, and decodes it with the official messages."""

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpusched import tracing


@dataclass(frozen=True)
class Span:
    """A span as it was received."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    attributes: Mapping[str, Any]
    is_error: bool
    began_at: float
    ended_at: float

    @property
    def context(self) -> str:
        """Its traceparent, without the flags."""
        return f"00-{self.trace_id}-{self.span_id}"


class Collector:
    """`with Collector() as collector`: `spans` are those received so far; `environment` sends them here. `status`: what
    it answers; `release` must be set for it to answer at all."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.bodies: list[bytes] = []
        self.status = 200
        self.release = threading.Event()
        self.release.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.release.wait()
                if collector.status == 200 and self.path == "/v1/traces":
                    is_packed = self.headers["Content-Encoding"] == "gzip"
                    collector.take(gzip.decompress(body) if is_packed else body)
                self.send_response(collector.status if self.path == "/v1/traces" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _values(part.resource.attributes)["service.name"]
            self.spans += [_span(service, span) for scope in part.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Span]:
        return [span for span in list(self.spans) if span.name == name]


def _span(service: str, span: Any) -> Span:
    return Span(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        attributes=_values(span.attributes),
        is_error=span.status.code == 2,
        began_at=span.start_time_unix_nano / 1e9,
        ended_at=span.end_time_unix_nano / 1e9,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def traced(collector: Collector, monkeypatch: pytest.MonkeyPatch, **variables: str) -> Iterator[None]:
    """Trace this process; at the end of the block the collector has all spans."""
    for name, value in {**collector.environment, **variables}.items():
        monkeypatch.setenv(name, value)
    tracing.stop()
    tracing.start("gpusched-test")
    try:
        yield
    finally:
        tracing.stop()
