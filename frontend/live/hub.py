"""The pages connected to this web process: which topics they watch, when the database is looked at for them again, and
who is told what."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, cycle
from time import monotonic

import msgspec

from frontend.live import invalidation
from frontend.live.db_threads import DbThreads
from frontend.live.loader import FeedLoader, Invalidations, Update
from frontend.live.outbox import Outbox
from frontend.live.topics import Rows, View, kind_of, view
from frontend.viewer import Viewer
from gpusched.lib.bus.listener import Listener, listener
from gpusched.lib.process.supervised import supervised
from gpusched.lib.times import rfc3339
from scheduling.status.cluster import scheduler_lag
from tenants.auth.page_access import Access, Session, access_of

logger = logging.getLogger(__name__)
MAX_TOPICS = 20
NOT_AUTHENTICATED, TRY_AGAIN_LATER = 4401, 1013
BATCH_SECONDS = 0.005
RETRY_SECONDS = 0.5
ALIVE_SECONDS = 2.0
# Each second `alive` is to be answered: what comes from pages costs more than what goes to them.
ALIVE_PER_ANSWER = 2
# To so many parts of the pages, one after the other: hundreds of answers in one moment would hold up what is told.
ALIVE_PARTS = 10
RECHECK_SECONDS = 15.0


@dataclass(eq=False)
class Client:
    """A page. `wants`: topics of which it is to get a snapshot, and no deltas before that. `part`: when it is told
    that the server is alive."""

    session: Session
    outbox: Outbox
    close: Callable[[int], Awaitable[None]]
    viewer: Viewer = field(default_factory=Viewer)
    topics: set[str] = field(default_factory=set)
    wants: set[str] = field(default_factory=set)
    part: int = field(default_factory=cycle(range(ALIVE_PARTS)).__next__)


class LiveHub:
    """One per web process; all its state lives in the event loop. What the database says is loaded once for all."""

    def __init__(self, doorbell: Listener = listener) -> None:
        self._doorbell = doorbell
        self._clients: set[Client] = set()
        self._known: dict[View, Rows] = {}
        self._dirty: set[str] = set()
        self._looked_at: dict[str, float] = {}
        self._resumes_at: dict[str, float] = {}
        self._costs = invalidation.LoadCosts()
        self._rung = asyncio.Event()
        self._bells = Invalidations()
        self._eyes = FeedLoader()
        self._cycle_at: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._sight = DbThreads()

    def start(self) -> None:
        """Harmless when repeated; called with the first page."""
        if not self._tasks:
            self._doorbell.subscribe(self._ring)
            loop = asyncio.get_running_loop()
            work = (self._look_again_and_again, self._say_alive, self._ask_for_cycles, self._check_access)
            self._tasks = [loop.create_task(supervised(each, "a task of the live feed")) for each in work]

    async def stop(self) -> None:
        """Ends the tasks and the threads with their connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sight.close()

    # --- what pages do ---------------------------------------------------------------------------------------------

    async def join(self, client: Client) -> int | None:
        """None, or the code to close with."""
        self.start()
        answer = await self._sight.question(lambda: access_of([client.session]))
        if answer is None:
            return TRY_AGAIN_LATER
        if not answer[0].is_allowed:
            return NOT_AUTHENTICATED
        client.viewer = Viewer(answer[0].visible, client.session.user_id)
        self._clients.add(client)
        client.outbox.alive(self._alive(), is_leisurely=False)
        return None

    def leave(self, client: Client) -> None:
        self._clients.discard(client)

    def subscribe(self, client: Client, topics: Iterable[str], fresh: Iterable[str] = ()) -> None:
        """Replaces the set of topics; new ones and those in `fresh` get a snapshot."""
        asked = list(dict.fromkeys(topics))[: 2 * MAX_TOPICS]
        known = [topic for topic in asked if kind_of(topic)]
        wanted = set(known[:MAX_TOPICS])
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
        for group in {invalidation.group_of(topic) for topic in wanted}:
            # Who has just come waits for no leisure; only a list that takes long is not looked at without a break.
            soon = monotonic() + max(invalidation.PAUSE_SECONDS, self._costs.of(group))
            self._resumes_at[group] = min(self._resumes_at.get(group, 0.0), soon)
        self._mark(wanted)

    # --- when to look ----------------------------------------------------------------------------------------------

    def _ring(self, changed: dict[str, list[int]]) -> None:
        watched = self._watched()
        for bell, ids in changed.items():
            self._bells.hear(bell, ids)
            self._mark(invalidation.invalidated_topics(bell, ids, watched))

    def _mark(self, topics: AbstractSet[str]) -> None:
        if topics:
            self._dirty |= topics
            self._rung.set()

    def _watched(self) -> set[str]:
        return {topic for client in self._clients for topic in client.topics}

    async def _look_again_and_again(self) -> None:
        while True:
            await self._ring_or_time(self._seconds_to_wait())
            await asyncio.sleep(BATCH_SECONDS)
            self._rung.clear()
            for group, topics in self._due():
                if invalidation.is_low_priority(group):
                    await asyncio.sleep(BATCH_SECONDS)  # what was told leaves first: a look would hold it up
                self._tell(await self._look_at(group, topics), topics)

    async def _look_at(self, group: str, topics: set[str]) -> dict[View, Update]:
        began = monotonic()
        self._dirty -= topics
        seen = await self._look(topics)
        self._costs.add(group, monotonic() - began)
        pause = RETRY_SECONDS if seen is None else invalidation.pause_after(group, self._costs.of(group))
        self._resumes_at[group] = monotonic() + pause
        return seen or {}

    def _due(self) -> list[tuple[str, set[str]]]:
        """What is to be looked at now, together what is loaded together; the quickest first, each told at once."""
        watched, now = self._watched(), monotonic()
        self._dirty = (self._dirty & watched) | {topic for topic in watched if self._due_at(topic) <= now}
        groups: dict[str, set[str]] = {}
        for topic in self._dirty:
            if self._resumes_at.get(invalidation.group_of(topic), 0.0) <= now:
                groups.setdefault(invalidation.group_of(topic), set()).add(topic)
        return sorted(groups.items(), key=lambda due: (invalidation.is_low_priority(due[0]), self._costs.of(due[0])))

    async def _ring_or_time(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)

    def _due_at(self, topic: str) -> float:
        return self._looked_at.get(topic, float("-inf")) + invalidation.period(topic)

    def _seconds_to_wait(self) -> float | None:
        times = [
            max(
                0.0 if topic in self._dirty else self._due_at(topic),
                self._resumes_at.get(invalidation.group_of(topic), 0.0),
            )
            for topic in self._watched()
        ]
        return max(0.0, min(times) - monotonic()) if times else None

    # --- looking ---------------------------------------------------------------------------------------------------

    async def _look(self, topics: set[str]) -> dict[View, Update] | None:
        """None: the database did not answer."""
        watching = [(client, topic) for client in self._clients for topic in client.topics & topics]
        views = {view(topic, client.viewer) for client, topic in watching}
        wanted = {view(topic, client.viewer) for client, topic in watching if topic in client.wants}
        before = {seen: self._known[seen] for seen in views if seen in self._known}
        rung, self._bells = self._bells, Invalidations()
        now = monotonic()
        news = await self._sight.look(lambda: self._eyes.look(views, before, wanted, rung))
        if news is None:
            self._bells.hear("nodes", ())
            self._mark(topics)
            return None
        self._looked_at.update(dict.fromkeys(topics, now))
        return news

    def _tell(self, news: dict[View, Update], topics: set[str]) -> None:
        self._known.update({seen: told.rows for seen, told in news.items() if told.rows is not None})
        leisurely = {topic for topic in topics if invalidation.is_low_priority(invalidation.group_of(topic))}
        for client in self._clients:
            for topic in client.topics & topics:
                told = news.get(view(topic, client.viewer))
                if told is not None:
                    _send_update(client, topic, told, is_leisurely=topic in leisurely)

    def _forget(self) -> None:
        """What nobody watches any more."""
        watched = {view(topic, client.viewer) for client in self._clients for topic in client.topics}
        self._known = {seen: rows for seen, rows in self._known.items() if seen in watched}
        topics = {topic for topic, _ in watched}
        self._looked_at = {topic: at for topic, at in self._looked_at.items() if topic in topics}

    # --- once in a while -------------------------------------------------------------------------------------------

    def _alive(self, is_to_answer: bool = False) -> str:
        age = None if self._cycle_at is None else round(monotonic() - self._cycle_at, 1)
        said: dict[str, object] = {"alive": rfc3339(datetime.now(UTC)), "cycle_age_seconds": age}
        if self._doorbell.hears_redis is False:
            said["late"] = True
        if (blind := self._sight.blind_seconds) is not None:
            said["blind_seconds"] = round(blind, 1)
        return msgspec.json.encode({**said, "answer": True} if is_to_answer else said).decode()

    async def _say_alive(self) -> None:
        for number in count(1):
            is_to_answer = number % ALIVE_PER_ANSWER == 0
            for part in range(ALIVE_PARTS):
                await asyncio.sleep(ALIVE_SECONDS / ALIVE_PARTS)
                message = self._alive(is_to_answer)
                for client in self._clients:
                    if client.part == part:
                        client.outbox.alive(message, is_to_answer=is_to_answer)
            self._forget()

    async def _ask_for_cycles(self) -> None:
        """Apart from saying so: a database that does not answer must not silence the pages."""
        while True:
            lag = await self._sight.question(scheduler_lag) if self._clients else None
            if lag is not None and lag["age_seconds"] is not None:
                self._cycle_at = monotonic() - lag["age_seconds"]
            await asyncio.sleep(ALIVE_SECONDS)

    async def _check_access(self) -> None:
        """Who has been logged out or has left a tenant hears no more of it."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            clients = list(self._clients)
            answers = await self._sight.question(lambda: access_of([c.session for c in clients]))  # noqa: B023
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


def _send_update(client: Client, topic: str, update: Update, *, is_leisurely: bool) -> None:
    if update.rows is None:
        client.topics.discard(topic)
        client.wants.discard(topic)
        client.outbox.forget(topic)
        _refuse(client, topic, "not_found")
    elif topic not in client.wants:
        if update.delta is not None:
            client.outbox.delta(topic, update.delta, is_leisurely=is_leisurely)
    elif update.snapshot is not None:
        client.wants.discard(topic)
        client.outbox.snapshot(topic, update.snapshot)


def _refuse(client: Client, topic: str, error: str) -> None:
    client.outbox.plain(msgspec.json.encode({"topic": topic, "error": error}).decode())


hub = LiveHub()
