"""A small HTTP server in a thread, with scripted answers; it records its requests."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    client_port: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """An answer. `status` 0: close the connection without an answer."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[Request], Answer] | Answer


class FakeServer:
    """`routes` maps ("GET", "/api/v1/jobs/42") to an Answer or a function; `default` is for all others."""

    def __init__(self, port: int = 0) -> None:
        self.routes: dict[tuple[str, str], Route] = {}
        self.default: Route = problem(404, "not_found", "there is no such thing, or you may not see it", "check the id")
        self.requests: list[Request] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def on(self, method: str, path: str, route: Route) -> None:
        self.routes[method, f"/api/v1{path}"] = route

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        if request.headers.get("accept") not in ("application/json", "*/*"):
            # As the real server does, even for plain text.
            return problem(406, "not_acceptable", "Could not satisfy the request Accept header.")
        route = self.routes.get((request.method, request.path), self.default)
        return route if isinstance(route, Answer) else route(request)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            query, port = dict(parse_qsl(parts.query)), self.client_address[1]
            answer = server.answer(Request(self.command, parts.path, query, headers, body, port))
            if answer.status == 0:
                self.close_connection = True
                return
            content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(content)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 names of the standard library

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    return Handler


def problem(status: int, code: str, detail: str, next_step: str = "", **more: Any) -> Answer:
    body = {"title": "Error", "status": status, "detail": detail, "code": code, "next_step": next_step, **more}
    return Answer(status, body, {"Content-Type": "application/problem+json"})


def sequence(*answers: Answer) -> Callable[[Request], Answer]:
    """Return the answers one after the other; the last one repeatedly."""
    remaining = list(answers)
    return lambda request: remaining.pop(0) if len(remaining) > 1 else remaining[0]


def job(job_id: int = 42, state: str = "pending", **more: Any) -> dict[str, Any]:
    """Return a job as the API represents it."""
    reason = {
        "code": "capacity",
        "sentence": "waits for 4 GPUs: 0 of 8 suitable are free",
        "next_step": "nothing to do",
        "evidence": {"requested": 4},
        "since": "2030-01-01T10:00:00Z",
    }
    return {
        "id": job_id,
        "state": state,
        "tenant": "nlp",
        "user": "ada",
        "name": "train",
        "reason": reason if state == "pending" else None,
        "priority": 500,
        "gpu_count": 4,
        "command": ["python", "train.py"],
        "submitted_at": "2030-01-01T10:00:00Z",
        "requeue": True,
        "exit_code": None,
        "signal": None,
        "nodes": [],
        "attempt": 0 if state == "pending" else 1,
        "a_field_of_a_newer_server": {"x": 1},
        **more,
    }


def acted(status: str = "submitted", **more: Any) -> Answer:
    fields = job(**more)
    code = 201 if status == "submitted" else 200
    return Answer(
        code, {"job_id": fields["id"], "status": status, "message": f"job {fields['id']} {status}", "job": fields}
    )


def log(data: bytes, offset: int = 0, size: int | None = None, *, complete: bool = False, attempt: int = 1) -> Answer:
    end = offset + len(data)
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "X-Log-Offset": str(offset),
        "X-Log-Next-Offset": str(end),
        "X-Log-Size": str(end if size is None else size),
        "X-Log-Complete": "true" if complete else "false",
        "X-Log-Attempt": str(attempt),
    }
    return Answer(200, data, headers)


class GrowingLog:
    """The log route of a job; one more piece appears with each request that has read everything so far."""

    def __init__(self, *pieces: bytes, attempt: int = 1) -> None:
        self.pieces, self.data, self.attempt = list(pieces), b"", attempt

    def __call__(self, request: Request) -> Answer:
        offset = int(request.query.get("offset", 0))
        if offset == len(self.data) and self.pieces:
            self.data += self.pieces.pop(0)
        return log(self.data[offset:], offset, len(self.data), complete=not self.pieces, attempt=self.attempt)
