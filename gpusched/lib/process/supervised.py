"""Loops of the event loop that must not end: one that raises is logged and started again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)
PAUSE_SECONDS = 0.5


async def supervised(work: Callable[[], Awaitable[None]], what: str) -> None:
    """Run `work`, named `what` in the log, again whenever it ends."""
    while True:
        try:
            await work()
        except Exception:
            logger.exception("%s failed, starting it again", what)
        await asyncio.sleep(PAUSE_SECONDS)
