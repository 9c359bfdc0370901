"""End clients' streams when the job ends or the right to it does: one check per second for all streams of this web
process."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpusched.lib.api.problems import Problem
from gpusched.lib.process.supervised import supervised
from nodes.streams import access
from nodes.streams.access import Right
from nodes.streams.opening import in_thread

logger = logging.getLogger(__name__)
CHECK_SECONDS = 1.0


class Watch:
    def __init__(self) -> None:
        self._rights: dict[asyncio.Future[Problem], Right] = {}
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def over(self, right: Right) -> Iterator["asyncio.Future[Problem]"]:
        """Watch a right. The future gets the reason when the right ends."""
        refused: asyncio.Future[Problem] = asyncio.get_running_loop().create_future()
        self._rights[refused] = right
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(supervised(self._check, "the check of streams"))
        try:
            yield refused
        finally:
            del self._rights[refused]
            if not self._rights and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            watched = dict(self._rights)
            with suppress(Problem):  # during an outage of the database no right can change
                rights = list(watched.values())
                problems = await in_thread(lambda: access.refusals(rights))  # noqa: B023 - awaited here
                for refused, problem in zip(watched, problems, strict=True):
                    if problem is not None and not refused.done():
                        refused.set_result(problem)


watch = Watch()
