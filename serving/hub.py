"""Serving in this web process: its dispatcher, connected to the replicas, and the upkeep once a second."""

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from django.db import connections

from gpusched.lib import histograms
from gpusched.lib.bus.listener import listener
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from gpusched.lib.process.supervised import supervised
from serving import ticks, upkeep
from serving.batching.dispatcher import Dispatcher, OpenStream, ServedEndpoint
from serving.ticks import Ticks

RENEW_SECONDS = 0.9
FORGET_SECONDS = 60.0


class ServingHub:
    """All state belongs to the event loop. `open_stream` connects to a replica's socket; `local_nodes` returns the
    nodes whose agents are connected here; `replace` ends the job of a replica that hangs."""

    def __init__(
        self, open_stream: OpenStream, local_nodes: Callable[[], Collection[int]], replace: Callable[[int], None]
    ) -> None:
        self._open_stream, self._local_nodes, self._replace = open_stream, local_nodes, replace
        self._dispatcher: Dispatcher | None = None
        self._has_lease = threading.Event()
        self._ticks = Ticks()
        self._hung: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="serving-upkeep")
        self._forget_thread = ThreadPoolExecutor(1, thread_name_prefix="serving-forget")
        self._replica_jobs: frozenset[int] = frozenset()
        self._renewed_at = self._judges_at = float("-inf")

    def start(self) -> None:
        """Start the tasks, once."""
        if not self._tasks:
            listener.subscribe(self._on_change)
            loop = asyncio.get_running_loop()
            works = (self._dispatch, self._keep_up, self._forget, self._flush_counts)
            self._tasks = [loop.create_task(supervised(work, "a task of serving")) for work in works]

    def dispatcher_id(self) -> int | None:
        """Return the id of this web process's lease; None: it has none yet."""
        return self._dispatcher.id if self._dispatcher else None

    def wait_for_lease(self, seconds: float) -> int | None:
        """Return the id of the lease in a request's thread; a web process that has just started gets it soon."""
        self._has_lease.wait(seconds)
        return self.dispatcher_id()

    async def stop(self) -> None:
        """Stop, for tests, each of which has its own event loop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._dispatcher:
            await self._dispatcher.close()
        self._thread.submit(connections.close_all)
        for thread in (self._thread, self._forget_thread):
            thread.shutdown()

    def _on_change(self, changed: dict[str, list[int]]) -> None:
        if "endpoints" in changed:
            if self._dispatcher:
                self._dispatcher.wake()
            self._ticks.soon()
        self._ticks.soon_after(changed, self._replica_jobs)

    async def _dispatch(self) -> None:
        while self._dispatcher is None:
            try:
                number = await run_in_thread(self._thread, upkeep.new_dispatcher)
            except DatabaseAway:
                await asyncio.sleep(ticks.TICK_SECONDS)
            else:
                self._dispatcher = Dispatcher(number, self._open_stream, self._hung.add)
                self._has_lease.set()
        await self._dispatcher.run()

    async def _keep_up(self) -> None:
        await self._ticks.run(self._tick)

    async def _forget(self) -> None:
        """Delete what is old, in a thread of its own: the lease must not wait for a storage with many files."""
        while True:
            is_complete = True
            with suppress(DatabaseAway, WorkFailed):
                is_complete = await run_in_thread(self._forget_thread, _forget_old)
            await asyncio.sleep(FORGET_SECONDS if is_complete else ticks.TICK_SECONDS)

    async def _flush_counts(self) -> None:
        while True:
            await asyncio.sleep(ticks.TICK_SECONDS)
            if histograms.pending:
                with suppress(DatabaseAway, WorkFailed):  # they stay pending
                    await run_in_thread(self._thread, histograms.pending.flush)

    async def _tick(self) -> None:
        dispatcher = self._dispatcher
        if dispatcher is None or not await run_in_thread(self._thread, upkeep.is_used):
            return
        warm, learned, hung = dispatcher.warm_replicas(), dispatcher.learned(), set(self._hung)
        nodes, lost = list(self._local_nodes()), dispatcher.lost_replicas()
        now = time.monotonic()
        if now - self._renewed_at > RENEW_SECONDS:
            if await run_in_thread(self._thread, partial(upkeep.renew_lease, dispatcher.id)):
                self._judges_at = now + upkeep.SILENT_SECONDS
            self._renewed_at = now
        judges_others = now >= self._judges_at

        def work() -> upkeep.Upkeep:
            upkeep.save(dispatcher.id, warm, learned)
            for job_id in hung:
                self._replace(job_id)
            upkeep.keep_queue(judges_others=judges_others)
            return upkeep.adopt(dispatcher.id, nodes, lost)

        adopted = await run_in_thread(self._thread, work)
        self._hung -= hung
        self._replica_jobs = adopted.jobs
        self._serve(dispatcher, adopted)

    def _serve(self, dispatcher: Dispatcher, adopted: upkeep.Upkeep) -> None:
        for row in adopted.endpoints:
            hidden = ("memory_per_request_mb", "replicas_of")
            fields = {name: value for name, value in row.items() if name not in hidden}
            known = dispatcher.endpoints.get(row["id"])
            if known is None:
                dispatcher.endpoints[row["id"]] = ServedEndpoint(**fields)
            else:
                for name, value in fields.items():
                    setattr(known, name, value)
        for job_id, is_out_of_memory in adopted.losses:
            dispatcher.explain_loss(job_id, is_out_of_memory=is_out_of_memory)
        dispatcher.keep_replicas({job_id for job_id, _, _ in adopted.replicas})
        for job_id, endpoint_id, memory_mb in adopted.replicas:
            served = [row["id"] for row in adopted.endpoints if row["replicas_of"] == endpoint_id]
            dispatcher.add_replica(job_id, served, memory_mb)
        dispatcher.wake()


def _forget_old() -> bool:
    try:
        return not upkeep.is_used() or upkeep.forget_old()
    finally:
        connections.close_all()  # it is not needed again for a while
