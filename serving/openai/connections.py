"""Reusable connections to the ports of replicas.

A new stream to a port costs its agent several milliseconds, because it checks who listens there."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from serving.openai.http_exchange import BadResponse, Headers, HttpConnection, Response, Stream
from serving.replicas.connection import ReplicaLost

IDLE_SECONDS = 60.0
MAX_IDLE_OF_REPLICA = 256
# New streams to a replica at once: its agent opens one after the other, each within a time limit.
MAX_OPENING = 8
OpenPort = Callable[[int, int], Awaitable[Stream]]


class Connections:
    """All state belongs to the event loop. `open_port` opens a stream to a port of a job, or raises ReplicaLost."""

    def __init__(self, open_port: OpenPort) -> None:
        self._open_port = open_port
        self._opening: dict[int, asyncio.Semaphore] = {}
        # By job, the latest last, with the time since when it is idle.
        self._idle: dict[int, list[tuple[float, HttpConnection]]] = {}

    async def exchange(
        self, job_id: int, port: int, path: str, headers: Headers, body: bytes, use: Callable[[HttpConnection], None]
    ) -> Response:
        """Send a request and return its response. `use` receives each connection that is tried. The caller keeps or
        closes the last one. Raises ReplicaLost and BadResponse."""
        while True:
            connection, is_new = await self._connection(job_id, port)
            use(connection)
            try:
                return await connection.exchange("POST", path, headers, body)
            except (ReplicaLost, BadResponse):
                if is_new or not connection.is_silent:
                    raise
                connection.close()  # the program may close an idle connection at any moment

    async def _connection(self, job_id: int, port: int) -> tuple[HttpConnection, bool]:
        """Return an idle connection, or else a new one, and whether it is new."""
        if (connection := self._take(job_id)) is not None:
            return connection, False
        async with self._opening.setdefault(job_id, asyncio.Semaphore(MAX_OPENING)):
            if (connection := self._take(job_id)) is not None:  # a request has ended meanwhile
                return connection, False
            return HttpConnection(await self._open_port(job_id, port)), True

    async def probe(self, job_id: int, port: int, path: str) -> int:
        """Return the status of a GET over a new connection. Raises ReplicaLost and BadResponse."""
        connection = HttpConnection(await self._open_port(job_id, port))
        try:
            return (await connection.exchange("GET", path, [(b"connection", b"close")], b"")).status
        finally:
            connection.close()

    def keep(self, job_id: int, connection: HttpConnection) -> None:
        """Keep a connection for the next request, or close it."""
        idle = self._idle.setdefault(job_id, [])
        if connection.renew() and len(idle) < MAX_IDLE_OF_REPLICA:
            idle.append((time.monotonic(), connection))
        else:
            connection.close()

    def prune(self) -> None:
        """Close connections that are idle for long, and those that the other end has closed."""
        oldest = time.monotonic() - IDLE_SECONDS
        for job_id, idle in list(self._idle.items()):
            for entry in idle[:]:
                if entry[0] < oldest or not entry[1].renew():
                    idle.remove(entry)
                    entry[1].close()
            if not idle:
                del self._idle[job_id]
        for job_id in self._opening.keys() - self._idle.keys():
            if not self._opening[job_id].locked():
                del self._opening[job_id]

    def _take(self, job_id: int) -> HttpConnection | None:
        idle = self._idle.get(job_id, [])
        while idle:
            _, connection = idle.pop()
            if connection.renew():
                return connection
            connection.close()
        return None
