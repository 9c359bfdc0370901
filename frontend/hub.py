"""The pages connected to this web process: which topics they watch, when the database is looked at for them again, and
who is told what."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic

import msgspec
from django.db import connections

from frontend import feed
from frontend.access import Access, Session, Viewer, access_of
from frontend.looking import News, look
from frontend.outbox import Outbox
from frontend.topics import KINDS, View, job_of, kind_of, view
from gpusched.lib.listener import Listener, listener
from gpusched.lib.threads import ask
from gpusched.lib.times import rfc3339
from scheduling.services import scheduler_lag

logger = logging.getLogger(__name__)
MOST_TOPICS = 20
NOT_AUTHENTICATED, TRY_AGAIN_LATER = 4401, 1013
# A change is told at once, its followers together a moment later.
GATHER_SECONDS = 0.02
PAUSE_SECONDS = 0.1
# What is read at leisure is told at leisure.
PAUSES_SECONDS = {"people": 0.5}
# Looking at one list costs at most a tenth of a core, however large the cluster is; the others need not wait for it.
PAUSE_PER_LOOK = 9.0
RETRY_SECONDS = 0.5
ALIVE_SECONDS = 2.0
RECHECK_SECONDS = 15.0
# Readings and waits change without a bell; of the rest a lost bell costs this much freshness.
LOOK_AGAIN_SECONDS = {"nodes": 1.0, "overview": 1.0}
LOOK_AGAIN_ANYWAY_SECONDS = 5.0
# Which kinds of topics may look different after which bell; of the topics of single jobs only those that it names.
_RUNG = {
    "jobs": KINDS,
    "nodes": {"nodes", "overview", "node", "health", "notices"},
    "tenants": KINDS - {"job"},
    "assignments": {"nodes", "overview", "node"},
    "logs": {"job"},
    "notices": {"notices"},
}


@dataclass(eq=False)
class Client:
    """A page. `wants`: topics of which it is to get a snapshot, and no deltas before that."""

    session: Session
    outbox: Outbox
    close: Callable[[int], Awaitable[None]]
    viewer: Viewer = field(default_factory=Viewer)
    topics: set[str] = field(default_factory=set)
    wants: set[str] = field(default_factory=set)


class LiveHub:
    """One per web process; all its state lives in the event loop. What the database says is loaded once for all."""

    def __init__(self, doorbell: Listener = listener) -> None:
        self._doorbell = doorbell
        self._clients: set[Client] = set()
        self._known: dict[View, feed.Rows] = {}
        self._dirty: set[str] = set()
        self._looked_at: dict[str, float] = {}
        self._resumes_at: dict[str, float] = {}
        self._rung = asyncio.Event()
        self._cycle_at: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._looks = ThreadPoolExecutor(1, thread_name_prefix="live-looks")
        self._questions = ThreadPoolExecutor(1, thread_name_prefix="live-questions")

    def start(self) -> None:
        """Harmless when repeated; called with the first page."""
        if not self._tasks:
            self._doorbell.subscribe(self._ring)
            loop = asyncio.get_running_loop()
            work = (self._look_again_and_again, self._say_alive, self._ask_for_cycles, self._check_access)
            self._tasks = [loop.create_task(_for_ever(each)) for each in work]

    async def stop(self) -> None:
        """Ends the tasks and the threads with their connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in (self._looks, self._questions):
            pool.submit(connections.close_all)
            pool.shutdown()

    # --- what pages do ---------------------------------------------------------------------------------------------

    async def join(self, client: Client) -> int | None:
        """None, or the code to close with."""
        self.start()
        answer = await ask(self._questions, lambda: access_of([client.session]))
        if answer is None:
            return TRY_AGAIN_LATER
        if not answer[0].is_allowed:
            return NOT_AUTHENTICATED
        client.viewer = Viewer(answer[0].visible, client.session.user_id)
        self._clients.add(client)
        client.outbox.alive(self._alive())
        return None

    def leave(self, client: Client) -> None:
        self._clients.discard(client)

    def subscribe(self, client: Client, topics: Iterable[str], fresh: Iterable[str] = ()) -> None:
        """Replaces the set of topics; new ones and those in `fresh` get a snapshot."""
        asked = list(dict.fromkeys(topics))[: 2 * MOST_TOPICS]
        known = [topic for topic in asked if kind_of(topic)]
        wanted = set(known[:MOST_TOPICS])
        for topic in asked:
            if topic not in wanted:
                _refuse(client, topic, "too_many_topics" if topic in known else "unknown_topic")
        for topic in client.topics - wanted:
            client.outbox.forget(topic)
            client.wants.discard(topic)
        new = (wanted - client.topics) | (wanted & set(fresh))
        client.topics = wanted
        self.refresh(client, new)

    def refresh(self, client: Client, topics: set[str]) -> None:
        """The page is to get snapshots of these, from a look that begins after this moment."""
        wanted = topics & client.topics
        for topic in wanted:
            client.outbox.forget(topic)
        client.wants |= wanted
        self._mark(wanted)

    # --- when to look ----------------------------------------------------------------------------------------------

    def _ring(self, changed: dict[str, list[int]]) -> None:
        watched = self._watched()
        for bell, ids in changed.items():
            kinds = _RUNG.get(bell, set())
            self._mark({topic for topic in watched if kind_of(topic) in kinds and _concerns(ids, topic)})

    def _mark(self, topics: AbstractSet[str]) -> None:
        if topics:
            self._dirty |= topics
            self._rung.set()

    def _watched(self) -> set[str]:
        return {topic for client in self._clients for topic in client.topics}

    async def _look_again_and_again(self) -> None:
        while True:
            await self._ring_or_time(self._seconds_to_wait())
            await asyncio.sleep(GATHER_SECONDS)
            self._rung.clear()
            for group, topics in self._due():
                began = monotonic()
                self._dirty -= topics
                pause = PAUSES_SECONDS.get(group, PAUSE_SECONDS) if await self._look(topics) else RETRY_SECONDS
                self._resumes_at[group] = monotonic() + max(pause, PAUSE_PER_LOOK * (monotonic() - began))

    def _due(self) -> list[tuple[str, set[str]]]:
        """What is to be looked at now, together what is loaded together; the fleet last: it takes longest."""
        watched, now = self._watched(), monotonic()
        self._dirty = (self._dirty & watched) | {topic for topic in watched if self._due_at(topic) <= now}
        groups: dict[str, set[str]] = {}
        for topic in self._dirty:
            if self._resumes_at.get(_group(topic), 0.0) <= now:
                groups.setdefault(_group(topic), set()).add(topic)
        return sorted(groups.items(), key=lambda group: group[0] == "nodes")

    async def _ring_or_time(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)

    def _due_at(self, topic: str) -> float:
        period = LOOK_AGAIN_SECONDS.get(topic, LOOK_AGAIN_ANYWAY_SECONDS)
        return self._looked_at.get(topic, float("-inf")) + period

    def _seconds_to_wait(self) -> float | None:
        times = [
            max(0.0 if topic in self._dirty else self._due_at(topic), self._resumes_at.get(_group(topic), 0.0))
            for topic in self._watched()
        ]
        return max(0.0, min(times) - monotonic()) if times else None

    # --- looking ---------------------------------------------------------------------------------------------------

    async def _look(self, topics: set[str]) -> bool:
        watching = [(client, topic) for client in self._clients for topic in client.topics & topics]
        views = {view(topic, client.viewer) for client, topic in watching}
        wanted = {view(topic, client.viewer) for client, topic in watching if topic in client.wants}
        before = {seen: self._known[seen] for seen in views if seen in self._known}
        now = monotonic()
        news = await ask(self._looks, lambda: look(views, before, wanted))
        if news is None:
            self._mark(topics)
            return False
        self._looked_at.update(dict.fromkeys(topics, now))
        self._tell(news)
        return True

    def _tell(self, news: dict[View, News]) -> None:
        self._known.update({seen: told.rows for seen, told in news.items() if told.rows is not None})
        for client in self._clients:
            for topic in list(client.topics):
                told = news.get(view(topic, client.viewer))
                if told is not None:
                    _tell_one(client, topic, told)
        watched = {view(topic, client.viewer) for client in self._clients for topic in client.topics}
        self._known = {seen: rows for seen, rows in self._known.items() if seen in watched}
        self._looked_at = {topic: at for topic, at in self._looked_at.items() if topic in self._watched()}

    # --- once in a while -------------------------------------------------------------------------------------------

    def _alive(self) -> str:
        age = None if self._cycle_at is None else round(monotonic() - self._cycle_at, 1)
        return msgspec.json.encode({"alive": rfc3339(datetime.now(UTC)), "cycle_age_seconds": age}).decode()

    async def _say_alive(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            message = self._alive()
            for client in self._clients:
                client.outbox.alive(message)

    async def _ask_for_cycles(self) -> None:
        """Apart from saying so: a database that does not answer must not silence the pages."""
        while True:
            lag = await ask(self._questions, scheduler_lag) if self._clients else None
            if lag is not None and lag["age_seconds"] is not None:
                self._cycle_at = monotonic() - lag["age_seconds"]
            await asyncio.sleep(ALIVE_SECONDS)

    async def _check_access(self) -> None:
        """Who has been logged out or has left a tenant hears no more of it."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            clients = list(self._clients)
            answers = await ask(self._questions, lambda: access_of([c.session for c in clients]))  # noqa: B023
            for client, answer in zip(clients, answers or [], strict=False):
                await self._take_access(client, answer)

    async def _take_access(self, client: Client, answer: Access) -> None:
        if not answer.is_allowed:
            self.leave(client)
            await client.close(NOT_AUTHENTICATED)
        elif answer.visible != client.viewer.visible:
            client.viewer = Viewer(answer.visible, client.session.user_id)
            client.outbox.forget_all()
            self.refresh(client, client.topics)


_TOGETHER = {"overview": "nodes", "tenant": "tenants", "health": "people", "notices": "people"}


def _concerns(ids: list[int], topic: str) -> bool:
    return not ids or job_of(topic) is None or job_of(topic) in ids


def _group(topic: str) -> str:
    """What is loaded together."""
    kind = kind_of(topic) or ""
    return _TOGETHER.get(kind, kind)


def _tell_one(client: Client, topic: str, told: News) -> None:
    if told.rows is None:
        client.topics.discard(topic)
        client.wants.discard(topic)
        client.outbox.forget(topic)
        _refuse(client, topic, "not_found")
    elif topic not in client.wants:
        if told.delta is not None:
            client.outbox.delta(topic, told.delta)
    elif told.snapshot is not None:
        client.wants.discard(topic)
        client.outbox.snapshot(topic, told.snapshot)


async def _for_ever(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except Exception:
            logger.exception("a task of the live feed failed, starting it again")
        await asyncio.sleep(RETRY_SECONDS)


def _refuse(client: Client, topic: str, error: str) -> None:
    client.outbox.plain(msgspec.json.encode({"topic": topic, "error": error}).decode())


hub = LiveHub()
