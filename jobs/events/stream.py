"""Waiting readers of events in this web process. None holds a thread; each wakes for events that it may see."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Barrier
from time import monotonic
from typing import Any

import msgspec
from django.db import connections

from gpusched.lib.api.concurrency_limit import ConcurrencyLimiter
from gpusched.lib.bus.listener import Listener, listener
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from gpusched.lib.limits import MAX_STREAMS, MAX_STREAMS_EACH
from gpusched.lib.process.supervised import supervised
from jobs.events.log import MAX_LOOKED_AT, Reader, frontier, read, tenants_between

THREADS = 2
GATHER_SECONDS = 0.05
# Limits the delay when a notification of the database is lost.
POLL_SECONDS = 5.0
KEEPALIVE_SECONDS = 15.0
# The pause while the database does not answer.
RETRY_SECONDS = 1.0
# The server ends a stream then. Its client reconnects, which authenticates it again, and continues.
MAX_STREAM_SECONDS = 300.0
# On a busy cluster a stream sends ten times a second, not with each event.
PAUSE_SECONDS = 0.1

# Reloads the reader; None: it must not read any more.
Reauthorize = Callable[[], Reader | None]


@dataclass(eq=False)
class _Waiter:
    visible: frozenset[int] | None
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class EventStreams:
    """Streams and long polls. All state lives in the event loop. Two threads query the database: once for all waiting
    readers, and once for each that wakes."""

    def __init__(self, notifications: Listener = listener) -> None:
        self._notifications = notifications
        self._waiters: set[_Waiter] = set()
        self._notified = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._polled_to = 0
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="events")
        self.limiter = ConcurrencyLimiter(
            MAX_STREAMS, MAX_STREAMS_EACH, code="too_many_streams", subject="readers wait for events",
            next_step="try again later, or ask without `wait`",
        )  # fmt: skip

    async def poll(self, reader: Reader, since: int, seconds: float, reauthorize: Reauthorize) -> AsyncIterator[bytes]:
        """Yield one answer as JSON, as soon as there are events or after `seconds`. While it waits, the reader can lose
        its access."""
        ends_at = monotonic() + seconds
        page: dict[str, Any] = {"items": [], "next_since": since, "more": False}
        while not page["items"] and (remaining := ends_at - monotonic()) > 0:
            await self._wait_for_news(page["next_since"], reader, remaining)
            current = await self._reauthorized(reauthorize)
            new_page = None if current is None else await self._read(current, page["next_since"])
            if current is None or new_page is None:
                break
            reader, page = current, new_page
        yield msgspec.json.encode(page)

    async def stream(self, reader: Reader, since: int, reauthorize: Reauthorize) -> AsyncIterator[bytes]:
        """Yield server-sent events until the reader leaves, loses its access, or MAX_STREAM_SECONDS have passed. Events
        that it must not see also advance its id, so that a reconnect does not examine them again."""
        ends_at, asked_at = monotonic() + MAX_STREAM_SECONDS, monotonic()
        yield b"retry: 1000\n" + _sse_id(since)
        while monotonic() < ends_at:
            page = await self._read(reader, since)
            if page is None:
                return
            yield b"".join(map(_sse_event, page["items"])) + _sse_id(page["next_since"])
            since = page["next_since"]
            if not page["more"]:
                await asyncio.sleep(PAUSE_SECONDS)
                await self._wait_for_news(since, reader, KEEPALIVE_SECONDS)
            if monotonic() - asked_at >= KEEPALIVE_SECONDS:
                new_reader = await self._reauthorized(reauthorize)
                if new_reader is None:
                    return  # if the database did not answer, the client reconnects and continues from its last id
                reader, asked_at = new_reader, monotonic()

    async def stop(self) -> None:
        """Stop, for tests, each of which has its own event loop."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        together = Barrier(THREADS)
        for _ in range(THREADS):
            self._threads.submit(_close_connections, together)
        self._threads.shutdown()

    async def _read(self, reader: Reader, since: int) -> dict[str, Any] | None:
        """Read a page; None if the database did not answer or the query failed."""
        try:
            return await run_in_thread(self._threads, partial(read, reader, since))
        except (DatabaseAway, WorkFailed):
            return None

    async def _reauthorized(self, reauthorize: Reauthorize) -> Reader | None:
        """Return the reader with its present access; None without any, or if the database did not answer."""
        try:
            return await run_in_thread(self._threads, reauthorize)
        except (DatabaseAway, WorkFailed):
            return None

    async def _wait_for_news(self, since: int, reader: Reader, seconds: float) -> None:
        """Wait until there may be events after `since`, for at most `seconds`."""
        if frontier.settled > since:
            return
        waiter = _Waiter(None if reader.visible is None else frozenset(reader.visible))
        self._waiters.add(waiter)
        self._start_polling(since)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(waiter.woken.wait(), seconds)
        finally:
            self._waiters.discard(waiter)

    def _start_polling(self, since: int) -> None:
        # Events between the reader's own query and now have already sent their notification.
        self._notified.set()
        if self._polling is None or self._polling.done():
            self._notifications.subscribe(self._on_notification)
            self._polled_to = since
            polling = supervised(self._poll_forever, "the poll for new events")
            self._polling = asyncio.get_running_loop().create_task(polling, name="events")

    def _on_notification(self, changed: dict[str, list[int]]) -> None:
        if "jobs" in changed:
            self._notified.set()

    async def _poll_forever(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._notified.wait(), POLL_SECONDS)
            await asyncio.sleep(GATHER_SECONDS)
            self._notified.clear()
            if not self._waiters:
                continue
            try:
                self._polled_to, tenants = await run_in_thread(self._threads, partial(_advance, self._polled_to))
            except (DatabaseAway, WorkFailed):
                self._notified.set()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._wake(tenants)
            if frontier.is_waiting:
                self._notified.set()

    def _wake(self, tenants: frozenset[int] | None) -> None:
        for waiter in self._waiters:
            if tenants is None or (tenants if waiter.visible is None else tenants & waiter.visible):
                waiter.woken.set()


def _advance(since: int) -> tuple[int, frozenset[int] | None]:
    """Return (the last settled id, the tenants with new events; None: too many events to examine)."""
    settled = frontier.advance()
    if settled - since > MAX_LOOKED_AT:
        return settled, None
    return settled, frozenset(tenants_between(since, settled) if settled > since else ())


def _close_connections(together: Barrier) -> None:
    # The barrier makes each thread run this once: connections belong to a thread.
    together.wait(5)
    connections.close_all()


def _sse_event(event: dict[str, Any]) -> bytes:
    head = f"id: {event['id']}\nevent: {event['kind']}\ndata: ".encode()
    return head + msgspec.json.encode(event) + b"\n\n"


def _sse_id(since: int) -> bytes:
    """Return a comment with the id from which to continue; it also keeps connections alive."""
    return f": alive\nid: {since}\n\n".encode()


hub = EventStreams()
