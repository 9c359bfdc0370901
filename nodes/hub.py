"""The agents connected to this web process: their messages are gathered for a moment and processed in one transaction,
and what changed for them is pushed.

Measured with 200 agents at 1 Hz: one transaction each costs eight times the processor time of one per 20 ms."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from gpusched.lib.listener import listener
from gpusched.lib.sql import execute
from gpusched.lib.threads import ask
from gpusched.protocol.messages import Desired, Run, Sync
from nodes.sync import process, process_apart, push

GATHER_SECONDS = 0.02
# A push waits a moment for its neighbours: a cycle that places on 200 nodes is one question to the database.
PUSH_SECONDS = 0.003
MOST_AT_ONCE = 100
LEASE_SECONDS = 1.0
# What a node was told to run is spelled out again if it has not started by then.
TELL_AGAIN_SECONDS = 5.0


class Link(Protocol):
    """A connected agent."""

    node_id: int

    def deliver(self, answer: Desired) -> None: ...


class AgentHub:
    """One per web process. All its state lives in the event loop; the database is asked from one thread for messages
    and another for pushes, so that neither waits for the other."""

    def __init__(self) -> None:
        self._links: dict[int, Link] = {}
        self._told: dict[int, dict[str, float]] = {}  # node → key → when, on the connection that it has
        self._inbox: list[tuple[float, Link, Sync]] = []  # with when they came
        self._answering_since: float | None = None  # when the first of those came that are being processed
        self._dirty_nodes: set[int] = set()
        self._dirty_jobs: set[int] = set()
        self._all_dirty = False
        self._arrived = asyncio.Event()
        self._rung = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._messages = ThreadPoolExecutor(1, thread_name_prefix="agent-messages")
        self._pushes = ThreadPoolExecutor(1, thread_name_prefix="agent-pushes")

    def start(self) -> None:
        """Harmless when repeated. Called at the first request of the process: Daphne has no start-up hook."""
        if not self._tasks:
            listener.subscribe(self._ring)
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(work()) for work in (self._process, self._push, self._keep_lease)]

    def connect(self, link: Link) -> None:
        self._links[link.node_id] = link
        self._told[link.node_id] = {}
        self._dirty_nodes.add(link.node_id)
        self._rung.set()

    def disconnect(self, link: Link) -> None:
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id], self._told[link.node_id]

    def receive(self, link: Link, message: Sync) -> None:
        self._inbox.append((time.monotonic(), link, message))
        self._arrived.set()

    def waiting_seconds(self) -> float:
        """How long the message that has waited longest has; 0 where none does. From any thread."""
        waiting, since = self._inbox, self._answering_since
        if since is None and waiting:
            since = waiting[0][0]
        return 0.0 if since is None else time.monotonic() - since

    def _ring(self, changed: dict[str, list[int]]) -> None:
        for topic, dirty in (("assignments", self._dirty_nodes), ("stops", self._dirty_jobs)):
            if topic in changed:
                dirty.update(changed[topic])
                self._all_dirty |= not changed[topic]
                self._rung.set()

    async def _process(self) -> None:
        while True:
            await self._arrived.wait()
            await asyncio.sleep(GATHER_SECONDS)
            taken, self._inbox = self._inbox[:MOST_AT_ONCE], self._inbox[MOST_AT_ONCE:]
            self._answering_since, batch = taken[0][0], [(link, message) for _, link, message in taken]
            if not self._inbox:
                self._arrived.clear()
            told = self._told_lately()
            work = partial(process, [(link.node_id, message) for link, message in batch], told)
            answers = await ask(self._messages, work)
            if answers is None:
                answers = [await self._alone(link, message) for link, message in batch]
            for (link, _), answer in zip(batch, answers, strict=True):
                self._deliver(link, answer)
            self._answering_since = None

    async def _alone(self, link: Link, message: Sync) -> Desired:
        """One message of a batch that failed: what is wrong with one must not silence the others. The agent repeats
        what was not acknowledged."""
        answer = await ask(self._messages, partial(process_apart, link.node_id, message))
        return answer if answer else Desired(seq=message.seq, error="not written, send again")

    async def _push(self) -> None:
        while True:
            await self._rung.wait()
            await asyncio.sleep(PUSH_SECONDS)
            self._rung.clear()
            nodes = set(self._links) if self._all_dirty else self._dirty_nodes & set(self._links)
            jobs, self._dirty_jobs, self._dirty_nodes, self._all_dirty = self._dirty_jobs, set(), set(), False
            if not nodes and not jobs:
                continue
            answers = await ask(self._pushes, partial(push, sorted(nodes), sorted(jobs), self._told_lately()))
            for node_id, answer in (answers or {}).items():
                if link := self._links.get(node_id):
                    self._deliver(link, answer)

    def _deliver(self, link: Link, answer: Desired) -> None:
        if self._links.get(link.node_id) is link:
            now = time.monotonic()
            runs = {order.key: now for order in answer.assignments if isinstance(order, Run)}
            self._told[link.node_id].update(runs)
        link.deliver(answer)

    def _told_lately(self) -> dict[int, set[str]]:
        since = time.monotonic() - TELL_AGAIN_SECONDS
        for node_id, keys in self._told.items():
            if keys:
                self._told[node_id] = {key: at for key, at in keys.items() if at > since}
        return {node_id: set(keys) for node_id, keys in self._told.items() if keys}

    async def _keep_lease(self) -> None:
        while True:
            await ask(self._messages, renew_lease)  # behind the messages: it says that those are heard
            await asyncio.sleep(LEASE_SECONDS)


def renew_lease() -> None:
    """Says that agents can be heard. After a gap of three seconds the time without a break starts anew."""
    execute(
        """INSERT INTO nodes_listenerlease (id, since, seen_at) VALUES (1, clock_timestamp(), clock_timestamp())
           ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at,
              since = CASE WHEN nodes_listenerlease.seen_at < excluded.seen_at - interval '3 seconds'
                           THEN excluded.since ELSE nodes_listenerlease.since END"""
    )


hub = AgentHub()
