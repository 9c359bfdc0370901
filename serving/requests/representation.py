"""Represent inference requests for the API."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from gpusched.lib.db.sql import prepared, query
from gpusched.lib.times import rfc3339
from gpusched.protocol.batches import JSON
from serving.models import Endpoint, RequestState
from serving.requests.submit import NewRequest

# Of the request `r`, without its result; NAMES joins what they name.
COLUMNS = """
           r.id, e.name AS endpoint, t.name AS tenant, u.username AS "user", r.state, r.cost, r.attempt,
           r.result_type AS output_type, r.error_code, r.error, r.batch_size, r.flush_reason,
           r.payload_bytes AS input_bytes, r.result_bytes AS output_bytes, r.replica_job_id,
           r.queued_at, r.started_at, r.ended_at
"""
NAMES = """
      JOIN serving_endpoint e ON e.id = r.endpoint_id JOIN tenants_all t ON t.id = e.tenant_id
      JOIN tenants_people u ON u.id = r.user_id
"""
_TASKS = f"""
    SELECT {COLUMNS}, r.result FROM serving_inferencerequest r {NAMES}
     WHERE {{which}} AND (%(visible)s::bigint[] IS NULL OR e.tenant_id = ANY(%(visible)s))
     ORDER BY r.id {{order}} LIMIT %(limit)s
"""
_BY_ID = _TASKS.format(which="r.id = ANY(%(ids)s::bigint[])", order="")
_LISTED = _TASKS.format(
    which="""(%(endpoint)s::bigint IS NULL OR r.endpoint_id = %(endpoint)s)
         AND (%(before)s::bigint IS NULL OR r.id < %(before)s)
         AND (%(state)s::text IS NULL OR r.state = %(state)s)""",
    order="DESC",
)


_VISIBLE = """
    SELECT r.id FROM serving_inferencerequest r JOIN serving_endpoint e ON e.id = r.endpoint_id
     WHERE r.id = ANY(%(ids)s::bigint[]) AND (%(visible)s::bigint[] IS NULL OR e.tenant_id = ANY(%(visible)s))
"""


def visible_ids(ids: Sequence[int], visible: Sequence[int] | None) -> set[int]:
    """Return which of these requests exist and belong to these tenants. `visible` None: all tenants."""
    return {row["id"] for row in prepared(_VISIBLE, {"ids": list(ids), "visible": visible})}


def tasks(ids: Sequence[int], visible: Sequence[int] | None) -> list[dict[str, Any]]:
    """Return these requests in the order of their ids, without those of other tenants. `visible` None: all tenants."""
    return [represented(row) for row in prepared(_BY_ID, {"ids": list(ids), "visible": visible, "limit": len(ids)})]


def queued(
    endpoint: Endpoint, username: str, ids: Sequence[int], requests: Sequence[NewRequest], at: datetime
) -> list[dict[str, Any]]:
    """Return the tasks of a submit, as `tasks` does, without a read."""
    # fmt: off
    common = {
        "endpoint": endpoint.name, "tenant": endpoint.tenant.name, "user": username, "state": RequestState.QUEUED,
        "attempt": 0, "output": None, "output_type": "", "output_bytes": None, "error_code": "", "error": "",
        "batch_size": None, "flush_reason": "", "replica_job_id": None, "queued_at": rfc3339(at), "started_at": None,
        "ended_at": None,
    }
    # fmt: on
    return [
        {"id": number, "cost": endpoint.cost * request.units, "input_bytes": len(request.payload), **common}
        for number, request in zip(ids, requests, strict=True)
    ]


def listed(
    visible: Sequence[int] | None, limit: int, *, endpoint: int | None, before: int | None, state: str | None
) -> list[dict[str, Any]]:
    """Return requests, newest first, those before the id `before`."""
    values = {"visible": visible, "limit": limit, "endpoint": endpoint, "before": before, "state": state}
    return [represented(row) for row in query(_LISTED, values)]


def represented(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of a row with COLUMNS and `result`."""
    result, times = row["result"], ("queued_at", "started_at", "ended_at")
    task = {name: value for name, value in row.items() if name != "result"}
    is_json = result is not None and row["output_type"] == JSON
    output = msgspec.Raw(bytes(result)) if is_json else None
    return {**task, "output": output, **{name: rfc3339(row[name]) for name in times}}
