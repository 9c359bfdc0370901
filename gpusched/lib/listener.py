"""Hears the database's doorbell in a web process: one connection for all who want to know."""

import asyncio
import json
import logging
from collections.abc import Callable

import psycopg

from gpusched.lib.own_connections import connection_parameters
from gpusched.lib.ringer import CHANNEL

logger = logging.getLogger(__name__)
Callback = Callable[[dict[str, list[int]]], None]
EVERYTHING: dict[str, list[int]] = {
    topic: [] for topic in ("jobs", "nodes", "tenants", "assignments", "stops", "logs", "notices")
}


class Listener:
    """Calls each subscriber with {topic: ids} (no ids: any of them). After a lost connection everything may have
    changed, and the subscribers are told so."""

    def __init__(self) -> None:
        self._callbacks: list[Callback] = []
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, callback: Callback) -> None:
        """Starts listening with the first subscriber. To be called in the event loop."""
        self._callbacks.append(callback)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="listener")

    async def _listen(self) -> None:
        while True:
            try:
                await self._hear()
            except psycopg.OperationalError as error:
                logger.warning("lost the database's notifications, trying again: %s", error)
            except Exception:
                logger.exception("the listener failed, starting it again")
            await asyncio.sleep(0.3)

    async def _hear(self) -> None:
        async with await psycopg.AsyncConnection.connect(**connection_parameters(), autocommit=True) as heard:
            await heard.execute(f"LISTEN {CHANNEL}")
            self._tell(EVERYTHING)
            async for notification in heard.notifies():
                self._tell(json.loads(notification.payload))

    def _tell(self, message: dict[str, list[int]]) -> None:
        for callback in self._callbacks:
            callback(message)


listener = Listener()
