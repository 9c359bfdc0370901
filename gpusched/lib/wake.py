"""Asks for a scheduling cycle; any number of requests become one cycle (scheduling/broker.py)."""

from django.db import connection

CHANNEL = "gpusched_cycle"


def request_cycle() -> None:
    """To be called inside the transaction of the change: PostgreSQL delivers at commit and folds duplicates."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])
