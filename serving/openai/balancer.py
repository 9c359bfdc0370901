"""Give each request to the OpenAI API a place at a replica: first come, first served, at the least loaded one.

A replica of this protocol batches continuously by itself, so its endpoint's `max_batch` only limits how many requests
it has at once."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from gpusched.lib.bus.listener import Listener, listener
from gpusched.lib.db.sql import prepared
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from gpusched.lib.process.supervised import supervised

# Limits the delay when a notification of the database is lost, and for places that other web processes free.
POLL_SECONDS = 0.5
_ASSIGN = """
    WITH places AS (
        SELECT p.job_id, row_number() OVER (ORDER BY p.level, p.job_id) AS number
          FROM (SELECT r.job_id, generate_series(count(q.id) + 1, e.max_batch) AS level
                  FROM serving_replica r JOIN serving_endpoint e ON e.id = r.endpoint_id
                  LEFT JOIN serving_inferencerequest q ON q.replica_job_id = r.job_id AND q.state = 'running'
                 WHERE r.endpoint_id = %(endpoint)s AND r.warm_at IS NOT NULL AND r.ended_at IS NULL
                   AND NOT r.is_draining
                 GROUP BY r.job_id, e.max_batch) p),
    waiting AS (
        SELECT id, row_number() OVER (ORDER BY id) AS number FROM serving_inferencerequest
         WHERE endpoint_id = %(endpoint)s AND state = 'queued')
    UPDATE serving_inferencerequest r
       SET state = 'running', attempt = r.attempt + 1, started_at = clock_timestamp(), replica_job_id = p.job_id,
           dispatcher = %(dispatcher)s
      FROM waiting w JOIN places p USING (number)
     WHERE r.id = w.id AND r.id = ANY(%(ids)s::bigint[]) AND r.state = 'queued'
    RETURNING r.id, r.attempt, p.job_id
"""


class Place(NamedTuple):
    """A request at a replica. (request, attempt) names it in its outcome."""

    request: int
    attempt: int
    job_id: int


class Balancer:
    """All state belongs to the event loop. `dispatcher` returns the id of this web process's lease; None: none yet."""

    def __init__(self, dispatcher: Callable[[], int | None], notifications: Listener = listener) -> None:
        self._dispatcher, self._notifications = dispatcher, notifications
        self._waiting: dict[int, dict[int, asyncio.Future[Place]]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="openai")

    async def place(self, endpoint_id: int, request_id: int, seconds: float) -> Place:
        """Return a place for a queued request. Raises TimeoutError after `seconds`."""
        if self._task is None:
            self._notifications.subscribe(self._on_change)
            work = supervised(self._assign_forever, "the assignment of requests to replicas")
            self._task = asyncio.get_running_loop().create_task(work, name="openai")
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(endpoint_id, {})[request_id] = future
        self._changed.set()
        try:
            return await asyncio.wait_for(future, seconds)
        finally:
            waiting = self._waiting[endpoint_id]
            waiting.pop(request_id, None)
            if not waiting:
                self._waiting.pop(endpoint_id, None)

    def wake(self) -> None:
        """Call it when a place may be free."""
        self._changed.set()

    def _on_change(self, changed: dict[str, list[int]]) -> None:
        if self._waiting and ("tasks" in changed or "endpoints" in changed):
            self._changed.set()

    async def _assign_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(POLL_SECONDS if self._waiting else None):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            dispatcher = self._dispatcher()
            for endpoint_id, waiting in list(self._waiting.items()):
                if dispatcher is None:
                    break
                try:
                    work = partial(assign, dispatcher, endpoint_id, list(waiting))
                    places = await run_in_thread(self._thread, work)
                except (DatabaseAway, WorkFailed):
                    continue
                for place in places:
                    future = waiting.get(place.request)
                    if future is not None and not future.done():
                        future.set_result(place)


def assign(dispatcher: int, endpoint_id: int, ids: Sequence[int]) -> list[Place]:
    """Give places to those of these requests that are first in the queue of their endpoint."""
    values = {"dispatcher": dispatcher, "endpoint": endpoint_id, "ids": list(ids)}
    return [Place(row["id"], row["attempt"], row["job_id"]) for row in prepared(_ASSIGN, values)]
