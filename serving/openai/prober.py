"""Probe replicas of the OpenAI API until they answer, and keep the API's upkeep once a second.

A replica answers when `GET /v1/models` on its port has a status below 500: vLLM and TEI open their port once the model
is loaded, llama.cpp answers 503 until then."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gpusched.lib.bus.listener import Listener, listener
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from gpusched.lib.process.supervised import supervised
from serving.openai import upkeep
from serving.openai.connections import Connections
from serving.openai.http_exchange import BadResponse
from serving.openai.measurements import Measurements
from serving.openai.upkeep import Unproven
from serving.replicas.connection import ReplicaLost
from serving.ticks import Ticks
from tenants.auth.page_access import Credential

logger = logging.getLogger(__name__)
PROBE_SECONDS = 5.0
PAUSE_SECONDS = 0.25
# A replica that does not answer for this long is replaced: before its first answer, and after one while it is idle.
WARM_UP_SECONDS = 1800.0
HUNG_SECONDS = 30.0


class Prober:
    """All state belongs to the event loop. `in_flight` returns the requests of this process, and `unchecked` the
    credentials of those whose callers may have lost their right; `replace` ends the job of a replica, in a thread."""

    def __init__(
        self,
        connections: Connections,
        local_nodes: Callable[[], Collection[int]],
        replace: Callable[[int], None],
        dispatcher: Callable[[], int | None],
        in_flight: Callable[[], Collection[int]],
        unchecked: Callable[[], Mapping[int, Credential]],
        measurements: Measurements,
        notifications: Listener = listener,
    ) -> None:
        self._connections, self._local_nodes, self._replace = connections, local_nodes, replace
        self._dispatcher, self._in_flight, self._unchecked = dispatcher, in_flight, unchecked
        self._measurements = measurements
        self._notifications = notifications
        self._ticks = Ticks()
        self._task: asyncio.Task[None] | None = None
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._unproven: dict[int, Unproven] = {}
        self._starting: frozenset[int] = frozenset()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="openai-upkeep")

    def start(self) -> None:
        """Start, once."""
        if self._task is None:
            self._notifications.subscribe(self._on_change)
            work = supervised(self._run, "the upkeep of the OpenAI API")
            self._task = asyncio.get_running_loop().create_task(work, name="openai-upkeep")

    async def stop(self) -> None:
        """Stop, for tests, each of which has its own event loop."""
        tasks = [*self._probes.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._thread.shutdown()

    def _on_change(self, changed: dict[str, list[int]]) -> None:
        self._ticks.soon_after(changed, self._starting)

    async def _run(self) -> None:
        await self._ticks.run(self._tick)

    async def _tick(self) -> None:
        self._connections.prune()
        dispatcher = self._dispatcher()
        if dispatcher is None:
            return
        learned, ended = self._measurements.take()
        nodes, in_flight = list(self._local_nodes()), list(self._in_flight())
        work = partial(upkeep.keep_up, dispatcher, nodes, in_flight, dict(self._unchecked()), learned, ended)
        self._starting, unproven = await run_in_thread(self._thread, work)
        self._unproven = {replica.job_id: replica for replica in unproven}
        for job_id, probe in list(self._probes.items()):
            if probe.done() or job_id not in self._unproven:
                self._probes.pop(job_id).cancel()
        for job_id in self._unproven.keys() - self._probes.keys():
            probing = self._probe(dispatcher, job_id)
            self._probes[job_id] = asyncio.get_running_loop().create_task(probing, name=f"probe of {job_id}")

    async def _probe(self, dispatcher: int, job_id: int) -> None:
        """Probe a replica until it answers, or must be replaced."""
        began = time.monotonic()
        while (replica := self._unproven.get(job_id)) is not None:
            limit = HUNG_SECONDS if replica.was_warm else WARM_UP_SECONDS
            try:
                if await self._answers(replica):
                    await run_in_thread(self._thread, partial(upkeep.prove, dispatcher, job_id))
                    return
                if time.monotonic() - began > limit and not replica.is_busy:
                    logger.warning("replica %d did not answer for %g s and is replaced", job_id, limit)
                    await run_in_thread(self._thread, partial(self._replace, job_id))
                    return
            except (DatabaseAway, WorkFailed) as error:
                logger.info("replica %d: %s", job_id, error)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _answers(self, replica: Unproven) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                return await self._connections.probe(replica.job_id, replica.port, "/v1/models") < 500
        except (ReplicaLost, BadResponse, TimeoutError):
            return False
