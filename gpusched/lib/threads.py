"""Database work for an event loop, in long-lived threads: they keep their connection, and one that broke is replaced at
the next call."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import OperationalError, close_old_connections, connections

logger = logging.getLogger(__name__)
T = TypeVar("T")


async def ask(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T | None:
    """What `work` gives, done in a thread of `pool`. None when the database did not answer or the work failed: both are
    logged, and loops that ask for ever go on."""
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, _with_connection, work)
    except OperationalError as error:
        logger.warning("the database did not answer, going on: %s", error)
    except Exception:
        logger.exception("work in the background failed, going on")
    return None


def _with_connection(work: Callable[[], T]) -> T:
    close_old_connections()
    try:
        return work()
    except OperationalError:
        connections["default"].close()
        raise
