"""Announce changes once the transaction that made them is durable.

An event names the changed rows, never their content: a listener reads the database. A lost event only delays listeners,
because each of them also polls."""

from collections.abc import Iterable
from functools import partial

from django.db import transaction

from gpusched.lib.bus.changes import Topic
from gpusched.lib.bus.notifier import notifier


def changed(topic: Topic, ids: Iterable[int] | None = None) -> None:
    """Announce after the commit that rows `ids` of `topic` changed: none if it is empty. None: any row may have."""
    rows = [] if ids is None else list(ids)
    if rows or ids is None:
        transaction.on_commit(partial(notifier.notify, topic, rows), robust=True)
