"""The registry of advisory locks: a number each, so that no two features share one by accident."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from django.db import connection


class Lock(IntEnum):
    LEADER = 7_001
    BOOTSTRAP = 7_003
    NODE_HOLDS = 7_004
    MIGRATE = 7_005
    QUEUE_OF_TENANT = 7_006
    REPLICAS = 7_007
    PLACES = 7_008
    RESERVATIONS = 7_009
    TWINS = 7_010
    NOTIFICATION_ROUTES = 7_020
    TERM = 7_021
    SERIES = 7_022


def try_acquire(lock: Lock) -> bool:
    """Take a session lock if it is free. It ends with the connection, so a killed holder frees it at once."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [lock])
        return bool(cursor.fetchone()[0])


def acquire(lock: Lock) -> None:
    """Wait for a session lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [lock])


def release(lock: Lock) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock(%s)", [lock])


def acquire_in_transaction(lock: Lock, *, shared: bool = False) -> None:
    """Wait for a lock that ends with the transaction. `shared`: together with others that share it."""
    sql = "SELECT pg_advisory_xact_lock_shared(%s)" if shared else "SELECT pg_advisory_xact_lock(%s)"
    with connection.cursor() as cursor:
        cursor.execute(sql, [lock])


@contextmanager
def locked(lock: Lock) -> Iterator[None]:
    acquire(lock)
    try:
        yield
    finally:
        if connection.connection is not None:  # a closed connection has released the lock
            release(lock)
