"""The real web server refuses oversized bodies and invalid HTTP while they arrive (A55)."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.api.hostile import SHAPE
from tests.system.stack import Stack

pytestmark = pytest.mark.e2e
MIB = 1 << 20


def test_too_large_content_length_is_refused_before_the_body_is_sent(up: Stack) -> None:
    """Also with `Expect: 100-continue`, and with a smuggled second request."""
    for more in ("", "Expect: 100-continue\r\n"):
        with socket.create_connection(("127.0.0.1", up.port), timeout=30) as link:
            head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {17 * MIB}\r\n{more}\r\n"
            link.sendall(head.encode() + b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answers = received(link)
        assert answers.startswith(b"HTTP/1.1 413 "), answers[:100]
        assert answers.count(b"HTTP/1.1 ") == 1


def received(link: socket.socket) -> bytes:
    """Return what the server sends until it closes the connection."""
    return b"".join(iter(lambda: link.recv(65536), b""))


LONG = "x" * 17_000


HEADS = (
    (f"GET /api/v1/jobs?name={LONG} HTTP/1.1\r\nHost: h", 414, "address_too_long"),
    (f"GET /{LONG * 100}", 414, "address_too_long"),
    (f"POST /api/v1/jobs HTTP/1.1\r\nIdempotency-Key: {LONG}\r\nHost: h", 431, "headers_too_long"),
    (f"GET /{LONG[:9000]} HTTP/1.1\r\nX-A: {LONG[:9000]}\r\nHost: h", 431, "headers_too_long"),
    ("POST /api/v1/jobs HTTP/1.1\r\nContent-Length: -1\r\nHost: h", 400, "bad_request"),
    ("POST /api/v1/jobs HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2", 400, "bad_request"),
    ("GET nonsense", 400, "bad_request"),
    ("GET /health HTTP/1.1\r\nHost h", 400, "bad_request"),
)


def test_too_long_or_malformed_head_is_refused_as_a_problem(up: Stack) -> None:
    """Once: what a smuggler sends behind it is no request any more. All at the same time, as each connection is left
    open for a moment."""
    links = [socket.create_connection(("127.0.0.1", up.port), timeout=30) for _ in HEADS]
    for link, (head, _, _) in zip(links, HEADS, strict=True):
        link.sendall(f"{head}\r\n\r\nGET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    for link, (head, status, code) in zip(links, HEADS, strict=True):
        with link:
            answers = received(link)
        top, _, text = answers.partition(b"\r\n\r\n")
        assert (answers.count(b"HTTP/1.1 "), int(top.split()[1])) == (1, status), (head[:50], answers)
        told = json.loads(text)
        assert (set(told), told["code"], told["status"]) == (SHAPE, code, status), head[:50]
        assert told["next_step"] and f"X-Request-Id: {told['request_id']}".encode() in top


def test_chunked_body_is_refused_at_the_limit(up: Stack) -> None:
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(256):
            sent += MIB
            yield b"x" * MIB

    answer = httpx.post(f"{up.url}/api/v1/jobs/bulk", content=body(), timeout=60)
    assert (answer.status_code, set(answer.json()), answer.json()["code"]) == (413, SHAPE, "too_large")
    assert answer.headers["x-request-id"] == answer.json()["request_id"]
    assert sent > 16 * MIB


def test_body_within_the_limit_is_accepted(up: Stack) -> None:
    """A body of 15 MiB, also in chunks, on a connection that goes on to be used, and read whole; HEAD has no body."""
    with httpx.Client(base_url=up.url, headers={"Authorization": f"Bearer {up.token()}"}, timeout=60) as http:
        text = b'{"command": ["true"], "name": "' + b"x" * (15 * MIB) + b'"}'
        for content in (text, iter([text])):
            headers = {"Content-Type": "application/json"}
            answer = http.post("/api/v1/jobs", content=content, headers=headers)
            assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "name")
        head = http.head("/api/v1/jobs")
        assert (head.status_code, head.content) == (200, b"")
        assert http.put("/metrics").headers["allow"] == "GET, HEAD"


def test_head_has_no_body_however_large_the_answer_to_get_is(up: Stack) -> None:
    """The next answer follows its headers directly. Django sends a body in pieces of 64 KiB."""
    size = len(httpx.get(f"{up.url}/api/v1/openapi.json", timeout=60).content)
    assert size > 2 * (64 << 10)
    with socket.create_connection(("127.0.0.1", up.port), timeout=30) as link:
        for method, path, more in (("HEAD", "/api/v1/openapi.json", ""), ("GET", "/health", "Connection: close\r\n")):
            link.sendall(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}\r\n".encode())
        answers = received(link)
    head, _, rest = answers.partition(b"\r\n\r\n")
    assert f"content-length: {size}".encode() in head.lower()
    assert rest.startswith(b"HTTP/1.1 200 "), rest[:100]
