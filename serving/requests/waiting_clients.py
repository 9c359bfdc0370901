"""Clients of this web process that wait for the end of requests. None of them holds a thread."""

import asyncio
from collections.abc import Collection
from contextlib import suppress

from gpusched.lib.bus.listener import Listener, listener

# Limits the delay when a notification of the database is lost.
POLL_SECONDS = 2.0


class WaitingClients:
    """All state belongs to the event loop."""

    def __init__(self, notifications: Listener = listener) -> None:
        self._notifications = notifications
        self._is_subscribed = False
        self._events: dict[int, set[asyncio.Event]] = {}

    async def wait(self, ids: Collection[int], seconds: float) -> None:
        """Return once one of these requests may have ended, and after `seconds` in any case."""
        if not self._is_subscribed:
            self._is_subscribed = True
            self._notifications.subscribe(self._on_change)
        event = asyncio.Event()
        for number in ids:
            self._events.setdefault(number, set()).add(event)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), min(seconds, POLL_SECONDS))
        finally:
            for number in ids:
                events = self._events[number]
                events.discard(event)
                if not events:
                    del self._events[number]

    def _on_change(self, changed: dict[str, list[int]]) -> None:
        if "tasks" not in changed:
            return
        for number in changed["tasks"] or list(self._events):
            for event in self._events.get(number, ()):
                event.set()


waiting_clients = WaitingClients()
