"""Asks the database for the hub of the pages, and knows for how long it has not answered."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TypeVar

from django.db import connections

from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread

T = TypeVar("T")
# A look may take a while on a busy server; a page that shows what is older than this says so.
TIMEOUT_SECONDS = 5.0


class DbThreads:
    """Two threads with their connections: one looks at what pages show, one asks what must not wait for that."""

    def __init__(self) -> None:
        self._looks = ThreadPoolExecutor(1, thread_name_prefix="live-looks")
        self._questions = ThreadPoolExecutor(1, thread_name_prefix="live-questions")
        self._unanswered: dict[ThreadPoolExecutor, float] = {}

    async def look(self, work: Callable[[], T]) -> T | None:
        return await self._ask(self._looks, work)

    async def question(self, work: Callable[[], T]) -> T | None:
        return await self._ask(self._questions, work)

    async def _ask(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T | None:
        """None: the database did not answer, or the work failed."""
        self._unanswered.setdefault(pool, monotonic())
        try:
            answer = await run_in_thread(pool, work)
        except (DatabaseAway, WorkFailed):
            return None
        self._unanswered.pop(pool, None)
        return answer

    @property
    def blind_seconds(self) -> float | None:
        """For how long it has not answered, if that is too long; also while a question hangs."""
        age = monotonic() - min(self._unanswered.values(), default=monotonic())
        return age if age > TIMEOUT_SECONDS else None

    def close(self) -> None:
        for pool in (self._looks, self._questions):
            pool.submit(connections.close_all)
            pool.shutdown()
