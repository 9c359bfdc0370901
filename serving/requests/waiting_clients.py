"""Clients of this web process that wait for the end of requests. None of them holds a thread."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from gpusched.lib.bus.listener import Listener, listener
from gpusched.lib.cache import Cache

# A request may end between its submit and the wait for it: many fewer end in that time.
_REMEMBERED_ENDS = 10_000


class WaitingClients:
    """All state belongs to the event loop."""

    def __init__(self, notifications: Listener = listener) -> None:
        self._notifications = notifications
        self._is_subscribed = False
        self._events: dict[int, set[asyncio.Event]] = {}
        self._ended: Cache[int, bool] = Cache(max_entries=_REMEMBERED_ENDS)

    @contextmanager
    def watch(self, ids: Collection[int]) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever one of these requests may have ended, at first if one has lately. Enter
        this before the first read of the requests: an end between the two would be missed otherwise."""
        event = asyncio.Event()
        if not self._is_subscribed:
            self._is_subscribed = True
            self._notifications.subscribe(self._on_change)
            event.set()  # no earlier end was noticed
        elif any(self._ended.last(number, False) for number in ids):
            event.set()
        for number in ids:
            self._events.setdefault(number, set()).add(event)
        try:
            yield event
        finally:
            for number in ids:
                events = self._events[number]
                events.discard(event)
                if not events:
                    del self._events[number]

    def _on_change(self, changed: dict[str, list[int]]) -> None:
        if "tasks" not in changed:
            return
        for number in changed["tasks"]:
            self._ended.put(number, True)
        for number in changed["tasks"] or list(self._events):
            for event in self._events.get(number, ()):
                event.set()


waiting_clients = WaitingClients()
