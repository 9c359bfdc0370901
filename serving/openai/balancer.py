"""Let the requests of this web process wait for places at replicas."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gpusched.lib.bus.listener import Listener, listener
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from gpusched.lib.process.supervised import supervised
from serving.openai import places
from serving.openai.places import EndedRequest, Place

# Limits the delay when a notification of the database is lost.
POLL_SECONDS = 0.5


class Balancer:
    """All state belongs to the event loop. `dispatcher` returns the id of this web process's lease; None: none yet.
    `on_unwanted` receives a request that got a place after its client had left."""

    def __init__(
        self,
        dispatcher: Callable[[], int | None],
        on_unwanted: Callable[[int], None],
        notifications: Listener = listener,
    ) -> None:
        self._dispatcher, self._on_unwanted, self._notifications = dispatcher, on_unwanted, notifications
        self._waiting: dict[int, dict[int, asyncio.Future[Place | EndedRequest]]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="openai-places")

    async def place(self, endpoint_id: int, request_id: int, seconds: float) -> Place | EndedRequest:
        """Return a place for a queued request, or how the request ended meanwhile. Raises TimeoutError after
        `seconds`."""
        if self._task is None:
            self._notifications.subscribe(self._on_change)
            work = supervised(self._assign_forever, "the assignment of requests to replicas")
            self._task = asyncio.get_running_loop().create_task(work, name="openai")
        future: asyncio.Future[Place | EndedRequest] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(endpoint_id, {})[request_id] = future
        self._changed.set()
        try:
            async with asyncio.timeout(max(0.0, seconds)):  # not wait_for, which ignores a cancellation with a result
                return await future
        finally:
            waiting = self._waiting[endpoint_id]
            waiting.pop(request_id, None)
            if not waiting:
                self._waiting.pop(endpoint_id, None)

    def wake(self) -> None:
        """Call it when a place may be free."""
        self._changed.set()

    async def stop(self) -> None:
        """Stop, for tests, each of which has its own event loop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown()

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
            for endpoint_id, waiting in list(self._waiting.items()):
                try:
                    results = await run_in_thread(self._thread, self._assignment(endpoint_id, list(waiting)))
                except (DatabaseAway, WorkFailed):
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                for result in results:
                    self._resolve(waiting, result)

    def _assignment(self, endpoint_id: int, ids: list[int]) -> Callable[[], list[Place | EndedRequest]]:
        dispatcher = self._dispatcher()

        def work() -> list[Place | EndedRequest]:
            given = [] if dispatcher is None else places.assign(dispatcher, endpoint_id, ids)
            return [*given, *places.ended(ids)]

        return work

    def _resolve(self, waiting: dict[int, asyncio.Future[Place | EndedRequest]], result: Place | EndedRequest) -> None:
        future = waiting.get(result.request)
        if future is not None and not future.done():
            future.set_result(result)
        elif isinstance(result, Place):
            self._on_unwanted(result.request)
