"""Work in another transaction, which ends when a test lets it."""

import threading

from django.db import connections, transaction

from gpusched.lib.db.sql import query


class Elsewhere:
    """Work in a thread with its own connection, whose transaction stays open until `commit`."""

    def __init__(self, work):
        self.is_done, self.may_commit = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, args=(work,))
        self.thread.start()

    def _run(self, work):
        try:
            with transaction.atomic():
                work()
                self.is_done.set()
                self.may_commit.wait(20)
        except Exception as error:  # noqa: BLE001 `commit` raises it
            self.error = error
        finally:
            connections.close_all()

    def commit(self):
        """Let the transaction end, and raise what the work raised."""
        self.may_commit.set()
        self.thread.join(20)
        if self.error is not None:
            raise self.error


def blocked():
    """Return rows if a transaction waits for a lock."""
    return query("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")


def wait_until_blocked(other):
    """Wait until a transaction waits for a lock, or this one's work is done."""
    for _ in range(2000):
        if blocked() or other.is_done.wait(0.005):
            return
