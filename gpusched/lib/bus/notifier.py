"""Publish changes of this process to the others: one thread gathers them after the commits, and sends them through
PostgreSQL's NOTIFY.

Never in the transaction of a change: PostgreSQL serializes the commits of transactions that notify, each with its own
wait for the disk. Measured with eight connections that insert one row each: 300 commits a second with NOTIFY, 1,800
without. The notifier's own transactions write nothing, so they do not wait for the disk."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from multiprocessing.util import Finalize
from typing import Any

import psycopg

from gpusched.lib.bus.changes import Changes, add
from gpusched.lib.db.connections import connect

logger = logging.getLogger(__name__)
CHANNEL, CYCLE_CHANNEL = "gpusched_events", "gpusched_cycle"
# Changes of these topics reach the listener of their own process at once: a client waits for each of them.
DIRECT_TOPICS = frozenset({"endpoints", "tasks"})
RETRY_SECONDS = 0.3
# The pause after each message: the first of many changes is sent at once, the others together.
PACE_SECONDS = 0.01
FLUSH_SECONDS = 2.0


class Notifier:
    """The notifier of a process. Its thread starts with the first change, and anew in a forked process. `deliver` is
    called in any thread with each change of DIRECT_TOPICS. `backend_pid`: of the connection that publishes."""

    deliver: Callable[[dict[str, list[int]]], None] | None
    backend_pid: int | None
    _state: threading.Condition
    _changed: dict[str, set[int]]
    _is_cycle_requested: bool
    _is_busy: bool
    _thread: threading.Thread | None

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def notify(self, topic: str, ids: Collection[int] = ()) -> None:
        """Publish that rows `ids` of `topic` changed. Return at once."""
        with self._state:
            add(self._changed, {topic: ids})
            self._start()
        if topic in DIRECT_TOPICS and self.deliver:
            self.deliver({topic: list(ids)})

    def request_cycle(self) -> None:
        with self._state:
            self._is_cycle_requested = True
            self._start()

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until everything is sent. Return False on timeout."""
        with self._state:
            return self._state.wait_for(lambda: not self._is_busy and not self._has_changes(), timeout_seconds)

    def forget_backend(self) -> None:
        """Forget the process of a PostgreSQL that may have ended, until the next message."""
        self.backend_pid = None

    def stop(self) -> None:
        """End the thread and its connection. The next change starts them again."""
        self.flush()
        with self._state:
            thread, self._thread = self._thread, None
            self._state.notify_all()
        if thread is not None:
            thread.join(FLUSH_SECONDS)

    def _reset(self) -> None:
        self._state = threading.Condition()
        self._changed = {}
        self._is_cycle_requested = self._is_busy = False
        self._thread = self.deliver = self.backend_pid = None

    def _has_changes(self) -> bool:
        return bool(self._changed) or self._is_cycle_requested

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
            self._thread.start()
            # Processes of multiprocessing end without atexit.
            Finalize(None, self.flush, exitpriority=0)
        self._state.notify_all()

    def _run(self) -> None:
        transport = Transport(self._connected)
        while self._wait():
            with self._state:
                changed, is_cycle_requested = self._changed, self._is_cycle_requested
                self._changed, self._is_cycle_requested, self._is_busy = {}, False, True
            try:
                transport.publish(changed, is_cycle_requested)
            except psycopg.Error as error:
                logger.warning("could not publish changes, trying again: %s", error)
                with self._state:
                    add(self._changed, changed)
                    self._is_cycle_requested |= is_cycle_requested
                time.sleep(RETRY_SECONDS)
            finally:
                with self._state:
                    self._is_busy = False
                    self._state.notify_all()
            time.sleep(PACE_SECONDS)
        transport.close()

    def _connected(self, backend_pid: int) -> None:
        self.backend_pid = backend_pid

    def _wait(self) -> bool:
        """Wait for changes. Return False if this thread must end."""
        with self._state:
            current = threading.current_thread()
            self._state.wait_for(lambda: self._has_changes() or self._thread is not current)
            return self._thread is current


class Transport:
    """Publish through NOTIFY on a connection that opens when needed. `connected` gets the process of its server before
    each message: another connection can have that number once PostgreSQL has restarted."""

    _connection: psycopg.Connection[Any] | None = None

    def __init__(self, connected: Callable[[int], None]) -> None:
        self._connected = connected

    def publish(self, changed: Changes, is_cycle_requested: bool) -> None:
        """Publish changes and a request for a cycle. Raise psycopg.Error on failure."""
        rows = {topic: sorted(ids) for topic, ids in changed.items()}
        messages = [(CYCLE_CHANNEL, "")] if is_cycle_requested else []
        messages += [(CHANNEL, json.dumps({topic: ids}, separators=(",", ":"))) for topic, ids in rows.items()]
        if messages:
            self._notify(messages)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _notify(self, messages: list[tuple[str, str]]) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = connect()
        self._connected(self._connection.info.backend_pid)
        sql = ", ".join("pg_notify(%s, %s)" for _ in messages)
        try:
            self._connection.execute(f"SELECT {sql}", [word for pair in messages for word in pair])
        except psycopg.Error:
            self.close()
            raise


notifier = Notifier()
