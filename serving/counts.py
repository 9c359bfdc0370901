"""Count what happens to inference requests, for the metrics: ended requests with their latency, and batches.

The counts are stored under the id of the endpoint and end with it, so a new endpoint of that name begins at zero."""

from functools import partial

from django.db import transaction

from gpusched.lib import histograms
from gpusched.lib.db.sql import query

LATENCY = "gpu_scheduler_endpoint_latency_seconds"
BATCH_SIZE = "gpu_scheduler_endpoint_batch_size"
_NAMES = (LATENCY, BATCH_SIZE)


def count_end(endpoint_id: int, state: str, seconds: float) -> None:
    """Count a request that ended in this state, `seconds` after its submit, once the transaction is committed."""
    transaction.on_commit(partial(histograms.pending.add, LATENCY, f"{endpoint_id}:{state}", seconds))


def count_batch(endpoint_id: int, reason: str, size: int) -> None:
    """Count a batch of `size` requests and why it was flushed."""
    histograms.pending.add(BATCH_SIZE, f"{endpoint_id}:{reason}", size)


def read(name: str) -> dict[int, dict[str, tuple[list[int], float]]]:
    """Return {endpoint: {state or reason: (counts per bucket, sum)}}."""
    result: dict[int, dict[str, tuple[list[int], float]]] = {}
    for label, counted in histograms.read(name).items():
        endpoint_id, _, kind = label.partition(":")
        result.setdefault(int(endpoint_id), {})[kind] = counted
    return result


def forget_removed() -> None:
    """Delete the counts of endpoints that were removed."""
    kept = {row["id"] for row in query("SELECT id FROM serving_endpoint WHERE state <> 'removed'")}
    for name in _NAMES:
        removed = [
            f"{endpoint}:{kind}" for endpoint, kinds in read(name).items() if endpoint not in kept for kind in kinds
        ]
        if removed:
            histograms.drop(name, removed)
