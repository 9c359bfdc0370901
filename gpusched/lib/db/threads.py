"""Run database work of an event loop in long-lived threads, which keep their connections and replace broken ones."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import Error, close_old_connections, connections

from gpusched.lib.db.outages import is_outage, summary

logger = logging.getLogger(__name__)
T = TypeVar("T")


class DatabaseAway(Exception):
    """The database did not answer: the same work may succeed later, and other work fails now as well."""


class WorkFailed(Exception):
    """The work raised something else: other work may succeed."""


async def run_in_thread(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Run `work` in a thread of `pool`. Return its result, or log and raise DatabaseAway or WorkFailed."""
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, _with_connection, work)
    except Exception as error:
        if is_outage(error):
            logger.warning("%s", summary(error))
            raise DatabaseAway(str(error)) from error
        logger.exception("work in the background failed")
        raise WorkFailed(str(error)) from error


def _with_connection(work: Callable[[], T]) -> T:
    close_old_connections()
    try:
        return work()
    except Error as error:
        if is_outage(error):
            connections["default"].close()
        raise
