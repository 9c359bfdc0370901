"""The cost of tracing for a request and a cycle: while it is off, and while it sends to a collector on this machine."""

import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.report import arguments, publish


class _Collector(BaseHTTPRequestHandler):
    """Accepts spans, and drops them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    options = arguments(__doc__ or "", repeat=20_000)
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpusched.settings")
    import django

    django.setup()
    from gpusched import tracing

    tracing.start("benchmark")
    off = _microseconds(options.repeat)
    loaded = len([name for name in sys.modules if name.startswith("opentelemetry")])
    collector = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.server_port}"
    tracing.stop()
    began = time.perf_counter()
    tracing.start("benchmark")
    begin_ms = (time.perf_counter() - began) * 1000
    on = _microseconds(options.repeat // 10)
    tracing.stop()
    figures: dict[str, float | int | str] = {f"off_{name}_us": value for name, value in off.items()}
    figures |= {"off_opentelemetry_modules": loaded}
    figures |= {f"on_{name}_us": value for name, value in on.items()} | {"on_begin_ms": begin_ms}
    publish(figures, options.json, failures=loaded)


def _microseconds(repeat: int) -> dict[str, float]:
    """Return the cost of each call site of a request, a submit's context and a cycle, without the traced work."""
    from django.http import HttpResponse
    from django.test import RequestFactory

    from gpusched import tracing
    from gpusched.lib import request_id
    from scheduling.cycle.run import _Clock

    request, response = RequestFactory().get("/api/v1/health"), HttpResponse()

    def serve() -> None:
        request_id._caller.set(request.headers.get("traceparent", ""))
        with tracing.span("HTTP", request=request.headers) as is_traced:
            if is_traced:
                request_id._describe(request, response)

    def cycle() -> None:
        clock = _Clock()
        with tracing.span("cycle", {"gpusched.trigger": "tick"}):
            for phase in ("sweep", "snapshot", "plan", "commit"):
                with clock.phase(phase):
                    pass
            tracing.describe({"gpusched.placed": 1})

    return {
        "request": _each(serve, repeat),
        "context_of_a_submit": _each(request_id.traceparent, repeat),
        "cycle": _each(cycle, repeat),
    }


def _each(work: Callable[[], object], repeat: int) -> float:
    """Return the microseconds of one call: the best of five rounds, as the others shared the processor."""
    rounds = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(repeat // 5):
            work()
        rounds.append((time.perf_counter() - began) / (repeat // 5) * 1e6)
    return min(rounds)


if __name__ == "__main__":
    main()
