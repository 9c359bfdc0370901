"""Hears in a web process what changed anywhere: one connection to PostgreSQL, and to Redis if there is one, for all who
want to know."""

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
    """Calls each subscriber with {topic: ids} (no ids: any of them). After a lost connection everything may have
    changed, and the subscribers are told so."""

    def __init__(self) -> None:
        self._callbacks: list[Callback] = []
        self._task: asyncio.Task[None] | None = None
        self._ear: Subscriber | None = None

    @property
    def hears_redis(self) -> bool | None:
        """Whether what is told by Redis arrives here; None: there is no Redis, or nobody has asked to hear yet."""
        return None if self._ear is None else self._ear.hears

    def subscribe(self, callback: Callback) -> None:
        """Starts listening with the first subscriber. To be called in the event loop."""
        self._callbacks.append(callback)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="listener")

    async def _listen(self) -> None:
        hearing = [_again_and_again(self._hear)]
        if settings.CHANNEL_LAYERS:
            from gpusched.lib.bus.redis_bus import Subscriber  # else not even imported

            self._ear = Subscriber(self._tell)
            hearing.append(_again_and_again(self._ear.hear))
        await asyncio.gather(*hearing)

    async def _hear(self) -> None:
        """Notifications are listened to with Redis, too: what Redis does not take is told by them."""
        async with await psycopg.AsyncConnection.connect(**connection_parameters(), autocommit=True) as heard:
            await heard.execute(f"LISTEN {CHANNEL}")
            self._tell(EVERYTHING)
            async for notification in heard.notifies():
                self._tell(json.loads(notification.payload))

    def _tell(self, message: dict[str, list[int]]) -> None:
        for callback in self._callbacks:
            callback(message)


async def _again_and_again(hear: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await hear()
        except psycopg.OperationalError as error:
            logger.warning("lost the database's notifications, trying again: %s", error)
        except Exception:
            logger.exception("the listener failed, starting it again")
        await asyncio.sleep(RETRY_SECONDS)


listener = Listener()
