"""The database engine of the settings: Django's, but it checks a persistent connection without a round trip, and while
attempts to connect time out, one thread waits instead of all."""

import os
import select
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar

import psycopg
from django.db.backends.postgresql import base
from django.db.utils import DatabaseErrorWrapper
from django.utils.functional import cached_property
from psycopg.errors import ConnectionTimeout

from gpusched.lib.db.hosts import hosts
from gpusched.lib.db.outages import note_connection

T = TypeVar("T")
PAUSE_SECONDS = 1.0


class Gate:
    """Let one thread at a time connect after an attempt has timed out, with a pause between attempts, until one
    succeeds; other threads fail at once. Otherwise each request would occupy a thread until its timeout, and later
    requests would wait longer than their clients do."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._is_silent = False
        self._resumes_at = 0.0
        self._trying = threading.Lock()

    def connect(self, attempt: Callable[[], T]) -> T:
        if not self._is_silent:
            return self._try(attempt)
        if monotonic() < self._resumes_at or not self._trying.acquire(blocking=False):
            raise ConnectionTimeout("the last attempt to connect timed out")
        try:
            return self._try(attempt)
        finally:
            self._trying.release()

    def _try(self, attempt: Callable[[], T]) -> T:
        is_silent = False
        try:
            return attempt()
        except ConnectionTimeout:
            is_silent, self._resumes_at = True, monotonic() + PAUSE_SECONDS
            raise
        finally:
            self._is_silent = is_silent


gate = Gate()


class _Errors(DatabaseErrorWrapper):
    """Convert psycopg's errors to Django's, and note whether the connection was lost."""

    def __init__(self, wrapper: "DatabaseWrapper") -> None:
        super().__init__(wrapper)
        self._wrapper = wrapper

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        if kind is not None:
            connection = self._wrapper.connection
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction) and connection is not None:
                connection.close()  # the next connection goes to the server that accepts writes
            note_connection(error, connection)
            super().__exit__(kind, error, traceback)


class DatabaseWrapper(base.DatabaseWrapper):
    # This commits the transactions of a fenced connection, or raises; then they are rolled back.
    fence: Callable[[psycopg.Connection[Any]], None] | None = None

    def commit(self) -> None:
        if self.fence is not None and self.connection is not None:
            with self.wrap_database_errors:
                self.fence(self.connection)
        super().commit()  # of a fenced connection only its own state

    @cached_property
    def wrap_database_errors(self) -> DatabaseErrorWrapper:
        return _Errors(self)

    def get_connection_params(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super().get_connection_params()
        return hosts.ordered(parameters)

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        return gate.connect(lambda: self._connect(conn_params))

    def _connect(self, conn_params: dict[str, Any]) -> Any:
        try:
            connection = super().get_new_connection(conn_params)
        except psycopg.OperationalError:
            hosts.note_failure()
            raise
        hosts.note(connection, conn_params)
        return connection

    def is_usable(self) -> bool:
        """Return whether the connection works. Django runs a statement before the first one of each request: a tenth of
        the time of a submit. A server that ended has closed the connection, which makes its socket readable; only then
        run the statement."""
        if self.connection is None or self.connection.closed:
            return False
        waiting = select.poll()
        waiting.register(self.connection.pgconn.socket, select.POLLIN)
        return not waiting.poll(0) or bool(super().is_usable())
