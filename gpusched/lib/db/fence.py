"""Fence the connection of this thread: a function commits its transactions, and may refuse to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from django.db import connections

from gpusched.lib.db.engine.base import DatabaseWrapper


@contextmanager
def fenced(commit: Callable[[psycopg.Connection[Any]], None]) -> Iterator[None]:
    """Let `commit` commit each transaction until the end of the block, or raise a DatabaseError. Write in transactions
    only: a single statement is fenced if `gpusched.lib.db.sql.execute` runs it."""
    wrapper = _wrapper()
    wrapper.fence = commit
    try:
        yield
    finally:
        wrapper.fence = None


def needs_transaction() -> bool:
    """Return whether a write must first open a transaction, so that it is fenced."""
    wrapper = _wrapper()
    return wrapper.fence is not None and not wrapper.in_atomic_block


def _wrapper() -> DatabaseWrapper:
    return cast(DatabaseWrapper, connections["default"])
