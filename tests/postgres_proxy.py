"""A TCP proxy before the PostgreSQL of the tests that fails as networks and servers do."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, connections

from gpusched.lib.db.connections import connection_parameters


class Proxy:
    """Passes connections on. `refuse()` closes what there is and refuses what comes, `hang()` accepts what comes and
    never answers it, `cut_answer(words)` closes the connection in place of passing back the next answer of the server
    that has these words. `attempts` counts connections."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.attempts = 0
        self._is_hanging = False
        self._words: bytes | None = None
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        # Else the thread that accepts keeps the port until one more has come.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._close_all()

    def hang(self) -> None:
        self._is_hanging = True
        self._close_all()

    def come_back(self) -> None:
        self._is_hanging = False
        self._close_all()
        if self._listener.fileno() < 0:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut_answer(self, words: bytes) -> None:
        self._words = words

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.attempts += 1
                self._open.add(client)
                if not self._is_hanging:
                    self._join(client)

    def _join(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._path)
        self._open.add(server)
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        is_answer = source.family == socket.AF_UNIX
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if is_answer and self._words is not None and self._words in data:
                    self._words = None
                    break
                target.sendall(data)
        for one in (source, target):
            self._close(one)

    def _close_all(self) -> None:
        for one in list(self._open):
            self._close(one)

    def _close(self, one: socket.socket) -> None:
        self._open.discard(one)
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextmanager
def proxied() -> Iterator[Proxy]:
    """Django's connections go through the proxy."""
    parameters = connection_parameters()
    proxy = Proxy(f"{parameters['host']}/.s.PGSQL.{parameters.get('port') or 5432}")
    before: dict[str, Any] = dict(connection.settings_dict)
    _point_at({"HOST": "127.0.0.1", "PORT": str(proxy.port)})
    try:
        yield proxy
    finally:
        _point_at({name: before[name] for name in ("HOST", "PORT")})
        proxy.refuse()


def _point_at(place: dict[str, Any]) -> None:
    connection.close()
    asyncio.run(sync_to_async(connections.close_all)())  # in the thread of consumers, where other tests leave one
    # Of this thread's connection, and of those that other threads will make.
    for settings in (connection.settings_dict, connections.databases["default"]):
        settings.update(place)
