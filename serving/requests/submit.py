"""Submit inference requests: check them, take their tokens, and write all of one submit or none."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import transaction

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.bus import events
from gpusched.lib.cache import Cache
from gpusched.lib.db.grouping import Grouped
from gpusched.lib.db.sql import columns, prepared
from gpusched.lib.storage import storage_errors
from gpusched.protocol.job_request import FieldError
from serving import payloads
from serving.endpoints import endpoint_cache
from serving.endpoints.endpoint_cache import CURRENT
from serving.endpoints.endpoints import require_open
from serving.models import Endpoint, EndpointState, Protocol
from tenants import buckets
from tenants.auth.identity import Identity
from tenants.buckets import Room
from tenants.models import BucketUse

# The queue of an endpoint counts as nearly full from this part of max_queue on.
WARNING_PART = 0.8
_RETRY_SECONDS = 1
Rows = Sequence[Mapping[str, Any]]
MIN_UNITS, MAX_UNITS = 1e-6, 1e6
_QUEUED = (
    "SELECT count(*) AS queued FROM serving_inferencerequest WHERE endpoint_id = %(endpoint)s AND state = 'queued'"
)
_INSERT = """
    INSERT INTO serving_inferencerequest
           (endpoint_id, user_id, state, cost, payload, payload_type, payload_file, payload_bytes, attempt, runs_alone,
            result_type, error_code, error, flush_reason, dispatcher)
    SELECT %(endpoint)s, "user", 'queued', cost, payload, type, file, bytes, 0, false, '', '', '', '',
           %(dispatcher)s::bigint
      FROM unnest(%(payloads)s::bytea[], %(users)s::bigint[], %(types)s::text[], %(files)s::text[], %(sizes)s::bigint[],
                  %(costs)s::float8[], %(places)s::int[])
           WITH ORDINALITY AS r (payload, "user", type, file, bytes, cost, place, number){only_if} ORDER BY number
    RETURNING id, queued_at
"""
_INSERT_ANY = _INSERT.format(only_if="")
_IF_UNLIMITED = f"""
     WHERE (SELECT queued FROM q) + place <= %(max_queue)s
       AND (%(read_as)s::text IS NULL OR ({CURRENT}) = %(read_as)s)
       AND NOT EXISTS (SELECT 1 FROM tenants_buckets WHERE tenant_id = %(tenant)s AND limits = '{BucketUse.TASKS}')
"""
# Without a bucket that could refuse, one statement is the whole submit: half the time of a transaction. Of several
# submits to an endpoint it writes the first ones, as many as the queue has room for.
_INSERT_UNLIMITED = f"""
    WITH q AS MATERIALIZED ({_QUEUED}), new AS ({_INSERT.format(only_if=_IF_UNLIMITED)})
    SELECT new.id, new.queued_at, q.queued FROM new CROSS JOIN q ORDER BY new.id
"""


@dataclass(frozen=True)
class NewRequest:
    """`units`: the cost is the endpoint's times this."""

    payload: bytes
    payload_type: str
    units: float = 1.0


@dataclass(frozen=True)
class _Submit:
    """Requests to queue, all or none. `files`: the names of the files with their payloads, empty for those in the row.
    `dispatcher`: see `submit`."""

    endpoint: Endpoint
    user_id: int
    requests: Sequence[NewRequest]
    files: Sequence[str]
    dispatcher: int | None = None


class Submitted(NamedTuple):
    """The ids in the order of the requests. `queued`: waiting requests of the endpoint, with these. `warning`: the
    header Queue-Warning if the queue is nearly full. `room`: None if no bucket applies."""

    ids: list[int]
    queued_at: datetime
    queued: int
    warning: str
    room: Room | None


# Submits of single requests that arrive together, by what they have in common.
_groups = Cache[tuple[int, str, int | None], Grouped[_Submit, tuple[Rows, int]]](max_entries=256)


def submit(
    endpoint: Endpoint, requests: Sequence[NewRequest], identity: Identity, dispatcher: int | None = None
) -> Submitted:
    """Queue requests of a user who may use this endpoint. 400 for another protocol, 409 if it drains or its tenant is
    archived, 429 if its queue is full or tokens are missing. Concurrent submits may exceed max_queue by what each of
    them brings. `dispatcher`: the web process that passes the answer of a request to the OpenAI API to its client; it
    announces the request."""
    _require_accepting(endpoint, dispatcher)
    with _stored_payloads(requests) as files:
        rows, queued, room = _insert(_Submit(endpoint, identity.user_id, requests, files, dispatcher))
    return _submitted(endpoint, rows, queued, room)


def submit_if_unchanged(endpoint: Endpoint, requests: Sequence[NewRequest], identity: Identity) -> Submitted | None:
    """Submit small requests in one statement to an endpoint that was read some time ago. None, and nothing is done, if
    it has changed or this takes more: then read the endpoint, and call `submit`."""
    try:
        _require_accepting(endpoint, None)
    except Problem:
        return None  # that may no longer be so
    rows, queued = _insert_unlimited(_Submit(endpoint, identity.user_id, requests, [""] * len(requests)))
    return _submitted(endpoint, rows, queued, None) if rows else None


def require_units(units: float) -> None:
    """Raise 400 for units that are no cost. Speed is measured in seconds per cost: a cost near 0 would overflow it."""
    if not MIN_UNITS <= units <= MAX_UNITS:
        raise invalid([FieldError("units", "out_of_range", f"must be from {MIN_UNITS:g} to {MAX_UNITS:g}")])


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


def _submitted(endpoint: Endpoint, rows: Rows, queued: int, room: Room | None) -> Submitted:
    """Describe new requests."""
    is_nearly_full = queued >= WARNING_PART * endpoint.max_queue
    warning = f"endpoint={endpoint.name};used={queued};limit={endpoint.max_queue}" if is_nearly_full else ""
    return Submitted([row["id"] for row in rows], rows[0]["queued_at"], queued, warning, room)


def _insert(submit: _Submit) -> tuple[Rows, int, Room | None]:
    """Write the requests. Return their rows, how many requests of the endpoint wait, and the room in the buckets."""
    rows, queued = _insert_unlimited(submit)
    if rows:
        return rows, queued, None
    endpoint = submit.endpoint
    queued = _require_room(endpoint, len(submit.requests))
    cost = sum(endpoint.cost * request.units for request in submit.requests)
    with transaction.atomic():
        rows = prepared(_INSERT_ANY, _values([submit]))
        room = buckets.take(endpoint.tenant_id, submit.user_id, BucketUse.TASKS, cost)
        _announce(submit)
    return rows, queued, room


def _insert_unlimited(submit: _Submit) -> tuple[Rows, int]:
    """Write the requests in one statement, which the submits that arrive together share. Return their rows, and how
    many requests of the endpoint wait. Return no rows if it has changed since it was read, if its queue is full or if
    a bucket might refuse them."""
    endpoint = submit.endpoint
    if len(submit.requests) > 1 or endpoint.read_as is None:
        [(rows, queued)] = _insert_group([submit])
    else:
        # One group per endpoint, so that a lock on another endpoint delays none of its submits.
        key = (endpoint.pk, endpoint.read_as, submit.dispatcher)
        rows, queued = _groups.get(key, lambda: Grouped(_insert_group))(submit)
    if not rows:
        endpoint_cache.forget(endpoint.name)
    return rows, queued


def _insert_group(submits: Sequence[_Submit]) -> Sequence[tuple[Rows, int]]:
    """Write the requests of these submits to one endpoint. Return for each what `_insert_unlimited` does."""
    rows = prepared(_INSERT_UNLIMITED, _values(submits))
    written = []
    end = 0
    for submit in submits:
        begin, end = end, end + len(submit.requests)
        own = rows[begin:end]
        written.append((own, own[0]["queued"] + end if own else 0))
    if rows:
        _announce(submits[0])
    return written


def _announce(submit: _Submit) -> None:
    """Announce new requests of an endpoint. The web process of a client of the OpenAI API does so itself."""
    if submit.dispatcher is None:
        events.changed("endpoints", [submit.endpoint.pk])


@contextmanager
def _stored_payloads(requests: Sequence[NewRequest]) -> Iterator[list[str]]:
    """Store large payloads as files and yield their names, empty for those in the row. Delete them if the submit is
    refused. After any other error the rows may exist, as when the connection broke before the database confirmed them;
    if they do not, `sweep` deletes the files."""
    files: list[str] = []
    try:
        for request in requests:
            if len(request.payload) <= payloads.INLINE_BYTES:
                files.append("")
                continue
            with storage_errors():
                files.append(payloads.store(request.payload))
        yield files
    except Problem:
        payloads.delete(filter(None, files))
        raise


def _values(submits: Sequence[_Submit]) -> dict[str, Any]:
    """Return the parameters of submits to the same endpoint. `place`: how many requests wait with those of a submit,
    besides those that wait before the statement."""
    endpoint = submits[0].endpoint
    contents, rows = [], []
    place = 0
    for submit in submits:
        place += len(submit.requests)
        for request, file in zip(submit.requests, submit.files, strict=True):
            contents.append(b"" if file else request.payload)
            cost = endpoint.cost * request.units
            rows.append((submit.user_id, request.payload_type, file, len(request.payload), cost, place))
    users, types, files, sizes, costs, places = columns(rows, 6)
    return {
        "endpoint": endpoint.pk,
        "name": endpoint.name,
        "read_as": endpoint.read_as,
        "payloads": contents,
        "users": users,
        "types": types,
        "files": files,
        "sizes": sizes,
        "costs": costs,
        "places": places,
        "dispatcher": submits[0].dispatcher,
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
