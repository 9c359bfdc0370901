"""Several database hosts: the order in which connections try them, and the connections to one that hangs.

A host that is lost without a word costs each connection its connect timeout, so it comes last. If PostgreSQL's
processes are stopped and their host is not, its kernel still acknowledges what it receives: no timeout of TCP ends a
connection, and a statement waits for its answer as long as they are stopped. So a thread compares: once a statement has
waited for a while and another host accepts writes, this process drops its connections to all other hosts."""

import logging
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus

logger = logging.getLogger(__name__)
Connection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
Host = tuple[str, str]
LOOK_SECONDS = 0.5
# How long a statement waits before another primary is looked for, and how long a host may take to answer then.
WAITING_SECONDS = 2.0
PROBE_SECONDS = 2


class Hosts:
    """The hosts of one process. Its thread starts with the first connection that has several, anew after a fork."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._latest: Host | None = None
        self._failed: Host | None = None
        self._parameters: dict[str, Any] = {}
        self._connections: WeakSet[Connection] = WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def note(self, connection: Connection, parameters: dict[str, Any]) -> None:
        """Remember a new connection, and the host that it went to."""
        self._latest = _host_of(connection)
        if "," not in str(parameters.get("host", "")):
            return
        with self._lock:
            self._connections.add(connection)
            self._parameters = parameters
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="database-hosts", daemon=True)
                self._thread.start()

    def note_failure(self) -> None:
        """Remember that no host accepted a connection: the latest one is probably the one that is lost."""
        self._latest, self._failed = None, self._latest or self._failed

    def ordered(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of a connection with the latest host first and one that failed last; those of a single
        host are unchanged."""
        hosts = sorted(_hosts(parameters), key=lambda host: (host != self._latest, host == self._failed))
        if len(hosts) == 1 or "hostaddr" in parameters:
            return parameters
        return {
            **parameters,
            "host": ",".join(name for name, _ in hosts),
            "port": ",".join(port for _, port in hosts),
        }

    def _watch(self) -> None:
        waiting_since: dict[Connection, float] = {}
        while True:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            waiting = [each for each in self._open() if each.pgconn.transaction_status == TransactionStatus.ACTIVE]
            waiting_since = {connection: waiting_since.get(connection, now) for connection in waiting}
            if any(now - since >= WAITING_SECONDS for since in waiting_since.values()) and (primary := self._primary()):
                self._drop_all_but(primary)

    def _open(self) -> list[Connection]:
        with self._lock:
            return [connection for connection in self._connections if not connection.closed]

    def _primary(self) -> Host | None:
        """Return the host that accepts a connection for writes now: the latest one, if the statement is only slow."""
        parameters = {**self.ordered(self._parameters), "connect_timeout": PROBE_SECONDS}
        try:
            with psycopg.connect(**parameters) as connection:
                return _host_of(connection)
        except psycopg.Error:
            return None  # no host has been promoted yet

    def _drop_all_but(self, primary: Host) -> None:
        """Shut the sockets: the threads that wait for an answer get the error of a lost connection."""
        self._latest = primary
        stale: list[Connection] = []
        for connection in self._open():
            with suppress(psycopg.Error):  # its thread closes it meanwhile
                if _host_of(connection) != primary:
                    stale.append(connection)
        for connection in stale:
            with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as shared:
                shared.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._connections.difference_update(stale)
        if stale:
            logger.warning("%s:%s accepts writes now: dropped %d connections to other hosts", *primary, len(stale))


def _hosts(parameters: dict[str, Any]) -> list[Host]:
    names = str(parameters.get("host", "")).split(",")
    ports = str(parameters.get("port") or "5432").split(",")
    return list(zip(names, ports if len(ports) > 1 else ports * len(names), strict=True))


def _host_of(connection: Connection) -> Host:
    return connection.info.host, str(connection.info.port)


hosts = Hosts()
