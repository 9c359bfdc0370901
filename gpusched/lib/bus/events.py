"""Says that something changed, once the transaction that changed it is durable.

What is said is a doorbell, never the fact: whoever hears it looks at the database. A lost one costs freshness only,
because every listener also looks by itself from time to time."""

from collections.abc import Iterable
from functools import partial
from typing import Literal

from django.db import transaction

from gpusched.lib.bus.notifier import ringer

# "assignments": nodes that have something new to run; "stops": jobs whose ranks are to be
# stopped, or have another time limit now.
# "notices": people who have read them.
Topic = Literal["jobs", "nodes", "tenants", "readings", "logs", "assignments", "stops", "notices"]


def changed(topic: Topic, ids: Iterable[int] = ()) -> None:
    """Rings for rows `ids` of `topic` after the commit; no ids: any of them."""
    transaction.on_commit(partial(ringer.ring, topic, list(ids)), robust=True)
