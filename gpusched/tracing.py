"""Traces of this process, if OpenTelemetry's standard variables request them; otherwise nothing is imported.

Attributes never contain commands, environments, secrets, or addresses with ids."""

import logging
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusched.otel import Traces

logger = logging.getLogger(__name__)
Attributes = Mapping[str, str | int | float | bool]
_OFF: AbstractContextManager[bool] = nullcontext(False)
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"

_traces: "Traces | None" = None
_started_in: int | None = None  # the process; a fork of it starts anew


def start(service: str) -> None:
    """Begin to trace this process as `service`, if the variables request it. Safe to repeat. A forked process calls it
    again: the thread that sends spans does not survive a fork."""
    global _traces, _started_in
    if _started_in == os.getpid():
        return
    _started_in, _traces = os.getpid(), None
    if not (exporters := _exporters(os.environ)):
        return
    try:
        from gpusched.otel import Traces

        _traces = Traces(service, exporters)
    except ImportError as error:
        logger.error("OTEL_… request traces, but %s is not installed: pip install 'gpusched[tracing]'", error.name)
    except Exception as error:  # noqa: BLE001 - the SDK may raise anything; traces must not stop the traced process
        logger.error("traces are off: a variable OTEL_… is wrong: %s", error)


def load() -> None:
    """Import what `start` needs, once for all processes forked from this one."""
    if _exporters(os.environ):
        with suppress(Exception):  # `start` reports it
            import gpusched.otel  # noqa: F401


def stop() -> None:
    """Send the remaining spans, for a moment at most, and stop tracing."""
    global _traces, _started_in
    traces, _traces, _started_in = _traces, None, None
    if traces is not None:
        traces.stop()


def is_on() -> bool:
    return _traces is not None


def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    request: Mapping[str, str] | None = None,
) -> AbstractContextManager[bool]:
    """Trace the block as a span; the context is True if it is traced. `request`: the headers of the block's HTTP
    request, whose trace it continues."""
    return _OFF if _traces is None else _traces.span(name, attributes, request)


def describe(attributes: Attributes, *, name: str = "", is_error: bool = False) -> None:
    """Add attributes to the current span, and rename it."""
    if _traces is not None:
        _traces.describe(attributes, name, is_error)


def record(
    name: str, began_at: float, ended_at: float, attributes: Attributes, *, traceparent: str = "", error: str = ""
) -> None:
    """Record an ended span, from one time.time() to another, as a child of `traceparent`."""
    if _traces is not None:
        _traces.record(name, began_at, ended_at, attributes, traceparent, error)


def traceparent() -> str:
    """Return the W3C trace context of the current span; empty without one."""
    return "" if _traces is None else _traces.traceparent()


def checked(text: str) -> str:
    """Return a W3C traceparent from outside, or an empty string if it is invalid."""
    return text if _TRACEPARENT.fullmatch(text) else ""


def _exporters(environ: Mapping[str, str]) -> list[str]:
    """Return the exporters that the variables request: none unless OTEL_TRACES_EXPORTER or an OTLP endpoint is set."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    implied = "otlp" if any(environ.get(name) for name in _ENDPOINTS) else "none"
    names = [name.strip() for name in (environ.get("OTEL_TRACES_EXPORTER") or implied).split(",")]
    if "none" in names:
        return []
    if unknown := set(names) - {"otlp", "console"}:
        logger.error("traces are off: OTEL_TRACES_EXPORTER=%s is not otlp, console or none", ",".join(sorted(unknown)))
        return []
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), PROTOCOL)
    if "otlp" in names and protocol != PROTOCOL:
        logger.error("traces are off: OTEL_EXPORTER_OTLP_PROTOCOL=%s is not %s", protocol, PROTOCOL)
        return []
    return names
