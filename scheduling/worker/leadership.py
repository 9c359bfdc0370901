"""Elect the worker that runs cycles, and fence its transactions by a term (A81).

A session's advisory lock elects the leader. PostgreSQL releases it when the session ends, and another worker begins the
next term. Each commit of a leader checks its term: a leader that has lost its session changes nothing."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any

import psycopg
from django.db import DatabaseError, connection, transaction
from psycopg.errors import DivisionByZero

from gpusched.lib.cache import Cache
from gpusched.lib.db import fence, locks
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import prepared, query
from scheduling.cycle.run import worker_name

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.25
# PostgreSQL ends the session of a leader that is stopped, in a transaction or not. It is longer than any plan().
STOPPED_SECONDS = 30
# PostgreSQL ends the session of a leader whose host is lost, after about 4 s.
_SESSION = f"""
    SET idle_session_timeout = '{STOPPED_SECONDS}s'; SET idle_in_transaction_session_timeout = '{STOPPED_SECONDS}s';
    SET tcp_keepalives_idle = 1; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3;
    SET tcp_user_timeout = 4000
"""
_NEXT_TERM = """
    INSERT INTO scheduling_term AS t (id, term, leader, session, began_at) VALUES (1, 1, %s, pg_backend_pid(), now())
        ON CONFLICT (id) DO UPDATE SET term = t.term + 1, leader = excluded.leader, session = excluded.session,
                                       began_at = excluded.began_at
 RETURNING term
"""
# One message, so that the check costs no round trip; the division fails without such a term. The lock is a statement
# of its own, because the next one must not read the term of before it got the lock.
_COMMIT = """
    SELECT pg_advisory_xact_lock_shared(%d); SELECT 1 / count(*) FROM scheduling_term WHERE term = %d; COMMIT
"""

# The term of this process and the connection that elected it.
_term: Cache[None, tuple[object, int]] = Cache()
# Set once the cluster of this process stops.
_stopping: Cache[None, Event] = Cache()


class LeadershipLost(DatabaseError):
    """Another worker leads now. The transaction is rolled back."""


def stop_waiting_at(stopping: Event) -> None:
    """Let this process, and those that it forks, no longer wait for a term once `stopping` is set: a cluster that stops
    waits for its tasks."""
    _stopping.put(None, stopping)


def wait_for_term(seconds: float) -> int | None:
    """Return the term of this worker, once it is elected. Return None if another worker leads for these `seconds`, or
    if the cluster stops meanwhile."""
    deadline, stopping = time.monotonic() + seconds, _stopping.last(None, None)
    while (term := _current_term() or _stand_for_election()) is None and time.monotonic() < deadline:
        if stopping is not None and stopping.is_set():
            return None
        time.sleep(POLL_SECONDS)
    return term


@contextmanager
def fenced(term: int) -> Iterator[None]:
    """Let each commit check that `term` is the newest. Otherwise it raises LeadershipLost."""

    def commit(session: psycopg.Connection[Any]) -> None:
        try:
            session.execute(_COMMIT % (Lock.TERM, term))
        except DivisionByZero as error:
            raise LeadershipLost(f"term {term} is over") from error

    with fence.fenced(commit):
        yield


def _current_term() -> int | None:
    """Return the term if the session that was elected still leads."""
    session, term = _term.last(None, (None, 0))
    if session is None or session is not connection.connection:
        return None
    is_newest = prepared("SELECT 1 FROM scheduling_term WHERE term = %s AND session = pg_backend_pid()", [term])
    return term if is_newest else None


def _stand_for_election() -> int | None:
    if not locks.try_acquire(Lock.LEADER):
        return None
    with connection.cursor() as cursor:
        cursor.execute(_SESSION)
    term = _begin_term()
    _term.put(None, (connection.connection, term))
    logger.info("%s leads: term %d", worker_name(), term)
    return term


def _begin_term() -> int:
    with transaction.atomic():
        # Transactions of the previous leader hold it shared: they commit before the new term, or not at all.
        locks.acquire_in_transaction(Lock.TERM)
        [row] = query(_NEXT_TERM, [worker_name()])
    return int(row["term"])
