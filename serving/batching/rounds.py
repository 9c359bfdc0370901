"""One round of a dispatcher in the database: record results, form batches for free replicas, and claim their requests.

All of it is one transaction, so that a result and the next batch of a replica cost one commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpusched.lib.bus import events
from gpusched.lib.db.sql import retry_atomic
from serving import counts
from serving.former import Batch, Credit, Formed, Queue, Replica, Waiting, form
from serving.requests import claims, results
from serving.requests.claims import Claimed
from serving.requests.results import Outcome


@dataclass(frozen=True)
class Served:
    """An endpoint as the dispatcher knows it. `is_short_of_memory`: `max_batch` is reduced, because larger batches ran
    out of memory."""

    id: int
    name: str
    max_batch: int
    max_wait_seconds: float
    timeout_seconds: float
    arrivals_per_second: float
    is_draining: bool
    credit: Credit
    is_short_of_memory: bool


@dataclass(frozen=True)
class Round:
    """`batches` with their claimed requests. `again_at`: see Formed."""

    batches: list[tuple[Batch, list[Claimed]]]
    credits: Mapping[int, Credit]
    again_at: float | None


def run_round(
    dispatcher: int, outcomes: Sequence[Outcome], endpoints: Sequence[Served], replicas: Sequence[Replica], now: float
) -> Round:
    """Record `outcomes`, then claim what is due for these free replicas. `now`: the dispatcher's clock, in seconds."""
    # Not plain atomic: PostgreSQL would plan the statements in each round, which takes 40 % of its time.
    formed, claimed = retry_atomic(lambda: _record_and_claim(dispatcher, outcomes, endpoints, replicas, now))
    batches = [(batch, requests) for batch, requests in zip(formed.batches, claimed, strict=True) if requests]
    for batch, requests in batches:
        counts.count_batch(batch.endpoint, batch.reason, len(requests))
    return Round(batches, formed.credits, formed.again_at)


def _record_and_claim(
    dispatcher: int, outcomes: Sequence[Outcome], endpoints: Sequence[Served], replicas: Sequence[Replica], now: float
) -> tuple[Formed, list[list[Claimed]]]:
    events.changed("tasks", results.record(outcomes))
    if not replicas:
        return Formed((), {}, None), []
    heads = max(endpoint.max_batch for endpoint in endpoints) * len(replicas)
    waiting = claims.waiting([endpoint.id for endpoint in endpoints], heads, now)
    formed = form([_queue(endpoint, waiting.get(endpoint.id, [])) for endpoint in endpoints], replicas, now)
    return formed, claims.claim(dispatcher, formed.batches) if formed.batches else []


def _queue(endpoint: Served, requests: Sequence[Waiting]) -> Queue:
    return Queue(
        endpoint.id,
        requests,
        endpoint.max_batch,
        endpoint.max_wait_seconds,
        endpoint.arrivals_per_second,
        endpoint.is_draining,
        endpoint.credit,
        endpoint.is_short_of_memory,
    )
