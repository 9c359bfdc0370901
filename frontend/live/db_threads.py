"""Database threads of the live hub, which also measure how long the database has not answered."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TypeVar

from django.db import connections

from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread

T = TypeVar("T")
# Queries can be slow on a busy server; a page with older data says so.
TIMEOUT_SECONDS = 5.0


class DbThreads:
    """Two threads with connections: one loads topics, one runs queries that must not wait for a load."""

    def __init__(self) -> None:
        self._loads = ThreadPoolExecutor(1, thread_name_prefix="live-loads")
        self._queries = ThreadPoolExecutor(1, thread_name_prefix="live-queries")
        self._unanswered: dict[ThreadPoolExecutor, float] = {}

    async def load(self, work: Callable[[], T]) -> T | None:
        return await self._run(self._loads, work)

    async def query(self, work: Callable[[], T]) -> T | None:
        return await self._run(self._queries, work)

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T | None:
        """Return the result, or None if the database did not answer or the work failed."""
        self._unanswered.setdefault(pool, monotonic())
        try:
            answer = await run_in_thread(pool, work)
        except (DatabaseAway, WorkFailed):
            return None
        self._unanswered.pop(pool, None)
        return answer

    @property
    def outage_seconds(self) -> float | None:
        """Return how long the database has not answered, if longer than the timeout; also while a query hangs."""
        age = monotonic() - min(self._unanswered.values(), default=monotonic())
        return age if age > TIMEOUT_SECONDS else None

    def close(self) -> None:
        for pool in (self._loads, self._queries):
            pool.submit(connections.close_all)
            pool.shutdown()
