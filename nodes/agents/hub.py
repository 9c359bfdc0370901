"""The agents connected to this web process: their messages are gathered for a moment and processed in one transaction,
and what changed for them is pushed.

Measured with 200 agents at 1 Hz: one transaction each costs eight times the processor time of one per 20 ms."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Protocol

from gpusched.lib.bus.listener import listener
from gpusched.lib.db.sql import execute
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from gpusched.lib.process.supervised import supervised
from gpusched.protocol.agent_messages import Desired, Run, Sync
from nodes.agents.inbox import Inbox, Waiting
from nodes.agents.sync import process, process_leniently, push
from nodes.inventory.removal import REFUSAL

logger = logging.getLogger(__name__)
GATHER_SECONDS = 0.02
# A push waits a moment for its neighbours: a cycle that places on 200 nodes is one question to the database.
PUSH_SECONDS = 0.003
MAX_AT_ONCE = 100
LEASE_SECONDS = 1.0
# Of a database that is away.
RETRY_SECONDS = 1.0
# What a node was told to run is spelled out again if it has not started by then.
RESEND_SECONDS = 5.0


class AgentLink(Protocol):
    """A connected agent."""

    node_id: int

    def deliver(self, answer: Desired) -> None: ...

    def refuse(self, reason: str) -> None: ...


class AgentHub:
    """One per web process. All its state lives in the event loop; the database is asked from one thread for messages
    and another for pushes, so that neither waits for the other."""

    def __init__(self) -> None:
        self._links: dict[int, AgentLink] = {}
        self._told: dict[int, dict[str, float]] = {}  # node → key → when, on the connection that it has
        self._inbox: Inbox[AgentLink] = Inbox()
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
            works = (self._process, self._push, self._keep_lease)
            self._tasks = [loop.create_task(supervised(work, "a task of the agents' hub")) for work in works]

    def connect(self, link: AgentLink) -> None:
        self._links[link.node_id] = link
        self._told[link.node_id] = {}
        self._dirty_nodes.add(link.node_id)
        self._rung.set()

    def disconnect(self, link: AgentLink) -> None:
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id], self._told[link.node_id]

    def receive(self, link: AgentLink, message: Sync) -> bool:
        """False: too much waits of this agent; its connection is to be closed, and it tells its reports again."""
        self._arrived.set()
        return self._inbox.put(time.monotonic(), link, message)

    def waiting_seconds(self) -> float:
        """How long the message that has waited longest has; 0 where none does. From any thread."""
        since = self._answering_since
        if since is None:
            since = self._inbox.oldest_at
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
            batch = self._inbox.take(MAX_AT_ONCE)
            if not batch:
                self._arrived.clear()
                continue
            self._answering_since = batch[0].since
            try:
                await self._answer(batch)
            except Exception:
                for waiting in batch:
                    self._refuse(waiting)
                raise
            finally:
                self._answering_since = None

    async def _answer(self, batch: list[Waiting[AgentLink]]) -> None:
        now = time.monotonic()
        work = partial(process, [(one.link.node_id, one.as_of(now)) for one in batch], self._told_lately())
        try:
            answers = await run_in_thread(self._messages, work)
        except DatabaseAway:
            await self._keep_for_later(batch)
        except WorkFailed:
            await self._answer_apart(batch)
        else:
            for waiting, answer in zip(batch, answers, strict=True):
                self._deliver(waiting.link, answer)

    async def _answer_apart(self, batch: list[Waiting[AgentLink]]) -> None:
        """Messages of a batch that failed, one by one: what is wrong with one must not silence the others."""
        for number, waiting in enumerate(batch):
            work = partial(process_leniently, waiting.link.node_id, waiting.as_of(time.monotonic()))
            try:
                self._deliver(waiting.link, await run_in_thread(self._messages, work))
            except DatabaseAway:
                return await self._keep_for_later(batch[number:])
            except WorkFailed:
                self._refuse(waiting)
        return None

    async def _keep_for_later(self, batch: list[Waiting[AgentLink]]) -> None:
        """The database is away, for others as well: nothing is acknowledged, and all of it is tried again. Agents are
        sent a sign of life meanwhile, or they would close their connections, and could make no new ones."""
        self._inbox.put_back(batch)
        for link in list(self._links.values()):
            self._deliver(link, Desired())
        await asyncio.sleep(RETRY_SECONDS)

    def _refuse(self, waiting: Waiting[AgentLink]) -> None:
        """The agent repeats what was not acknowledged, and its facts."""
        self._deliver(waiting.link, Desired(seq=waiting.message.seq, error="not written, send again"))

    async def _push(self) -> None:
        while True:
            await self._rung.wait()
            await asyncio.sleep(PUSH_SECONDS)
            self._rung.clear()
            nodes = set(self._links) if self._all_dirty else self._dirty_nodes & set(self._links)
            jobs, self._dirty_jobs, self._dirty_nodes, self._all_dirty = self._dirty_jobs, set(), set(), False
            if not nodes and not jobs:
                continue
            work = partial(push, sorted(nodes), sorted(jobs), self._told_lately())
            try:
                answers = await run_in_thread(self._pushes, work)
            except DatabaseAway:
                self._dirty_nodes |= nodes
                self._dirty_jobs |= jobs
                self._rung.set()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except WorkFailed:
                continue  # the next message of each agent is answered with the same
            for node_id, answer in answers.items():
                if link := self._links.get(node_id):
                    self._deliver(link, answer)

    def _deliver(self, link: AgentLink, answer: Desired) -> None:
        """What is wrong with one connection must not keep the others from their answers."""
        if answer.error == REFUSAL:
            link.refuse(REFUSAL)
            return
        if self._links.get(link.node_id) is link:
            now = time.monotonic()
            runs = {order.key: now for order in answer.assignments if isinstance(order, Run)}
            self._told[link.node_id].update(runs)
        try:
            link.deliver(answer)
        except Exception:
            logger.exception("the answer to node %d cannot be sent", link.node_id)

    def _told_lately(self) -> dict[int, set[str]]:
        since = time.monotonic() - RESEND_SECONDS
        for node_id, keys in self._told.items():
            if keys:
                self._told[node_id] = {key: at for key, at in keys.items() if at > since}
        return {node_id: set(keys) for node_id, keys in self._told.items() if keys}

    async def _keep_lease(self) -> None:
        while True:
            with suppress(DatabaseAway, WorkFailed):
                await run_in_thread(self._messages, renew_lease)  # behind the messages: it says that those are heard
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
