"""What the web server writes arrives whole and in order, however slowly somebody reads."""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from http.client import HTTPResponse
from itertools import islice
from pathlib import Path

import httpx
import pytest

from tests.system.stack import ROOT, Stack

pytestmark = pytest.mark.e2e
AT_ONCE = 12


def test_slow_reader_gets_each_answer_whole() -> None:
    """More of them asked for at once than the kernel keeps for one connection."""
    with Stack() as stack:
        whole = httpx.get(f"{stack.url}/api/v1/openapi.json", timeout=60).content
        with socket.socket() as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.settimeout(60)
            link.connect(("127.0.0.1", stack.port))
            link.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * AT_ONCE)
            time.sleep(1)
            said = bytearray()
            while said.count(whole) < AT_ONCE and len(said) < (AT_ONCE + 1) * len(whole):
                said += link.recv(1 << 16)
        assert said.count(whole) == AT_ONCE
        assert httpx.get(f"{stack.url}/health", timeout=60).status_code == 200


EVENTS, READERS = 50_000, 10
_MANY = f"""
from gpusched.lib.db.sql import execute
execute("INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, data)"
        " SELECT %s, now(), 'held', 0, 'admin', '{{}}' FROM generate_series(1, {EVENTS})", [JOB])
"""


def test_unread_answers_of_slow_readers_do_not_fill_memory() -> None:
    """A55: of a stream. It goes on when they do, and nothing is missing."""
    with Stack() as stack, ExitStack() as links:
        job = stack.client().submit(["true"], tenant="default")
        command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", _MANY.replace("JOB", str(job.id))]
        subprocess.run(command, cwd=ROOT, env=stack.environment(), check=True, timeout=60)
        [web] = stack.pids("daphne")
        before = memory_mb(web)
        streams = [links.enter_context(slow_stream(stack)) for _ in range(READERS)]
        time.sleep(8)
        assert memory_mb(web) < before + 50
        streams[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        answer = HTTPResponse(streams[0])
        answer.begin()
        told = (line for line in answer if line == b"event: held\n")
        assert sum(1 for _ in islice(told, EVENTS)) == EVENTS
        assert httpx.get(f"{stack.url}/health", timeout=60).status_code == 200


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
