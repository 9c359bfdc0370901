"""Database work in long-lived threads: they keep their connection, and one that broke is replaced at the next call."""

from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError, close_old_connections, connections

T = TypeVar("T")


def with_connection(work: Callable[[], T]) -> T:
    """Runs `work`, to be called in the thread."""
    close_old_connections()
    try:
        return work()
    except OperationalError:
        connections["default"].close()
        raise
