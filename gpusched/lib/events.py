"""Says that something changed: PostgreSQL notifications, delivered when the transaction commits.

A notification is a doorbell, never the fact: whoever hears it looks at the database. Lost ones cost freshness only,
because every listener also looks by itself from time to time."""

import json
from collections.abc import Iterable
from typing import Literal

from django.db import connection

CHANNEL = "gpusched_events"
# "assignments": nodes that have something new to run; "stops": jobs whose ranks are to be
# stopped, or have another time limit now.
# "notices": people who have read them.
Topic = Literal["jobs", "nodes", "tenants", "readings", "logs", "assignments", "stops", "notices"]
# PostgreSQL refuses payloads of 8000 bytes; beyond this many ids the message just says "many".
_MOST_IDS = 500


def changed(topic: Topic, ids: Iterable[int] = ()) -> None:
    """Rings for rows `ids` of `topic`; an empty list in the message means "any of them"."""
    known = sorted(set(ids))
    payload = json.dumps({topic: known if len(known) <= _MOST_IDS else []}, separators=(",", ":"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])


def heard(payload: str) -> dict[str, list[int]]:
    """A payload as {topic: ids}."""
    message: dict[str, list[int]] = json.loads(payload)
    return message
