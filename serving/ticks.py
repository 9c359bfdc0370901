"""Run the upkeep of this web process once a second, and sooner after a change."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from gpusched.lib.db.threads import DatabaseAway, WorkFailed

TICK_SECONDS = 1.0
# Events that come together need one tick, and a stream of them, such as of submits, need no more than two a second.
GATHER_SECONDS, PACE_SECONDS = 0.05, 0.5


class Ticks:
    """All state belongs to the event loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def soon(self) -> None:
        """Request a tick."""
        self._changed.set()

    def soon_after(self, changed: Mapping[str, Collection[int]], jobs: Collection[int]) -> None:
        """Request a tick if one of these jobs may have changed."""
        ids = changed.get("jobs")
        if ids is not None and jobs and (not ids or not set(jobs).isdisjoint(ids)):
            self.soon()

    async def run(self, tick: Callable[[], Awaitable[None]]) -> None:
        """Tick until cancelled. An outage of the database delays the next tick."""
        while True:
            began = time.monotonic()
            try:
                await tick()
            except (DatabaseAway, WorkFailed):
                await asyncio.sleep(TICK_SECONDS)
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._changed.wait()
                await asyncio.sleep(max(GATHER_SECONDS, began + PACE_SECONDS - time.monotonic()))
            except TimeoutError:
                pass
            self._changed.clear()
