"""List deliveries, and replay one under its id."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from gpusched.lib.api.problems import Problem, not_found, still_there
from gpusched.lib.audit import log
from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from notifications import routes
from tenants.auth.identity import Identity

_LIST = """
    SELECT d.id, d.uid::text AS uid, d.route_id, r.name AS route, n.kind, n.subject_id, n.at, d.state, d.attempts,
           CASE WHEN d.state = 'pending' THEN d.next_at END AS next_at, d.status_code, d.error, d.created_at, d.ended_at
      FROM notifications_delivery d JOIN notifications_notice n ON n.id = d.notice_id
      JOIN notifications_route r ON r.id = d.route_id
     WHERE d.route_id = ANY(%(routes)s) AND (%(state)s::text IS NULL OR d.state = %(state)s)
       AND (%(id)s::bigint IS NULL OR d.id = %(id)s) AND (%(before)s::bigint IS NULL OR d.id < %(before)s)
     ORDER BY d.id DESC LIMIT %(limit)s
"""
# Attempts only grow: they tell late results of earlier sends apart.
_REPLAY = """
    UPDATE notifications_delivery
       SET state = 'pending', next_at = now(), expires_at = NULL, ended_at = NULL, error = '', is_urgent = true
     WHERE id = %s AND state <> 'pending' RETURNING id
"""
_ROUTE_OF = "SELECT route_id FROM notifications_delivery WHERE id = %s"


def latest(
    identity: Identity, *, route_id: int | None, state: str | None, before: int | None, limit: int
) -> list[dict[str, Any]]:
    """Return deliveries of the caller's routes, newest first. 404 for a route that the caller may not see."""
    if route_id is not None:
        ids = [routes.find(route_id, None, identity).pk]
    else:
        ids = [route.pk for route in routes.visible(None, None, identity)]
    rows = query(_LIST, {"routes": ids, "state": state, "id": None, "before": before, "limit": limit})
    return [_represent(row) for row in rows]


def find(delivery_id: int, identity: Identity) -> dict[str, Any]:
    """Return a delivery of one of the caller's routes. 404 otherwise."""
    rows = query(_ROUTE_OF, [delivery_id])
    if not rows:
        raise _absent(delivery_id)
    try:
        route = routes.find(rows[0]["route_id"], None, identity)
    except Problem as problem:
        if problem.status == 404:
            raise _absent(delivery_id) from problem
        raise
    values = {"routes": [route.pk], "state": None, "id": delivery_id, "before": None, "limit": 1}
    return _represent(still_there(query(_LIST, values), f"delivery {delivery_id}"))


def replay(delivery_id: int, identity: Identity) -> dict[str, Any]:
    """Send an ended delivery again, under the same id. 409 if it waits already, or its route is off."""
    with transaction.atomic():
        delivery = find(delivery_id, identity)
        route = routes.require_change(delivery["route_id"], identity)
        if not route.is_enabled:
            raise Problem(409, "wrong_state", f"{routes.subject(route)} is off", next_step="enable it first")
        if not query(_REPLAY, [delivery_id]):
            raise Problem(409, "wrong_state", f"delivery {delivery_id} is still pending", next_step="wait for its end")
        log.record("delivery.replay", routes.subject(route), None, {"delivery": delivery["uid"]})
    return find(delivery_id, identity)


def _absent(delivery_id: int) -> Problem:
    return not_found(f"delivery {delivery_id}")


def _represent(row: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: rfc3339(row[name]) for name in ("at", "next_at", "created_at", "ended_at")}
    return {**row, **times}
