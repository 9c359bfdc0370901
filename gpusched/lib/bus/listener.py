"""Receive in a web process the events of all processes: over one connection to PostgreSQL, and one to Redis if set."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import psycopg
from django.conf import settings

from gpusched.lib.bus.changes import EVERYTHING
from gpusched.lib.bus.notifier import CHANNEL
from gpusched.lib.db.connections import connection_parameters

if TYPE_CHECKING:
    from gpusched.lib.bus.redis_bus import Subscriber

logger = logging.getLogger(__name__)
RETRY_SECONDS = 0.3
Callback = Callable[[dict[str, list[int]]], None]


class Listener:
    """Call each subscriber with {topic: ids}; no ids: any row. After a lost connection, report every topic as
    changed."""

    def __init__(self) -> None:
        self._callbacks: list[Callback] = []
        self._task: asyncio.Task[None] | None = None
        self._subscriber: Subscriber | None = None

    @property
    def is_redis_connected(self) -> bool | None:
        """Return whether messages of Redis arrive here. None without Redis or before the first subscriber."""
        return None if self._subscriber is None else self._subscriber.is_connected

    def subscribe(self, callback: Callback) -> None:
        """Add a subscriber, and start to listen with the first one. Call it in the event loop."""
        self._callbacks.append(callback)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="listener")

    async def _listen(self) -> None:
        listening = [_run_forever(self._listen_to_postgresql)]
        if settings.CHANNEL_LAYERS:
            from gpusched.lib.bus.redis_bus import Subscriber  # imported only if it is used

            self._subscriber = Subscriber(self._notify)
            listening.append(_run_forever(self._subscriber.listen))
        await asyncio.gather(*listening)

    async def _listen_to_postgresql(self) -> None:
        """Listen also when Redis is set: changes that Redis does not accept are sent as notifications."""
        async with await psycopg.AsyncConnection.connect(**connection_parameters(), autocommit=True) as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            self._notify(EVERYTHING)
            async for notification in connection.notifies():
                self._notify(json.loads(notification.payload))

    def _notify(self, message: dict[str, list[int]]) -> None:
        for callback in self._callbacks:
            callback(message)


async def _run_forever(listen: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await listen()
        except psycopg.OperationalError as error:
            logger.warning("lost the database's notifications, trying again: %s", error)
        except Exception:
            logger.exception("the listener failed, starting it again")
        await asyncio.sleep(RETRY_SECONDS)


listener = Listener()
