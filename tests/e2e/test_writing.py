"""What the web server writes arrives whole and in order, however slowly somebody reads."""

import socket
import time

import httpx
import pytest

from benchmarks.stack import Stack

pytestmark = pytest.mark.e2e
AT_ONCE = 12


def test_a_slow_reader_gets_each_answer_whole() -> None:
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
