"""The rows of topics `endpoints`, `endpoint:<id>` and `endpoint-settings:<id>`: load, latencies, batches, replicas and
costs of endpoints."""

import re
from collections.abc import Collection, Mapping

from frontend.live.topics import Topic, key_by
from gpusched.lib.db.sql import Row
from gpusched.lib.times import rfc3339
from serving.endpoints import activity
from tenants.auth.page_access import Visible

MAX_LISTED_USERS = 3
# Limits the load of the page while thousands of requests end each second.
_PAUSE_SECONDS = 1.0
_TIMES = ("oldest_at", "created_at", "warm_at", "used_at")
# The page computes the wait from `oldest_at`: a row that changed each second would be sent each second.
_NOT_SHOWN = ("id", "tenant_id", "is_archived", "oldest_wait_seconds")
_NONE = {"completed": 0, "failed": 0, "expired": 0, "cancelled": 0, "refused": 0}
# A change of these makes the page reload what the template draws.
_SETTINGS = ("state", "version")


def load() -> dict[int, Row]:
    """Return all endpoints by id, with the tenant."""
    loads = activity.loads()
    ids = list(loads)
    latencies, costs = activity.latencies(ids), activity.costs(ids, MAX_LISTED_USERS)
    return {
        number: {"tenant_id": row["tenant_id"], "row": {**_load(row, latencies), **_cost(costs.get(number, []))}}
        for number, row in loads.items()
    }


def restrict(endpoints: Mapping[int, Row], visible: Visible) -> dict[str, Row]:
    """Return the endpoints of visible tenants."""
    return {str(number): e["row"] for number, e in endpoints.items() if visible is None or e["tenant_id"] in visible}


def load_details(ids: Collection[int]) -> dict[int, Row]:
    """Return {id: {"tenant_id", "rows"}} for endpoints that exist."""
    loads = activity.loads(sorted(ids))
    numbers = list(loads)
    latencies, costs = activity.latencies(numbers), activity.costs(numbers)
    batches, replicas = activity.batches(numbers), activity.replicas(numbers)
    details = {}
    for number, row in loads.items():
        rows = {"endpoint": {**_load(row, latencies), **_cost(costs.get(number, []))}}
        for place in batches.get(number, []):
            rows[f"batch:{place['to']}"] = place
        for replica in replicas.get(number, []):
            rows[f"replica:{replica['job_id']}"] = _with_times(replica)
        for cost in costs.get(number, []):
            rows[f"user:{cost['user']}"] = {name: cost[name] for name in ("user", "cost", "requests")}
        details[number] = {"tenant_id": row["tenant_id"], "rows": rows}
    return details


def load_settings(ids: Collection[int]) -> dict[int, Row]:
    """Return {id: {"tenant_id", "rows"}} whose changes make a page reload its settings."""
    return {
        number: {"tenant_id": row["tenant_id"], "rows": {"settings": {name: row[name] for name in _SETTINGS}}}
        for number, row in activity.loads(sorted(ids)).items()
    }


def restrict_details(details: Mapping[int, Row], number: int, visible: Visible) -> dict[str, Row] | None:
    """Return the rows, or None if the endpoint does not exist or the viewer cannot see it."""
    detail = details.get(number)
    if detail is None or (visible is not None and detail["tenant_id"] not in visible):
        return None
    rows: dict[str, Row] = detail["rows"]
    return rows


def _load(row: Row, latencies: Mapping[int, Row]) -> Row:
    missing = {**_NONE, **dict.fromkeys(activity.PERCENTILES)}
    public = {name: value for name, value in row.items() if name not in _NOT_SHOWN}
    return {**_with_times(public), **latencies.get(row["id"], missing)}


def _cost(costs: list[Row]) -> Row:
    """Return the cost of all users, and the first of them as [user, cost]."""
    return {
        "cost": costs[0]["total"] if costs else 0.0,
        "cost_users": costs[0]["users"] if costs else 0,
        "costs": [[cost["user"], cost["cost"]] for cost in costs[:MAX_LISTED_USERS]],
    }


def _with_times(row: Row) -> Row:
    return {name: rfc3339(value) if name in _TIMES else value for name, value in row.items()}


_CHANGES = frozenset({"endpoints", "tasks", "jobs", "tenants"})
TOPICS = (
    Topic(
        "endpoints",
        lambda _requested, _loaded: load(),
        lambda endpoints, _, viewer: restrict(endpoints, viewer.visible),
        invalidated_by=_CHANGES,
        pause_seconds=_PAUSE_SECONDS,
    ),
    Topic(
        "endpoint",
        lambda requested, _loaded: load_details({number for number, _viewer in requested}),
        lambda details, number, viewer: restrict_details(details, number, viewer.visible),
        key_of=key_by(re.compile(r"endpoint:([1-9][0-9]{0,17})", re.ASCII), int),
        invalidated_by=_CHANGES,
        pause_seconds=_PAUSE_SECONDS,
    ),
    Topic(
        "endpoint-settings",
        lambda requested, _loaded: load_settings({number for number, _viewer in requested}),
        lambda details, number, viewer: restrict_details(details, number, viewer.visible),
        key_of=key_by(re.compile(r"endpoint-settings:([1-9][0-9]{0,17})", re.ASCII), int),
        invalidated_by=frozenset({"endpoints", "tenants"}),
        pause_seconds=_PAUSE_SECONDS,
    ),
)
