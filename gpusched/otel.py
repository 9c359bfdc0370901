"""The OpenTelemetry SDK for gpusched.tracing; imported only in processes that trace."""

import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.util import Finalize

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gpusched import __version__
from gpusched.tracing import Attributes

logger = logging.getLogger(__name__)
# A collector that does not answer must not keep a process from exiting.
EXIT_SECONDS = 2.0
_w3c = TraceContextTextMapPropagator()


class Traces:
    """The tracer of this process, and the threads that send its spans."""

    def __init__(self, service: str, exporters: Sequence[str]) -> None:
        self._provider = TracerProvider(resource=_resource(service), shutdown_on_exit=False)
        for name in exporters:
            exporter = _Reported(OTLPSpanExporter()) if name == "otlp" else ConsoleSpanExporter()
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("gpusched", __version__)
        self._ends, self._has_ended = threading.Event(), threading.Event()
        # Start the thread at once: a process that exits can no longer start one.
        threading.Thread(target=self._shut_down, name="traces-end", daemon=True).start()
        Finalize(None, self.stop, exitpriority=0)  # also in a fork, where atexit is not run

    def stop(self) -> None:
        self._ends.set()
        self._has_ended.wait(EXIT_SECONDS)

    def _shut_down(self) -> None:
        self._ends.wait()
        self._provider.shutdown()
        self._has_ended.set()

    @contextmanager
    def span(self, name: str, attributes: Attributes | None, request: Mapping[str, str] | None) -> Iterator[bool]:
        """Trace a block. Errors are recorded by their type alone: a message may contain values."""
        kind, context = SpanKind.INTERNAL, None
        if request is not None:
            kind, context = SpanKind.SERVER, propagate.extract(request, Context())
        with self._tracer.start_as_current_span(
            name, context, kind, attributes, record_exception=False, set_status_on_exception=False
        ) as current:
            try:
                yield True
            except BaseException as error:
                current.set_attribute("error.type", type(error).__qualname__)
                current.set_status(StatusCode.ERROR)
                raise

    def describe(self, attributes: Attributes, name: str, is_error: bool) -> None:
        current = trace.get_current_span()
        current.set_attributes(attributes)
        if name:
            current.update_name(name)
        if is_error:
            current.set_status(StatusCode.ERROR)

    def record(
        self, name: str, began_at: float, ended_at: float, attributes: Attributes, traceparent: str, error: str
    ) -> None:
        context = _w3c.extract({"traceparent": traceparent}, Context())
        over = self._tracer.start_span(name, context, attributes=attributes, start_time=int(began_at * 1e9))
        if error:
            over.set_attribute("error.type", error)
            over.set_status(StatusCode.ERROR)
        over.end(int(ended_at * 1e9))

    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _w3c.inject(carrier)
        return carrier.get("traceparent", "")


def _resource(service: str) -> Resource:
    """Describe this process, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES do."""
    defaults = {
        "service.name": service,
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
    }
    return Resource.create({**defaults, **OTELResourceDetector().detect().attributes})


class _Reported(SpanExporter):
    """Log once that the collector accepts no spans, and once that it does again."""

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self._exporter = exporter
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            logger.warning("the collector accepts no traces, dropping them until it does: %s", _reason.text)
        if self._is_failing and not is_failing:
            logger.warning("the collector accepts traces again")
        self._is_failing = is_failing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class _Reason(logging.Filter):
    """Keep the exporter's latest message instead of logging each one."""

    text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self.text = record.getMessage()[:300]
        return False


class _WithoutValues(logging.Filter):
    """Hide the part of a malformed OTEL_EXPORTER_OTLP_HEADERS that the SDK repeats: it may contain a token."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.args = ("(not shown)",) if record.args else ()
        return True


class _Once(logging.Filter):
    """Log each message of the span queue only once, such as that it is full."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: set[object] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        is_new = record.msg not in self._logged
        self._logged.add(record.msg)
        return is_new


_reason = _Reason()
logging.getLogger(OTLPSpanExporter.__module__).addFilter(_reason)
logging.getLogger("opentelemetry.sdk._shared_internal").addFilter(_Once())
logging.getLogger("opentelemetry.util.re").addFilter(_WithoutValues())
