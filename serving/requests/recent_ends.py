"""Results that this process recorded lately, so that clients that wait for them here need no read."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from django.db import transaction

from gpusched.lib.cache import Cache
from serving.requests.representation import represented
from serving.requests.shared_reads import Rows

# Larger results are read again: together these take at most 16 MiB.
MAX_RESULT_BYTES, MAX_ROWS = 8 << 10, 2000
_recent: Cache[int, dict[str, Any]] = Cache(max_entries=MAX_ROWS)


def keep(rows: Sequence[dict[str, Any]]) -> None:
    """Keep rows of ended requests once the transaction that ends them is durable. Call it before their event."""
    transaction.on_commit(partial(_keep, rows), robust=True)


def tasks(ids: Iterable[int]) -> Rows:
    """Return the stored ones of these requests by id, as `representation.tasks` does. An end is final."""
    rows = ((number, _recent.last(number, None)) for number in ids)
    return {number: represented(row) for number, row in rows if row is not None}


def _keep(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        if len(row["result"] or b"") <= MAX_RESULT_BYTES:
            _recent.put(row["id"], row)
