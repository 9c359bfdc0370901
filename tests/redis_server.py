"""A real Redis on a free port, which may be killed and started again."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.system.stack import free_port
from tests.waiting import wait_for

COMMAND = "redis-server"


class RedisServer:
    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no", "--dir", "/tmp"]
        self._process = subprocess.Popen([COMMAND, *words], stdout=subprocess.DEVNULL)
        wait_for(lambda: "PONG" in self._answer("PING"), 60, "Redis to start")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(20)

    def cut_listeners(self) -> None:
        """Closes the connections of all who are subscribed."""
        assert self._answer("CLIENT KILL TYPE pubsub").startswith(":")

    def _answer(self, command: str) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as wire:
                wire.sendall(f"{command}\r\n".encode())
                return wire.recv(1000).decode()
        except OSError:
            return ""


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    if shutil.which(COMMAND) is None:
        pytest.skip("redis-server is not installed; deploy/test.sh installs it")
    server = RedisServer()
    server.start()
    try:
        yield server
    finally:
        server.kill()


def layers(url: str) -> dict[str, object]:
    """As Django's settings have them with GPUSCHED_REDIS_URL."""
    config = {"hosts": [{"address": url, "socket_connect_timeout": 1.0, "socket_timeout": 2.0}], "prefix": "test"}
    return {"changes": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": config}}
