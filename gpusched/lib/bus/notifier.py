"""Rings for other processes what has changed here: one thread per process gathers it after the commits and tells it by
PostgreSQL's notifications, or by Redis where one is set and answers.

Never in the transaction of a change: PostgreSQL lets transactions that notify commit one after another, each with its
own wait for the disk. Measured with eight connections that insert one row each: 300 commits a second with, 1,800
without. The ringer's own transactions write nothing, and so wait for no disk."""

import json
import logging
import os
import threading
import time
from collections.abc import Collection
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import psycopg
from django.conf import settings

from gpusched.lib.bus.changes import Changes, add
from gpusched.lib.db.connections import connection_parameters

if TYPE_CHECKING:
    from gpusched.lib.bus.redis_bus import Publisher

logger = logging.getLogger(__name__)
CHANNEL, CYCLE_CHANNEL = "gpusched_events", "gpusched_cycle"
RETRY_SECONDS = 0.3
REPEAT_SECONDS = 1.0
# Between two tellings: the first of many changes is told at once, the others together.
REST_SECONDS = 0.01
FLUSH_SECONDS = 2.0


class Notifier:
    """One per process; its thread starts with the first ring, and again in a process that is forked."""

    _state: threading.Condition
    _changed: dict[str, set[int]]
    _is_cycle_wanted: bool
    _is_busy: bool
    _thread: threading.Thread | None

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def ring(self, topic: str, ids: Collection[int] = ()) -> None:
        """Of rows `ids` of `topic`; never waits."""
        with self._state:
            add(self._changed, {topic: ids})
            self._start()

    def ring_for_cycle(self) -> None:
        with self._state:
            self._is_cycle_wanted = True
            self._start()

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> bool:
        """Waits until all is told; False: it is not."""
        with self._state:
            return self._state.wait_for(lambda: not self._is_busy and not self._has_news(), timeout_seconds)

    def stop(self) -> None:
        """Ends thread and connection; the next ring starts them again."""
        self.flush()
        with self._state:
            thread, self._thread = self._thread, None
            self._state.notify_all()
        if thread is not None:
            thread.join(FLUSH_SECONDS)

    def _forget(self) -> None:
        self._state = threading.Condition()
        self._changed = {}
        self._is_cycle_wanted = self._is_busy = False
        self._thread = None

    def _has_news(self) -> bool:
        return bool(self._changed) or self._is_cycle_wanted

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="ringer", daemon=True)
            self._thread.start()
            # Also in processes of multiprocessing, which end without atexit.
            Finalize(None, self.flush, exitpriority=0)
        self._state.notify_all()

    def _run(self) -> None:
        wire = Transport()
        while self._wait(wire.is_to_repeat):
            with self._state:
                changed, is_cycle_wanted = self._changed, self._is_cycle_wanted
                self._changed, self._is_cycle_wanted, self._is_busy = {}, False, True
            try:
                wire.tell(changed, is_cycle_wanted)
            except psycopg.Error as error:
                logger.warning("could not tell what changed, trying again: %s", error)
                with self._state:
                    add(self._changed, changed)
                    self._is_cycle_wanted |= is_cycle_wanted
                time.sleep(RETRY_SECONDS)
            finally:
                with self._state:
                    self._is_busy = False
                    self._state.notify_all()
            time.sleep(REST_SECONDS)
        wire.close()

    def _wait(self, is_to_repeat: bool) -> bool:
        """For news, or if something is to be repeated, for a while. False: another thread, or none, is to tell them."""
        with self._state:
            own = threading.current_thread()
            self._state.wait_for(
                lambda: self._has_news() or self._thread is not own, REPEAT_SECONDS if is_to_repeat else None
            )
            return self._thread is own


class Transport:
    """Speaks by Redis if there is one and it answers, else by NOTIFY, over a connection that it makes when there is
    none. The cycle is always asked for by NOTIFY: its broker hears nothing else."""

    _connection: psycopg.Connection[Any] | None = None
    _voice: "Publisher | None" = None
    is_to_repeat = False

    def __init__(self) -> None:
        if settings.CHANNEL_LAYERS:
            from gpusched.lib.bus.redis_bus import Publisher  # else not even imported

            self._voice = Publisher()

    def tell(self, changed: Changes, is_cycle_wanted: bool) -> None:
        """Nothing changed, and no cycle wanted: repeats. psycopg.Error: it was not told."""
        said = [(CYCLE_CHANNEL, "")] if is_cycle_wanted else []
        if self._voice is not None:
            self._notify(said)  # at once: Redis may take its time
            said = []
            if not changed and self.is_to_repeat:
                self._voice.repeat()
        self.is_to_repeat = bool(changed) and self._voice is not None
        if changed and not (self._voice is not None and self._voice.tell(changed)):
            rows = {topic: sorted(ids) for topic, ids in changed.items()}
            said += [(CHANNEL, json.dumps({topic: ids}, separators=(",", ":"))) for topic, ids in rows.items()]
        self._notify(said)

    def close(self) -> None:
        self._hang_up()
        if self._voice is not None:
            self._voice.close()

    def _notify(self, said: list[tuple[str, str]]) -> None:
        if not said:
            return
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(**connection_parameters(), autocommit=True)
        sql = ", ".join("pg_notify(%s, %s)" for _ in said)
        try:
            self._connection.execute(f"SELECT {sql}", [word for pair in said for word in pair])
        except psycopg.Error:
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


ringer = Notifier()
