"""Read requests for many clients with few queries: the reads that arrive during a query share the next one."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread

Rows = dict[int, dict[str, Any]]


class SharedReads:
    """All state belongs to the event loop. `read` returns the rows of these ids; it runs in a thread."""

    def __init__(self, read: Callable[[Sequence[int]], Rows]) -> None:
        self._read = read
        self._waiting: list[tuple[Sequence[int], asyncio.Future[Rows]]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tasks")

    async def rows(self, ids: Sequence[int]) -> Rows:
        """Return the rows of these ids. Raises DatabaseAway and WorkFailed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Rows] = loop.create_future()
        self._waiting.append((ids, future))
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._work(), name="reads of tasks")
        return await future

    async def _work(self) -> None:
        while self._waiting:
            reads, self._waiting = self._waiting, []
            wanted = sorted({number for ids, _ in reads for number in ids})
            try:
                rows = await run_in_thread(self._thread, partial(self._read, wanted))
            except (DatabaseAway, WorkFailed) as error:
                for _, future in reads:
                    if not future.done():  # its client has gone
                        future.set_exception(error)
            else:
                for ids, future in reads:
                    if not future.done():
                        future.set_result({number: rows[number] for number in ids if number in rows})
