"""Submit inference requests: check them, take their tokens, and write all of one submit or none."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import transaction

from gpusched.lib.api.problems import Problem
from gpusched.lib.bus import events
from gpusched.lib.db.sql import columns, prepared
from gpusched.protocol.job_request import FieldError
from serving import payloads
from serving.endpoints import known
from serving.endpoints.endpoints import require_open
from serving.endpoints.known import CURRENT
from serving.models import Endpoint, EndpointState, Protocol
from tenants import buckets
from tenants.auth.identity import Identity
from tenants.buckets import Room
from tenants.models import BucketUse

# The queue of an endpoint counts as nearly full from this part of max_queue on.
WARNING_PART = 0.8
_RETRY_SECONDS = 1
MAX_UNITS = 1e6
_QUEUED = (
    "SELECT count(*) AS queued FROM serving_inferencerequest WHERE endpoint_id = %(endpoint)s AND state = 'queued'"
)
_INSERT = """
    INSERT INTO serving_inferencerequest
           (endpoint_id, user_id, state, cost, payload, payload_type, payload_file, payload_bytes, attempt, runs_alone,
            result_type, error_code, error, flush_reason, dispatcher)
    SELECT %(endpoint)s, %(user)s, 'queued', cost, payload, type, file, bytes, 0, false, '', '', '', '',
           %(dispatcher)s::bigint
      FROM unnest(%(payloads)s::bytea[], %(types)s::text[], %(files)s::text[], %(sizes)s::bigint[],
                  %(costs)s::float8[])
           WITH ORDINALITY AS r (payload, type, file, bytes, cost, number){only_if} ORDER BY number
    RETURNING id, queued_at
"""
_INSERT_ANY = _INSERT.format(only_if="")
_IF_UNLIMITED = f"""
     WHERE (SELECT queued FROM q) + %(count)s <= %(max_queue)s
       AND (%(read_as)s::text IS NULL OR ({CURRENT}) = %(read_as)s)
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
    """The ids in the order of the requests. `queued`: waiting requests of the endpoint, with these. `warning`: the
    header Queue-Warning if the queue is nearly full. `room`: None if no bucket applies."""

    ids: list[int]
    queued_at: datetime
    queued: int
    warning: str
    room: Room | None


def submit(
    endpoint: Endpoint, requests: Sequence[NewRequest], identity: Identity, dispatcher: int | None = None
) -> Submitted:
    """Queue requests of a user who may use this endpoint. 400 for another protocol, 409 if it drains or its tenant is
    archived, 429 if its queue is full or tokens are missing. Concurrent submits may exceed max_queue by what each of
    them brings. `dispatcher`: the web process that passes the answer of a request to the OpenAI API to its client; it
    announces the request."""
    _require_accepting(endpoint, dispatcher)
    with _stored_payloads(requests) as files:
        values = _values(endpoint, requests, files, identity, dispatcher)
        rows, queued, room = _insert(endpoint, values, sum(endpoint.cost * request.units for request in requests))
    return _submitted(endpoint, rows, queued, room, dispatcher)


def submit_if_unchanged(endpoint: Endpoint, requests: Sequence[NewRequest], identity: Identity) -> Submitted | None:
    """Submit small requests in one statement to an endpoint that was read some time ago. None, and nothing is done, if
    it has changed or this takes more: then read the endpoint, and call `submit`."""
    try:
        _require_accepting(endpoint, None)
    except Problem:
        return None  # that may no longer be so
    rows = _insert_unlimited(endpoint, _values(endpoint, requests, [""] * len(requests), identity, None))
    return _submitted(endpoint, rows, rows[0]["queued"], None, None) if rows else None


def _require_accepting(endpoint: Endpoint, dispatcher: int | None) -> None:
    """Raise the problem of an endpoint that accepts no requests, or none of this protocol."""
    require_open(endpoint)
    if endpoint.state != EndpointState.ACTIVE:
        detail = f"endpoint '{endpoint.name}' is draining and accepts no requests"
        raise Problem(409, "endpoint_draining", detail, next_step="use another endpoint")
    if (endpoint.protocol == Protocol.OPENAI) != (dispatcher is not None):
        detail = f"endpoint '{endpoint.name}' has the protocol {endpoint.protocol}"
        step = "use POST /api/v1/tasks" if endpoint.protocol == Protocol.BATCH else "use the OpenAI API at /v1"
        error = FieldError("model" if dispatcher else "endpoint", "conflict", detail)
        raise Problem(400, "wrong_protocol", detail, next_step=step, errors=[error])


def _submitted(
    endpoint: Endpoint, rows: Sequence[Mapping[str, Any]], queued: int, room: Room | None, dispatcher: int | None
) -> Submitted:
    """Announce new requests and describe them."""
    if dispatcher is None:
        events.changed("endpoints", [endpoint.pk])
    is_nearly_full = queued >= WARNING_PART * endpoint.max_queue
    warning = f"endpoint={endpoint.name};used={queued};limit={endpoint.max_queue}" if is_nearly_full else ""
    return Submitted([row["id"] for row in rows], rows[0]["queued_at"], queued, warning, room)


def _insert(
    endpoint: Endpoint, values: Mapping[str, Any], cost: float
) -> tuple[list[dict[str, Any]], int, Room | None]:
    """Write the requests. Return their rows, how many requests of the endpoint wait, and the room in the buckets."""
    if rows := _insert_unlimited(endpoint, values):
        return rows, rows[0]["queued"], None
    queued = _require_room(endpoint, values["count"])
    with transaction.atomic():
        rows = prepared(_INSERT_ANY, values)
        room = buckets.take(endpoint.tenant_id, values["user"], BucketUse.TASKS, cost)
    return rows, queued, room


def _insert_unlimited(endpoint: Endpoint, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Write the requests of an endpoint that has not changed since it was read. Return no rows if it has, if its queue
    is full or if a bucket might refuse them."""
    rows = prepared(_INSERT_UNLIMITED, values)
    if not rows:
        known.forget(endpoint.name)
    return rows


@contextmanager
def _stored_payloads(requests: Sequence[NewRequest]) -> Iterator[list[str]]:
    """Store large payloads as files and yield their names, empty for those in the row. Delete them if the submit is
    refused."""
    files: list[str] = []
    try:
        for request in requests:
            is_large = len(request.payload) > payloads.INLINE_BYTES
            files.append(payloads.store(request.payload) if is_large else "")
        yield files
    except BaseException:
        payloads.delete(filter(None, files))
        raise


def _values(
    endpoint: Endpoint,
    requests: Sequence[NewRequest],
    files: Sequence[str],
    identity: Identity,
    dispatcher: int | None,
) -> dict[str, Any]:
    each = zip(requests, files, strict=True)
    given = [(r.payload_type, file, len(r.payload), endpoint.cost * r.units) for r, file in each]
    types, names, sizes, costs = columns(given, 4)
    return {
        "endpoint": endpoint.pk,
        "name": endpoint.name,
        "read_as": endpoint.read_as,
        "user": identity.user_id,
        "payloads": [b"" if file else request.payload for request, file in zip(requests, files, strict=True)],
        "types": types,
        "files": names,
        "sizes": sizes,
        "costs": costs,
        "dispatcher": dispatcher,
        "count": len(requests),
        "max_queue": endpoint.max_queue,
        "tenant": endpoint.tenant_id,
    }


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
