"""Those who wait for events in this web process: none holds a thread, each is woken by what they may see."""

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
# Of the database's bell one may be lost; this much freshness that costs.
POLL_SECONDS = 5.0
KEEPALIVE_SECONDS = 15.0
# Of a database that is away.
RETRY_SECONDS = 1.0
# A stream is ended then, and its client goes on from where it was: so it is asked again who it is.
MAX_STREAM_SECONDS = 300.0
# Of a busy cluster a stream tells ten times a second, not with each event.
PAUSE_SECONDS = 0.1

# Who reads is asked again; None: nobody any more.
Reauthorize = Callable[[], Reader | None]


@dataclass(eq=False)
class _Waiter:
    visible: frozenset[int] | None
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class EventStreams:
    """All its state lives in the event loop. The database is looked at once for all who wait, and once for each who is
    woken, from two threads."""

    def __init__(self, doorbell: Listener = listener) -> None:
        self._doorbell = doorbell
        self._waiters: set[_Waiter] = set()
        self._rung = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = 0
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="events")
        self.room = ConcurrencyLimiter(
            MAX_STREAMS, MAX_STREAMS_EACH, code="too_many_streams", what="readers wait for events",
            instead="try again later, or ask without `wait`",
        )  # fmt: skip

    async def poll(self, reader: Reader, since: int, seconds: float) -> AsyncIterator[bytes]:
        """One answer, as JSON: as soon as there is something to say, or after so many seconds."""
        ends_at = monotonic() + seconds
        page: dict[str, Any] = {"items": [], "next_since": since, "more": False}
        while not page["items"] and (left := ends_at - monotonic()) > 0:
            await self._news(page["next_since"], reader, left)
            found = await self._read(reader, page["next_since"])
            if found is None:
                break
            page = found
        yield msgspec.json.encode(page)

    async def stream(self, reader: Reader, since: int, again: Reauthorize) -> AsyncIterator[bytes]:
        """Server-sent events until the reader leaves, may no longer read, or a lifetime has passed. What the reader may
        not see also moves its id on: after a break it need not be looked at again."""
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
                await self._news(since, reader, KEEPALIVE_SECONDS)
            if monotonic() - asked_at >= KEEPALIVE_SECONDS:
                try:
                    found = await run_in_thread(self._threads, again)
                except (DatabaseAway, WorkFailed):
                    return  # the client connects again and goes on from its last id
                if found is None:
                    return
                reader, asked_at = found, monotonic()

    async def stop(self) -> None:
        """For tests, each of which has an event loop of its own."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        together = Barrier(THREADS)
        for _ in range(THREADS):
            self._threads.submit(_close_connections, together)
        self._threads.shutdown()

    async def _read(self, reader: Reader, since: int) -> dict[str, Any] | None:
        """None: the database did not answer, or the work failed."""
        try:
            return await run_in_thread(self._threads, partial(read, reader, since))
        except (DatabaseAway, WorkFailed):
            return None

    async def _news(self, since: int, reader: Reader, seconds: float) -> None:
        """Returns when there may be something after `since`, or after so many seconds."""
        if frontier.settled > since:
            return
        waiter = _Waiter(None if reader.visible is None else frozenset(reader.visible))
        self._waiters.add(waiter)
        self._look(since)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(waiter.woken.wait(), seconds)
        finally:
            self._waiters.discard(waiter)

    def _look(self, since: int) -> None:
        # What came between the reader's own look and now has rung already.
        self._rung.set()
        if self._looking is None or self._looking.done():
            self._doorbell.subscribe(self._ring)
            self._looked_at = since
            looking = supervised(self._look_for_ever, "the look for new events")
            self._looking = asyncio.get_running_loop().create_task(looking, name="events")

    def _ring(self, changed: dict[str, list[int]]) -> None:
        if "jobs" in changed:
            self._rung.set()

    async def _look_for_ever(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._rung.wait(), POLL_SECONDS)
            await asyncio.sleep(GATHER_SECONDS)
            self._rung.clear()
            if not self._waiters:
                continue
            try:
                self._looked_at, tenants = await run_in_thread(self._threads, partial(_advance, self._looked_at))
            except (DatabaseAway, WorkFailed):
                self._rung.set()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._wake(tenants)
            if frontier.is_waiting:
                self._rung.set()

    def _wake(self, tenants: frozenset[int] | None) -> None:
        for waiter in self._waiters:
            if tenants is None or (tenants if waiter.visible is None else tenants & waiter.visible):
                waiter.woken.set()


def _advance(since: int) -> tuple[int, frozenset[int] | None]:
    """(the last id that counts, the tenants that have something new; None: too much is new to look whose)."""
    settled = frontier.advance()
    if settled - since > MAX_LOOKED_AT:
        return settled, None
    return settled, frozenset(tenants_between(since, settled) if settled > since else ())


def _close_connections(together: Barrier) -> None:
    # Each thread has connections of its own, and none may do this twice.
    together.wait(5)
    connections.close_all()


def _sse_event(event: dict[str, Any]) -> bytes:
    head = f"id: {event['id']}\nevent: {event['kind']}\ndata: ".encode()
    return head + msgspec.json.encode(event) + b"\n\n"


def _sse_id(since: int) -> bytes:
    """No event, only the id from which to go on; also keeps connections alive."""
    return f": alive\nid: {since}\n\n".encode()


hub = EventStreams()
