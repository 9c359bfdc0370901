"""Single submits over HTTP: separate POST /jobs, each durable when answered, over 8 connections.

The client shares the machine with the server: it sends the same bytes each time, and reads only the status and the
length of an answer. With http.client it would take a twentieth of the machine's time."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO
from urllib.parse import SplitResult, urlsplit

from benchmarks.report import arguments, percentile, publish
from tests.system.stack import Stack

Exchange = Callable[[bytes], tuple[int, bytes]]
BODY = {"tenant": "default", "command": ["python", "train.py"], "gpu_count": 1, "gpu_memory_mb": 40000}


def main() -> None:
    options = arguments(__doc__ or "", jobs=3000, connections=8)
    with Stack() as stack:
        send(stack, 200, options.connections)  # warm
        began = time.perf_counter()
        seconds, failures = send(stack, options.jobs, options.connections)
        wall = time.perf_counter() - began
        total = stack.client().status().total_jobs
        if total != options.jobs + 200:
            failures += 1
        publish(
            {
                "submits_per_second": len(seconds) / wall,
                "submit_p50_ms": percentile(seconds, 50) * 1000,
                "submit_p95_ms": percentile(seconds, 95) * 1000,
                "jobs": options.jobs,
                "connections": options.connections,
            },
            options.json,
            failures,
        )


def send(
    stack: Stack, jobs: int, connections: int, body: Mapping[str, object] = BODY, path: str = "jobs"
) -> tuple[list[float], int]:
    """Submit over kept connections; return the seconds of each and how many failed."""
    latencies: list[float] = []
    failed: list[str] = []
    request, address = request_of(stack.url, stack.token(), body, path), urlsplit(stack.url)

    def work(share: int) -> None:
        try:
            with connected(address) as exchange:
                submit(exchange, share)
        except (OSError, ValueError, IndexError) as error:  # the connection, or an invalid answer
            failed.append(repr(error))

    def submit(exchange: Exchange, share: int) -> None:
        for _ in range(share):
            began = time.perf_counter()
            status, answer = exchange(request)
            latencies.append(time.perf_counter() - began)
            if status != 201:
                failed.append(f"{status} {answer[:200]!r}")

    shares = [jobs // connections + (number < jobs % connections) for number in range(connections)]
    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in sorted(set(failed)):
        print(f"  failed {failed.count(text)} times: {text}", file=sys.stderr)
    return latencies, len(failed)


@contextmanager
def connected(address: SplitResult) -> Iterator[Exchange]:
    """Yield a kept connection: a call sends a request and returns the status and the body of its answer."""
    with socket.create_connection((address.hostname, address.port)) as connection:
        answers = connection.makefile("rb")

        def exchange(request: bytes) -> tuple[int, bytes]:
            connection.sendall(request)
            return _answer(answers)

        yield exchange


def request_of(url: str, token: str, body: Mapping[str, object], path: str = "jobs") -> bytes:
    """Return the bytes of a submit."""
    content = json.dumps(body)
    lines = [
        f"POST /api/v1/{path} HTTP/1.1", f"Host: {urlsplit(url).netloc}", f"Authorization: Bearer {token}",
        "Content-Type: application/json", f"Content-Length: {len(content)}",
    ]  # fmt: skip
    return "\r\n".join([*lines, "", content]).encode()


def _answer(answers: BinaryIO) -> tuple[int, bytes]:
    """Return status and body, which is chunked if its length was unknown."""
    status, length = int(answers.readline().split()[1]), -1
    while (line := answers.readline().lower()) != b"\r\n":
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    if length >= 0:
        return status, answers.read(length)
    content = b""
    while size := int(answers.readline(), 16):
        content += answers.read(size + 2)[:-2]
    answers.readline()
    return status, content


if __name__ == "__main__":
    main()
