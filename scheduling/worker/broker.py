"""The django-q2 broker of the cycles' cluster: wait on LISTEN, turn any number of wake-ups into one cycle, and tick by
itself.

It runs in the cluster's pusher process. It must never raise: after an error django-q2 sleeps for ten seconds and starts
a new process, which would delay cycles after a short outage of the database."""

import logging
import time
import uuid
from typing import Any

import psycopg
from django.conf import settings
from django.utils import timezone
from django_q.brokers import Broker
from django_q.signing import SignedPackage

from gpusched.lib.bus.notifier import CYCLE_CHANNEL
from gpusched.lib.db.connections import connect
from gpusched.lib.db.outages import summary

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.5


class CycleBroker(Broker):  # type: ignore[misc]
    """A broker that creates tasks and never stores them: the next tick replaces a cycle that is lost with its
    worker."""

    _connection: psycopg.Connection[Any] | None = None
    _next_tick = 0.0

    def dequeue(self) -> list[tuple[None, str]] | None:
        """Wait for a wake-up or the tick, at most half a second, so that the cluster notices a stop."""
        try:
            return self._wait()
        except psycopg.Error as error:
            logger.warning("lost the notifications for cycles, ticking on: %s", summary(error))
            self._connection = None
            time.sleep(0.2)
            return self._cycle("tick") if time.monotonic() >= self._next_tick else None

    def _wait(self) -> list[tuple[None, str]] | None:
        now = time.monotonic()
        if now >= self._next_tick:
            return self._cycle("tick")
        if self._connection is None or self._connection.closed:
            self._connection = connect()
            self._connection.execute(f"LISTEN {CYCLE_CHANNEL}")
            return self._cycle("start")  # announcements before LISTEN were missed
        wait = max(0.001, min(POLL_SECONDS, self._next_tick - now))
        if not list(self._connection.notifies(timeout=wait, stop_after=1)):
            return None
        for _ in self._connection.notifies(timeout=0):
            pass  # the cycle that starts now covers all wake-ups until now
        return self._cycle("event")

    def _cycle(self, trigger: str) -> list[tuple[None, str]]:
        self._next_tick = time.monotonic() + settings.ENV.tick_seconds
        task = {
            "id": uuid.uuid4().hex,
            "name": f"cycle-{trigger}",
            "func": "scheduling.worker.tasks.cycle",
            "args": (trigger,),
            "kwargs": {},
            "started": timezone.now(),
            "save": False,
        }
        return [(None, SignedPackage.dumps(task))]

    # Required by django-q2, without meaning for tasks that are never stored.
    def enqueue(self, task: str) -> None:
        raise TypeError("request cycles with gpusched.lib.bus.wake instead of enqueuing them")

    def acknowledge(self, task_id: None) -> None: ...

    def fail(self, task_id: None) -> None: ...

    def queue_size(self) -> int:
        return 0

    def lock_size(self) -> int:
        return 0

    def ping(self) -> bool:
        return True

    def info(self) -> str:
        return "PostgreSQL notifications"
