"""Answers of the web server arrive complete and in order, however slowly a client reads."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from http.client import HTTPResponse
from itertools import islice
from pathlib import Path

import httpx
import pytest

from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.e2e
AT_ONCE = 12
# Of processor time, in a second: what its regular work takes.
MAX_IDLE_TICKS = 3


def test_slow_reader_gets_each_answer_whole(up: Stack) -> None:
    """More of them asked for at once than the kernel keeps for one connection."""
    whole = httpx.get(f"{up.url}/api/v1/openapi.json", timeout=60).content
    [web] = up.pids("daphne")
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.settimeout(60)
        link.connect(("127.0.0.1", up.port))
        link.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * AT_ONCE)
        wait_for_idle(web)
        received = bytearray()
        while received.count(whole) < AT_ONCE and len(received) < (AT_ONCE + 1) * len(whole):
            received += link.recv(1 << 16)
    assert received.count(whole) == AT_ONCE
    assert httpx.get(f"{up.url}/health", timeout=60).status_code == 200


EVENTS, READERS = 50_000, 10
_MANY = f"""
from gpusched.lib.db.sql import execute
execute("INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, data)"
        " SELECT %s, now(), 'held', 0, 'admin', '{{}}' FROM generate_series(1, {EVENTS})", [JOB])
"""


def test_unread_answers_of_slow_readers_do_not_fill_memory(up: Stack) -> None:
    """A55: of a stream. It goes on when they do, and nothing is missing."""
    job = up.client().submit(["true"], tenant="default")
    command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", _MANY.replace("JOB", str(job.id))]
    subprocess.run(command, cwd=ROOT, env=up.environment(), check=True, timeout=60)
    [web] = up.pids("daphne")
    before = memory_mb(web)
    with ExitStack() as links:
        streams = [links.enter_context(slow_stream(up)) for _ in range(READERS)]
        wait_for_idle(web)
        assert memory_mb(web) < before + 50
        streams[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        answer = HTTPResponse(streams[0])
        answer.begin()
        events = (line for line in answer if line == b"event: held\n")
        assert sum(1 for _ in islice(events, EVENTS)) == EVENTS
        assert httpx.get(f"{up.url}/health", timeout=60).status_code == 200


def wait_for_idle(web: int) -> None:
    """Wait until the web process has written all that it can: no thread of it runs, and for a second it hardly has."""
    history: list[float] = []

    def is_idle() -> bool:
        threads = [path.read_text().rpartition(")")[2].split() for path in Path(f"/proc/{web}/task").glob("*/stat")]
        is_running = any(fields[0] in "RD" for fields in threads)
        history.append(float("inf") if is_running else sum(int(fields[11]) + int(fields[12]) for fields in threads))
        return len(history) > 10 and max(history[-10:]) - min(history[-10:]) <= MAX_IDLE_TICKS

    wait_for(is_idle, 60, "the web process to be idle", pause=0.1)


def slow_stream(stack: Stack) -> socket.socket:
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.settimeout(60)
    link.connect(("127.0.0.1", stack.port))
    asked = "GET /api/v1/events?since=0&limit=1000 HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
    link.sendall(f"{asked}Authorization: Bearer {stack.token()}\r\n\r\n".encode())
    return link


def memory_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
