"""Serve the agents connected to this web process: process their messages in batches, and push changed orders.

Measured with 200 agents at 1 Hz: a transaction per message costs eight times the CPU time of one per 20 ms."""

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
from nodes.agents.inbox import Inbox, QueuedMessage
from nodes.agents.replaced import ReplacedCredentials
from nodes.agents.sync import process, process_leniently, push
from nodes.inventory import copies, removal

logger = logging.getLogger(__name__)
GATHER_SECONDS = 0.02
# A push waits a moment for others: the placements of a cycle on 200 nodes then need one query.
PUSH_SECONDS = 0.001
MAX_AT_ONCE = 100
LEASE_SECONDS = 1.0
# After the database was unreachable.
RETRY_SECONDS = 1.0
# Resend a run order that the node has not started within this time.
RESEND_SECONDS = 5.0


class AgentLink(Protocol):
    """A connected agent."""

    node_id: int
    authorization: str

    def deliver(self, answer: Desired) -> None: ...

    def refuse(self, reason: str) -> None: ...


class AgentHub:
    """The hub of a web process. All its state belongs to the event loop. Messages and pushes each have a thread for the
    database, so that neither waits for the other."""

    def __init__(self) -> None:
        self._links: dict[int, AgentLink] = {}
        self._sent_runs: dict[int, dict[str, float]] = {}  # node → rank key → time, on the present connection
        self._inbox: Inbox[AgentLink] = Inbox()
        self._answering_since: float | None = None  # arrival of the oldest message in progress
        self._dirty_nodes: set[int] = set()
        self._dirty_jobs: set[int] = set()
        self._all_dirty = False
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._messages = ThreadPoolExecutor(1, thread_name_prefix="agent-messages")
        self._pushes = ThreadPoolExecutor(1, thread_name_prefix="agent-pushes")
        self._replaced = ReplacedCredentials(self._pushes)

    def start(self) -> None:
        """Start the tasks, once. Called at the first request of the process: Daphne has no start-up hook."""
        if not self._tasks:
            listener.subscribe(self._on_change)
            loop = asyncio.get_running_loop()
            works = (self._process, self._push, self._replaced.check, self._hold_lease)
            self._tasks = [loop.create_task(supervised(work, "a task of the agents' hub")) for work in works]

    def connect(self, link: AgentLink) -> None:
        self._links[link.node_id] = link
        self._replaced.connect(link)
        self._sent_runs[link.node_id] = {}
        self._dirty_nodes.add(link.node_id)
        self._changed.set()

    def disconnect(self, link: AgentLink) -> None:
        self._replaced.disconnect(link)
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id], self._sent_runs[link.node_id]

    def receive(self, link: AgentLink, message: Sync) -> bool:
        """Queue a message. Return False if too many of this agent wait: close its connection, and it sends all
        again."""
        self._arrived.set()
        return self._inbox.put(time.monotonic(), link, message)

    def waiting_seconds(self) -> float:
        """Return for how long the oldest message has waited; 0 if none waits. Callable from any thread."""
        since = self._answering_since
        if since is None:
            since = self._inbox.oldest_at
        return 0.0 if since is None else time.monotonic() - since

    def _on_change(self, changed: dict[str, list[int]]) -> None:
        self._replaced.on_change(changed)
        for topic, dirty in (("assignments", self._dirty_nodes), ("stops", self._dirty_jobs)):
            if topic in changed:
                dirty.update(changed[topic])
                self._all_dirty |= not changed[topic]
                self._changed.set()

    async def _process(self) -> None:
        while True:
            await self._arrived.wait()
            await asyncio.sleep(GATHER_SECONDS)
            batch = self._inbox.pop(MAX_AT_ONCE)
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

    async def _answer(self, batch: list[QueuedMessage[AgentLink]]) -> None:
        now = time.monotonic()
        work = partial(process, [(queued.link.node_id, queued.as_of(now)) for queued in batch], self._recently_sent())
        try:
            answers = await run_in_thread(self._messages, work)
        except DatabaseAway:
            await self._retry_later(batch)
        except WorkFailed:
            await self._answer_individually(batch)
        else:
            for waiting, answer in zip(batch, answers, strict=True):
                self._inbox.acknowledge(waiting.link.node_id, answer)
                self._deliver(waiting.link, answer)

    async def _answer_individually(self, batch: list[QueuedMessage[AgentLink]]) -> None:
        """Process the messages of a failed batch separately: an error in one must not block the others."""
        for number, waiting in enumerate(batch):
            work = partial(process_leniently, waiting.link.node_id, waiting.as_of(time.monotonic()))
            try:
                self._deliver(waiting.link, await run_in_thread(self._messages, work))
            except DatabaseAway:
                return await self._retry_later(batch[number:])
            except WorkFailed:
                self._refuse(waiting)
        return None

    async def _retry_later(self, batch: list[QueuedMessage[AgentLink]]) -> None:
        """Queue the batch again, because the database is unreachable. Acknowledge nothing, but send agents an empty
        answer: otherwise they close their connections and cannot open new ones."""
        self._inbox.put_back(batch)
        for link in list(self._links.values()):
            self._deliver(link, Desired())
        await asyncio.sleep(RETRY_SECONDS)

    def _refuse(self, waiting: QueuedMessage[AgentLink]) -> None:
        """Report a failed write. The agent then repeats its facts and what was not acknowledged."""
        self._deliver(waiting.link, Desired(seq=waiting.message.seq, error="not written, send again"))

    async def _push(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(PUSH_SECONDS)
            self._changed.clear()
            nodes = set(self._links) if self._all_dirty else self._dirty_nodes & set(self._links)
            jobs, self._dirty_jobs, self._dirty_nodes, self._all_dirty = self._dirty_jobs, set(), set(), False
            if not nodes and not jobs:
                continue
            work = partial(push, sorted(nodes), sorted(jobs), self._recently_sent())
            try:
                answers = await run_in_thread(self._pushes, work)
            except DatabaseAway:
                self._dirty_nodes |= nodes
                self._dirty_jobs |= jobs
                self._changed.set()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except WorkFailed:
                continue  # the answer to each agent's next message has the same orders
            for node_id, answer in answers.items():
                if link := self._links.get(node_id):
                    self._deliver(link, answer)

    def _deliver(self, link: AgentLink, answer: Desired) -> None:
        """Send an answer. A broken connection must not keep the others from theirs."""
        if answer.error in (removal.REFUSAL, copies.REFUSAL):
            link.refuse(answer.error)
            return
        if self._links.get(link.node_id) is link:
            now = time.monotonic()
            runs = {order.key: now for order in answer.assignments if isinstance(order, Run)}
            self._sent_runs[link.node_id].update(runs)
        try:
            link.deliver(answer)
        except Exception:
            logger.exception("the answer to node %d cannot be sent", link.node_id)

    def _recently_sent(self) -> dict[int, set[str]]:
        since = time.monotonic() - RESEND_SECONDS
        for node_id, keys in self._sent_runs.items():
            if keys:
                self._sent_runs[node_id] = {key: at for key, at in keys.items() if at > since}
        return {node_id: set(keys) for node_id, keys in self._sent_runs.items() if keys}

    async def _hold_lease(self) -> None:
        while True:
            with suppress(DatabaseAway, WorkFailed):
                await run_in_thread(
                    self._messages, renew_lease
                )  # on their thread: it proves that messages are processed
            await asyncio.sleep(LEASE_SECONDS)


def renew_lease() -> None:
    """Record that the server processes agents' messages. The lease starts anew after a gap of three seconds, and after
    the clock was set back by as much: then the latest messages are of the future."""
    execute(
        """INSERT INTO nodes_listenerlease (id, since, seen_at) VALUES (1, clock_timestamp(), clock_timestamp())
           ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at,
              since = CASE WHEN nodes_listenerlease.seen_at BETWEEN excluded.seen_at - interval '3 seconds'
                                                                AND excluded.seen_at + interval '3 seconds'
                           THEN nodes_listenerlease.since ELSE excluded.since END"""
    )


hub = AgentHub()
