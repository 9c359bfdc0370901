"""Record how requests to the OpenAI API end, many in one transaction, however long the database is away.

A lost ending would keep its place at the replica as long as this web process lives."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from django.db import transaction

from gpusched.lib.bus import events
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from gpusched.lib.process.supervised import supervised
from serving.openai import places
from serving.requests import endings, results
from serving.requests.results import Outcome

RETRY_SECONDS = 1.0


class Ending(NamedTuple):
    """The end of a request without a result."""

    request: int
    state: str
    code: str
    error: str


class FailedReplica(NamedTuple):
    """A replica that failed a request."""

    job_id: int


Entry = Outcome | Ending | FailedReplica


class Recorder:
    """All state belongs to the event loop. `on_recorded` is called when places may be free."""

    def __init__(self, on_recorded: Callable[[], None]) -> None:
        self._on_recorded = on_recorded
        self._entries: list[Entry] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="openai-outcomes")

    def put(self, entry: Entry) -> None:
        """Record this soon."""
        if self._task is None:
            work = supervised(self._record_forever, "the recording of outcomes")
            self._task = asyncio.get_running_loop().create_task(work, name="openai-outcomes")
        self._entries.append(entry)
        self._changed.set()

    async def stop(self) -> None:
        """Stop, for tests, each of which has its own event loop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown()

    async def _record_forever(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            entries, self._entries = self._entries, []
            try:
                await run_in_thread(self._thread, partial(record, entries))
            except DatabaseAway:
                self._entries = entries + self._entries
                self._changed.set()
                await asyncio.sleep(RETRY_SECONDS)
            except WorkFailed:
                await self._record_each(entries)
            self._on_recorded()

    async def _record_each(self, entries: Sequence[Entry]) -> None:
        """Record entries one by one, so that one that cannot be recorded does not lose the others."""
        for entry in entries:
            try:
                await run_in_thread(self._thread, partial(record, [entry]))
            except DatabaseAway:
                self._entries.append(entry)
                self._changed.set()
            except WorkFailed:  # it is in the log
                pass


def record(entries: Sequence[Entry]) -> None:
    """Record these entries in one transaction."""
    with transaction.atomic():
        ended = results.record([entry for entry in entries if isinstance(entry, Outcome)])
        without: dict[tuple[str, str, str], list[int]] = {}
        for entry in entries:
            if isinstance(entry, Ending):
                without.setdefault(entry[1:], []).append(entry.request)
            elif isinstance(entry, FailedReplica):
                places.release_replica(entry.job_id)
        for (state, code, error), ids in sorted(without.items()):
            ended += [request.id for request in endings.end(ids, state, code, error)]
        events.changed("tasks", ended)
