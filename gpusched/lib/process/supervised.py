"""Run tasks of an event loop that must not end: log one that raises, and start it again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)
PAUSE_SECONDS = 0.5


async def supervised(work: Callable[[], Awaitable[None]], name: str) -> None:
    """Run `work`, named `name` in the log, again whenever it ends."""
    while True:
        try:
            await work()
        except Exception:
            logger.exception("%s failed, starting it again", name)
        await asyncio.sleep(PAUSE_SECONDS)
