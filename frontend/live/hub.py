"""The hub of a web process: the topics that connected pages watch, when they are loaded, and what is sent to each
page."""

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
# Every second `alive` requests an answer: messages from pages cost more than messages to them.
ALIVE_PER_ANSWER = 2
# Pages are split into this many parts: hundreds of answers at once would delay the feed.
ALIVE_PARTS = 10
RECHECK_SECONDS = 15.0


@dataclass(eq=False)
class Client:
    """A connected page. `needs_snapshot`: topics that need a snapshot before any delta. `part`: its slot for `alive`
    messages."""

    session: Session
    outbox: Outbox
    close: Callable[[int], Awaitable[None]]
    viewer: Viewer = field(default_factory=Viewer)
    topics: set[str] = field(default_factory=set)
    needs_snapshot: set[str] = field(default_factory=set)
    part: int = field(default_factory=cycle(range(ALIVE_PARTS)).__next__)


class LiveHub:
    """The live feed of one web process. Its state lives in the event loop; each topic is loaded once for all pages."""

    def __init__(self, event_listener: Listener = listener) -> None:
        self._listener = event_listener
        self._clients: set[Client] = set()
        self._rows: dict[View, Rows] = {}
        self._dirty: set[str] = set()
        self._loaded_at: dict[str, float] = {}
        self._resumes_at: dict[str, float] = {}
        self._costs = invalidation.LoadCosts()
        self._wakeup = asyncio.Event()
        self._invalidations = Invalidations()
        self._loader = FeedLoader()
        self._cycle_at: float | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._db = DbThreads()

    def start(self) -> None:
        """Start the tasks, once; called with the first page."""
        if not self._tasks:
            self._listener.subscribe(self._on_change)
            loop = asyncio.get_running_loop()
            work = (self._load_forever, self._send_alive, self._poll_cycles, self._check_access)
            self._tasks = [loop.create_task(supervised(each, "a task of the live feed")) for each in work]

    async def stop(self) -> None:
        """End the tasks, and the threads with their connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._db.close()

    # --- pages -----------------------------------------------------------------------------------------------------

    async def join(self, client: Client) -> int | None:
        """Add a page. Return None, or the close code."""
        self.start()
        answer = await self._db.query(lambda: access_of([client.session]))
        if answer is None:
            return TRY_AGAIN_LATER
        if not answer[0].is_allowed:
            return NOT_AUTHENTICATED
        client.viewer = Viewer(answer[0].visible, client.session.user_id)
        self._clients.add(client)
        client.outbox.alive(self._alive(), is_low_priority=False)
        return None

    def leave(self, client: Client) -> None:
        self._clients.discard(client)

    def subscribe(self, client: Client, topics: Iterable[str], fresh: Iterable[str] = ()) -> None:
        """Replace the topics of a page; new ones and those in `fresh` get a snapshot."""
        requested = list(dict.fromkeys(topics))[: 2 * MAX_TOPICS]
        valid = [topic for topic in requested if kind_of(topic)]
        accepted = set(valid[:MAX_TOPICS])
        for topic in requested:
            if topic not in accepted:
                _refuse(client, topic, "too_many_topics" if topic in valid else "unknown_topic")
        for topic in client.topics - accepted:
            client.outbox.drop(topic)
            client.needs_snapshot.discard(topic)
        new = (accepted - client.topics) | (accepted & set(fresh))
        client.topics = accepted
        self.refresh(client, new)

    def refresh(self, client: Client, topics: set[str]) -> None:
        """Send the page snapshots of these topics, from a load that begins after this moment."""
        refreshed = topics & client.topics
        for topic in refreshed:
            client.outbox.drop(topic)
        client.needs_snapshot |= refreshed
        for group in {invalidation.group_of(topic) for topic in refreshed}:
            # A new page does not wait for the full pause; only slow groups keep theirs.
            soon = monotonic() + max(invalidation.PAUSE_SECONDS, self._costs.of(group))
            self._resumes_at[group] = min(self._resumes_at.get(group, 0.0), soon)
        self._mark(refreshed)

    # --- scheduling ------------------------------------------------------------------------------------------------

    def _on_change(self, changed: dict[str, list[int]]) -> None:
        watched = self._watched()
        for kind, ids in changed.items():
            self._invalidations.record(kind, ids)
            self._mark(invalidation.invalidated_topics(kind, ids, watched))

    def _mark(self, topics: AbstractSet[str]) -> None:
        if topics:
            self._dirty |= topics
            self._wakeup.set()

    def _watched(self) -> set[str]:
        return {topic for client in self._clients for topic in client.topics}

    async def _load_forever(self) -> None:
        while True:
            await self._wait_for_change(self._seconds_to_wait())
            await asyncio.sleep(BATCH_SECONDS)
            self._wakeup.clear()
            for group, topics in self._due():
                if invalidation.is_low_priority(group):
                    await asyncio.sleep(BATCH_SECONDS)  # let sent messages leave first: a load would delay them
                self._publish(await self._load_group(group, topics), topics)

    async def _load_group(self, group: str, topics: set[str]) -> dict[View, Update]:
        began = monotonic()
        self._dirty -= topics
        updates = await self._load(topics)
        self._costs.add(group, monotonic() - began)
        pause = RETRY_SECONDS if updates is None else invalidation.pause_after(group, self._costs.of(group))
        self._resumes_at[group] = monotonic() + pause
        return updates or {}

    def _due(self) -> list[tuple[str, set[str]]]:
        """Return the topics due now by load group, quickest first."""
        watched, now = self._watched(), monotonic()
        self._dirty = (self._dirty & watched) | {topic for topic in watched if self._due_at(topic) <= now}
        groups: dict[str, set[str]] = {}
        for topic in self._dirty:
            if self._resumes_at.get(invalidation.group_of(topic), 0.0) <= now:
                groups.setdefault(invalidation.group_of(topic), set()).add(topic)
        return sorted(groups.items(), key=lambda due: (invalidation.is_low_priority(due[0]), self._costs.of(due[0])))

    async def _wait_for_change(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wakeup.wait(), seconds)

    def _due_at(self, topic: str) -> float:
        return self._loaded_at.get(topic, float("-inf")) + invalidation.period(topic)

    def _seconds_to_wait(self) -> float | None:
        times = [
            max(
                0.0 if topic in self._dirty else self._due_at(topic),
                self._resumes_at.get(invalidation.group_of(topic), 0.0),
            )
            for topic in self._watched()
        ]
        return max(0.0, min(times) - monotonic()) if times else None

    # --- loading ---------------------------------------------------------------------------------------------------

    async def _load(self, topics: set[str]) -> dict[View, Update] | None:
        """Load topics. Return None if the database did not answer."""
        watching = [(client, topic) for client in self._clients for topic in client.topics & topics]
        views = {view(topic, client.viewer) for client, topic in watching}
        needing_snapshot = {view(topic, client.viewer) for client, topic in watching if topic in client.needs_snapshot}
        previous = {known_view: self._rows[known_view] for known_view in views if known_view in self._rows}
        changes, self._invalidations = self._invalidations, Invalidations()
        now = monotonic()
        updates = await self._db.load(lambda: self._loader.load(views, previous, needing_snapshot, changes))
        if updates is None:
            self._invalidations.record("nodes", ())
            self._mark(topics)
            return None
        self._loaded_at.update(dict.fromkeys(topics, now))
        return updates

    def _publish(self, updates: dict[View, Update], topics: set[str]) -> None:
        self._rows.update({view_key: update.rows for view_key, update in updates.items() if update.rows is not None})
        low_priority = {topic for topic in topics if invalidation.is_low_priority(invalidation.group_of(topic))}
        for client in self._clients:
            for topic in client.topics & topics:
                update = updates.get(view(topic, client.viewer))
                if update is not None:
                    _send_update(client, topic, update, is_low_priority=topic in low_priority)

    def _drop_unwatched(self) -> None:
        """Drop state of topics that no page watches."""
        watched = {view(topic, client.viewer) for client in self._clients for topic in client.topics}
        self._rows = {view_key: rows for view_key, rows in self._rows.items() if view_key in watched}
        topics = {topic for topic, _ in watched}
        self._loaded_at = {topic: at for topic, at in self._loaded_at.items() if topic in topics}

    # --- periodic tasks --------------------------------------------------------------------------------------------

    def _alive(self, needs_answer: bool = False) -> str:
        age = None if self._cycle_at is None else round(monotonic() - self._cycle_at, 1)
        message: dict[str, object] = {"alive": rfc3339(datetime.now(UTC)), "cycle_age_seconds": age}
        if (outage := self._db.outage_seconds) is not None:
            message["blind_seconds"] = round(outage, 1)
        return msgspec.json.encode({**message, "answer": True} if needs_answer else message).decode()

    async def _send_alive(self) -> None:
        for number in count(1):
            needs_answer = number % ALIVE_PER_ANSWER == 0
            for part in range(ALIVE_PARTS):
                await asyncio.sleep(ALIVE_SECONDS / ALIVE_PARTS)
                message = self._alive(needs_answer)
                for client in self._clients:
                    if client.part == part:
                        client.outbox.alive(message, needs_answer=needs_answer)
            self._drop_unwatched()

    async def _poll_cycles(self) -> None:
        """Query the scheduler lag, apart from sending it: a database outage must not stop `alive` messages."""
        while True:
            lag = await self._db.query(scheduler_lag) if self._clients else None
            if lag is not None and lag["age_seconds"] is not None:
                self._cycle_at = monotonic() - lag["age_seconds"]
            await asyncio.sleep(ALIVE_SECONDS)

    async def _check_access(self) -> None:
        """Remove pages whose session ended, and refresh those whose tenants changed."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            clients = list(self._clients)
            answers = await self._db.query(lambda: access_of([c.session for c in clients]))  # noqa: B023
            for client, answer in zip(clients, answers or [], strict=False):
                await self._apply_access(client, answer)

    async def _apply_access(self, client: Client, answer: Access) -> None:
        if not answer.is_allowed:
            self.leave(client)
            await client.close(NOT_AUTHENTICATED)
        elif answer.visible != client.viewer.visible:
            client.viewer = Viewer(answer.visible, client.session.user_id)
            client.outbox.drop_all()
            self.refresh(client, client.topics)


def _send_update(client: Client, topic: str, update: Update, *, is_low_priority: bool) -> None:
    if update.rows is None:
        client.topics.discard(topic)
        client.needs_snapshot.discard(topic)
        client.outbox.drop(topic)
        _refuse(client, topic, "not_found")
    elif topic not in client.needs_snapshot:
        if update.delta is not None:
            client.outbox.delta(topic, update.delta, is_low_priority=is_low_priority)
    elif update.snapshot is not None:
        client.needs_snapshot.discard(topic)
        client.outbox.snapshot(topic, update.snapshot)


def _refuse(client: Client, topic: str, error: str) -> None:
    client.outbox.plain(msgspec.json.encode({"topic": topic, "error": error}).decode())


hub = LiveHub()
