"""Receive in a web process the events of all processes, over one connection to PostgreSQL."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psycopg

from gpusched.lib.bus.changes import EVERYTHING
from gpusched.lib.bus.notifier import CHANNEL, DIRECT_TOPICS, notifier
from gpusched.lib.db.connections import connect_async
from gpusched.lib.db.outages import summary

logger = logging.getLogger(__name__)
RETRY_SECONDS = 0.3
Callback = Callable[[dict[str, list[int]]], None]


class Listener:
    """Call each subscriber with {topic: ids}; no ids: any row. After a lost connection, report every topic as
    changed. Changes of DIRECT_TOPICS by this process come directly, ten milliseconds earlier."""

    def __init__(self) -> None:
        self._callbacks: list[Callback] = []
        self._direct: list[dict[str, list[int]]] = []  # of this process, for the next turn of the event loop
        self._delivering = threading.Lock()
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, callback: Callback) -> None:
        """Add a subscriber, and start to listen with the first one. Call it in the event loop."""
        self._callbacks.append(callback)
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._direct = []  # of an event loop that has ended
            self._task = loop.create_task(self._run(), name="listener")
            notifier.deliver = partial(self._deliver, loop)

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except psycopg.OperationalError as error:
                logger.warning("lost the database's notifications, trying again: %s", summary(error))
            except Exception:
                logger.exception("the listener failed, starting it again")
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self) -> None:
        async with await connect_async() as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            notifier.forget_backend()
            self._notify(EVERYTHING)
            async for notification in connection.notifies():
                message = json.loads(notification.payload)
                if notification.pid == notifier.backend_pid:
                    message = {topic: ids for topic, ids in message.items() if topic not in DIRECT_TOPICS}
                self._notify(message)

    def _deliver(self, loop: asyncio.AbstractEventLoop, message: dict[str, list[int]]) -> None:
        """Report a change of this process, from any thread. Equal changes until the next turn of the event loop, such
        as submits to one endpoint, are reported once."""
        with self._delivering:
            is_first = not self._direct
            if message not in self._direct:
                self._direct.append(message)
        if is_first:
            with suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(self._notify_direct)

    def _notify_direct(self) -> None:
        with self._delivering:
            messages, self._direct = self._direct, []
        for message in messages:
            self._notify(message)

    def _notify(self, message: dict[str, list[int]]) -> None:
        for callback in self._callbacks:
            callback(message)


listener = Listener()
