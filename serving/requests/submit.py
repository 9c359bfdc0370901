"""Submit inference requests: check them, take their tokens, and write all of one submit or none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db import transaction

from gpusched.lib.api.problems import Problem
from gpusched.lib.bus import events
from gpusched.lib.db.sql import columns, prepared
from gpusched.protocol.job_request import FieldError
from serving.endpoints.endpoints import require_open
from serving.models import Endpoint, EndpointState, Protocol
from tenants import buckets
from tenants.auth.identity import Identity
from tenants.buckets import Room
from tenants.models import BucketUse

# The queue of an endpoint counts as nearly full from this part of max_queue on.
WARNING_PART = 0.8
_RETRY_SECONDS = 1
_QUEUED = (
    "SELECT count(*) AS queued FROM serving_inferencerequest WHERE endpoint_id = %(endpoint)s AND state = 'queued'"
)
_INSERT = """
    INSERT INTO serving_inferencerequest
           (endpoint_id, user_id, state, cost, payload, payload_type, attempt, runs_alone, result_type, error_code,
            error, flush_reason, dispatcher)
    SELECT %(endpoint)s, %(user)s, 'queued', cost, payload, type, 0, false, '', '', '', '',
           %(dispatcher)s::bigint
      FROM unnest(%(payloads)s::bytea[], %(types)s::text[], %(costs)s::float8[]) WITH ORDINALITY
           AS r (payload, type, cost, number){only_if} ORDER BY number
    RETURNING id, queued_at
"""
_INSERT_ANY = _INSERT.format(only_if="")
_IF_UNLIMITED = f"""
     WHERE (SELECT queued FROM q) + %(count)s <= %(max_queue)s
       AND NOT EXISTS (SELECT 1 FROM tenants_buckets WHERE tenant_id = %(tenant)s AND limits = '{BucketUse.TASKS}')
"""
# Without a bucket that could refuse, one statement is the whole submit: half the time of a transaction.
_INSERT_UNLIMITED = f"""
    WITH q AS MATERIALIZED ({_QUEUED}), new AS ({_INSERT.format(only_if=_IF_UNLIMITED)})
    SELECT new.id, new.queued_at, q.queued + %(count)s AS queued FROM new CROSS JOIN q ORDER BY new.id
"""


@dataclass(frozen=True)
class NewRequest:
    """`units`: the cost is the endpoint's times this."""

    payload: bytes
    payload_type: str
    units: float = 1.0


class Submitted(NamedTuple):
    """The ids in the order of the requests. `queued`: waiting requests of the endpoint, with these. `room`: None if no
    bucket applies."""

    ids: list[int]
    queued_at: datetime
    queued: int
    is_nearly_full: bool
    room: Room | None


def submit(
    endpoint: Endpoint, requests: Sequence[NewRequest], identity: Identity, dispatcher: int | None = None
) -> Submitted:
    """Queue requests of a user who may use this endpoint. 400 for another protocol, 409 if it drains or its tenant is
    archived, 429 if its queue is full or tokens are missing. Concurrent submits may exceed max_queue by what each of
    them brings. `dispatcher`: the web process that passes the answer of a request to the OpenAI API to its client; it
    announces the request."""
    require_open(endpoint)
    if endpoint.state != EndpointState.ACTIVE:
        detail = f"endpoint '{endpoint.name}' is draining and accepts no requests"
        raise Problem(409, "endpoint_draining", detail, next_step="use another endpoint")
    if (endpoint.protocol == Protocol.OPENAI) != (dispatcher is not None):
        detail = f"endpoint '{endpoint.name}' has the protocol {endpoint.protocol}"
        step = "use POST /api/v1/tasks" if endpoint.protocol == Protocol.BATCH else "use the OpenAI API at /v1"
        error = FieldError("model" if dispatcher else "endpoint", "conflict", detail)
        raise Problem(400, "wrong_protocol", detail, next_step=step, errors=[error])
    costs = [endpoint.cost * request.units for request in requests]
    types = columns([(request.payload_type, cost) for request, cost in zip(requests, costs, strict=True)], 2)
    values = {
        "endpoint": endpoint.pk,
        "user": identity.user_id,
        "payloads": [request.payload for request in requests],
        "types": types[0],
        "costs": types[1],
        "dispatcher": dispatcher,
        "count": len(requests),
        "max_queue": endpoint.max_queue,
        "tenant": endpoint.tenant_id,
    }
    room = None
    if rows := prepared(_INSERT_UNLIMITED, values):
        queued = rows[0]["queued"]
    else:
        queued = _require_room(endpoint, len(requests))
        with transaction.atomic():
            rows = prepared(_INSERT_ANY, values)
            room = buckets.take(endpoint.tenant_id, identity.user_id, BucketUse.TASKS, sum(costs))
    if dispatcher is None:
        events.changed("endpoints", [endpoint.pk])
    ids, is_nearly_full = [row["id"] for row in rows], queued >= WARNING_PART * endpoint.max_queue
    return Submitted(ids, rows[0]["queued_at"], queued, is_nearly_full, room)


def _require_room(endpoint: Endpoint, more: int) -> int:
    """Return how many requests wait with these; 429 if that exceeds max_queue."""
    [row] = prepared(_QUEUED, {"endpoint": endpoint.pk})
    queued = int(row["queued"]) + more
    if queued > endpoint.max_queue:
        detail = (
            f"endpoint '{endpoint.name}' has {row['queued']} queued requests; at most {endpoint.max_queue} may wait"
        )
        step = "wait for the seconds in Retry-After"
        raise Problem(429, "queue_full", detail, next_step=step, retry_after=_RETRY_SECONDS)
    return queued
