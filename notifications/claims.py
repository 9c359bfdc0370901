"""Claim deliveries for sending, and record how each went.

A claim lasts for a while. What its holder does not confirm in that time, because it was killed, is claimed again under
the same id."""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.conf import settings
from django.db import transaction

from gpusched.lib.db.sql import columns, execute, query
from notifications import metrics
from notifications.expansion import GETS_NOTICE

# A holder starts no message after BUNDLE_SECONDS, and each try takes at most 20 s (sending/child.py). A second try may
# last longer than the claim: then the delivery is sent again under its id.
BUNDLE_SECONDS, CLAIM_SECONDS = 10.0, 45.0
# Deliveries in a message to people; requests to a webhook in a row.
MAX_TOGETHER, MAX_IN_A_ROW = 100, 20
# Routes in a read of those that are due.
_ROUTES_AT_ONCE = 200
# Between two messages to people: what happens meanwhile arrives together.
REST_SECONDS = 20.0
# If so many wait already that they fill a message, a longer rest would not make fewer messages.
FULL_REST_SECONDS = 1.0
_PAUSES = (10.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0)
_JITTER = 0.2

_IS_QUIET = """
    r.quiet_from IS NOT NULL AND CASE
        WHEN r.quiet_from < r.quiet_until THEN l.t >= r.quiet_from AND l.t < r.quiet_until
        ELSE l.t >= r.quiet_from OR l.t < r.quiet_until END
"""
# Routes with something to send now. Only urgent deliveries ignore quiet hours, digests and earlier failures. A send of
# the future is from before the clock was set back.
_ROUTES = f"""
    SELECT r.id, r.channel, r.sealed_target, r.sealed_secret, r.failures,
           CASE WHEN r.previous_secret_until > now() THEN r.sealed_previous_secret ELSE '' END AS sealed_previous,
           NOT w.is_open AS urgent_only
      FROM notifications_route r
     CROSS JOIN LATERAL (SELECT (now() AT TIME ZONE r.time_zone)::time AS t) l
     CROSS JOIN LATERAL (
           SELECT (r.failures = 0 OR r.retry_at <= now())
              AND (r.channel = 'webhook' OR r.last_sent_at > now()
                   OR coalesce(r.last_sent_at <= now() - make_interval(secs => %(rest)s), true)
                   OR r.last_sent_at <= now() - make_interval(secs => %(full_rest)s) AND (
                      SELECT count(*) FROM (
                          SELECT FROM notifications_delivery d WHERE d.route_id = r.id AND d.state = 'pending'
                             AND d.next_at <= now() LIMIT %(full)s) f) = %(full)s)
              AND NOT ({_IS_QUIET}) AND EXISTS (
                  SELECT 1 FROM notifications_delivery d WHERE d.route_id = r.id AND d.state = 'pending'
                     AND d.next_at <= now()
                     AND (d.attempts > 0 OR d.created_at <= now() - make_interval(mins => r.digest_minutes)))
                  AS is_open) w
     WHERE r.is_enabled AND NOT r.id = ANY(%(busy)s) AND (w.is_open OR EXISTS (
           SELECT 1 FROM notifications_delivery d WHERE d.route_id = r.id AND d.state = 'pending' AND d.is_urgent
              AND d.next_at <= now()))
     ORDER BY r.last_sent_at NULLS FIRST, r.id LIMIT %(limit)s FOR UPDATE OF r SKIP LOCKED
"""
_GETS_IT = GETS_NOTICE.format(notice="n")
_CLAIM = f"""
    WITH due AS (
        SELECT id FROM notifications_delivery
         WHERE route_id = %(route)s AND state = 'pending' AND next_at <= now() AND (is_urgent OR NOT %(urgent_only)s)
         ORDER BY is_urgent DESC, attempts, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED),
    claimed AS (
        UPDATE notifications_delivery d
           SET attempts = attempts + 1, next_at = now() + make_interval(secs => %(seconds)s)
          FROM due WHERE d.id = due.id RETURNING d.id, d.uid, d.attempts, d.notice_id)
    SELECT c.id, c.uid::text AS uid, c.attempts, n.kind, n.tenant_id, n.user_id, n.subject_id, n.data, n.at,
           r.tenant_id IS NOT NULL OR {_GETS_IT} AS is_allowed
      FROM claimed c JOIN notifications_notice n ON n.id = c.notice_id
      JOIN notifications_route r ON r.id = %(route)s ORDER BY c.id
"""


@dataclass(frozen=True)
class Claimed:
    """A delivery that this process sends, with its notice. `attempt`: its number, which fences the result."""

    id: int
    uid: str
    attempt: int
    kind: str
    tenant_id: int | None
    user_id: int | None
    subject_id: int | None
    data: dict[str, Any]
    at: datetime


@dataclass(frozen=True)
class Bundle:
    """A route and its claimed deliveries. `sealed_secrets`: of a webhook, the present one first."""

    route_id: int
    channel: str
    sealed_target: str
    sealed_secrets: tuple[str, ...]
    deliveries: tuple[Claimed, ...]


def claim(limit: int, busy: Collection[int], accepts: Callable[[str], bool] = lambda _: True) -> list[Bundle]:
    """Claim what is due, of at most `limit` routes that are not `busy` in this process, and whose sealed targets
    `accepts` accepts."""
    looked_at, bundles = list(busy), list[Bundle]()
    values = {
        "limit": _ROUTES_AT_ONCE, "rest": REST_SECONDS, "full_rest": FULL_REST_SECONDS, "full": MAX_TOGETHER,
    }  # fmt: skip
    with transaction.atomic():
        has_more = True
        while has_more and len(bundles) < limit:
            routes = query(_ROUTES, {**values, "busy": looked_at})
            looked_at += [route["id"] for route in routes]
            accepted = (route for route in routes if accepts(route["sealed_target"]))
            bundles += [_claim_of(route) for route in islice(accepted, limit - len(bundles))]
            has_more = len(routes) == _ROUTES_AT_ONCE
    return [bundle for bundle in bundles if bundle.deliveries]


def _claim_of(route: dict[str, Any]) -> Bundle:
    is_webhook = route["channel"] == "webhook"
    most = MAX_TOGETHER if not is_webhook else 1 if route["failures"] else MAX_IN_A_ROW
    values = {
        "route": route["id"], "urgent_only": route["urgent_only"], "limit": most, "seconds": CLAIM_SECONDS,
    }  # fmt: skip
    rows = query(_CLAIM, values)
    # Since the notice, its user may have left the tenant, or been disabled.
    _end([row["id"] for row in rows if not row["is_allowed"]], "the owner of the route no longer sees this")
    deliveries = tuple(
        Claimed(row["id"], row["uid"], row["attempts"], row["kind"], row["tenant_id"], row["user_id"],
                row["subject_id"], row["data"], row["at"])
        for row in rows if row["is_allowed"]
    )  # fmt: skip
    sealed = tuple(filter(None, (route["sealed_secret"], route["sealed_previous"])))
    return Bundle(route["id"], route["channel"], route["sealed_target"], sealed, deliveries)


_SENT = """
    UPDATE notifications_delivery SET state = 'sent', ended_at = now(), status_code = %s, error = %s, is_urgent = false
     WHERE id = %s AND attempts = %s AND state = 'pending'
"""
_ROUTE_WORKS = """
    UPDATE notifications_route
       SET failures = 0, failing_since = NULL, problem = %s, retry_at = now(), last_sent_at = now() WHERE id = %s
"""
_FAILED = """
    UPDATE notifications_delivery d
       SET error = %(error)s, status_code = %(status)s, is_urgent = false,
           expires_at = coalesce(expires_at, now() + make_interval(secs => %(give_up)s)),
           state = CASE WHEN expires_at <= now() THEN 'failed' ELSE 'pending' END,
           ended_at = CASE WHEN expires_at <= now() THEN now() END,
           next_at = now() + make_interval(secs => %(pause)s)
     WHERE id = %(id)s AND attempts = %(attempt)s AND state = 'pending' RETURNING state
"""
_ROUTE_FAILS = """
    UPDATE notifications_route
       SET failures = failures + 1, failing_since = coalesce(failing_since, now()), problem = %(error)s,
           is_enabled = is_enabled AND NOT %(is_gone)s,
           retry_at = now() + make_interval(secs => greatest(%(retry_after)s,
               (%(pauses)s::float8[])[least(failures + 1, %(last)s)] * %(jitter)s))
     WHERE id = %(route)s
"""


# Before its deliveries, as in a change or a deletion of the route: else the two would deadlock.
_LOCK_ROUTE = "SELECT FROM notifications_route WHERE id = %s FOR NO KEY UPDATE"


def record_sent(route_id: int, deliveries: Sequence[Claimed], status: int | None, problem: str = "") -> None:
    """Record that these deliveries were sent. `problem`: why not to all recipients."""
    with transaction.atomic():
        execute(_ROUTE_WORKS, [problem, route_id])
        sent = sum(execute(_SENT, [status, problem, delivery.id, delivery.attempt]) for delivery in deliveries)
        metrics.count("sent", sent)


def record_failed(
    route_id: int,
    deliveries: Sequence[Claimed],
    error: str,
    status: int | None = None,
    *,
    is_gone: bool = False,
    retry_after: float = 0.0,
) -> None:
    """Record that these deliveries failed. They are repeated with growing pauses, or given up after the time of
    GPUSCHED_NOTIFY_GIVE_UP_HOURS. The route waits, too. `is_gone`: it is turned off."""
    jitter = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 not a secret
    retry_after = min(retry_after, _PAUSES[-1])
    values = {
        "error": error, "status": status, "give_up": settings.ENV.notify_give_up_hours * 3600, "is_gone": is_gone,
        "retry_after": retry_after, "pauses": list(_PAUSES), "last": len(_PAUSES), "jitter": jitter,
        "route": route_id,
    }  # fmt: skip
    states: list[str] = []
    with transaction.atomic():
        execute(_LOCK_ROUTE, [route_id])
        for delivery in deliveries:
            pause = max(retry_after, _PAUSES[min(delivery.attempt, len(_PAUSES)) - 1] * jitter)
            failed = query(_FAILED, {**values, "pause": pause, "id": delivery.id, "attempt": delivery.attempt})
            states += [row["state"] for row in failed]
        metrics.count("given_up", states.count("failed"))
        metrics.count("failed", states.count("pending"))
        if states:  # else another process has sent them meanwhile
            execute(_ROUTE_FAILS, values)
        if is_gone:
            drop_pending(route_id, "the receiver wants no more messages")


def drop_pending(route_id: int, error: str) -> None:
    """End the deliveries of a route that is off, as failed."""
    execute(
        """UPDATE notifications_delivery SET state = 'failed', ended_at = now(), error = %s
            WHERE route_id = %s AND state = 'pending'""",
        [error, route_id],
    )


def retry_now(route_id: int) -> None:
    """End the pauses of deliveries that failed at the previous target of a route."""
    execute(
        """UPDATE notifications_delivery SET next_at = now()
            WHERE route_id = %s AND state = 'pending' AND attempts > 0""",
        [route_id],
    )


def end_pauses_of_the_future() -> None:
    """Try again what waits for a time which no pause reaches: before, the clock of the database's host was set back."""
    longest = _PAUSES[-1] * (1 + _JITTER) + 60
    execute(
        "UPDATE notifications_route SET retry_at = now() WHERE retry_at > now() + make_interval(secs => %s)", [longest]
    )
    execute(
        """UPDATE notifications_delivery SET next_at = now(), created_at = least(created_at, now())
            WHERE state = 'pending' AND greatest(next_at, created_at) > now() + make_interval(secs => %s)""",
        [longest],
    )


def _end(ids: Sequence[int], error: str) -> None:
    if ids:
        sql = "UPDATE notifications_delivery SET state = 'failed', ended_at = now(), error = %s WHERE id = ANY(%s)"
        execute(sql, [error, list(ids)])


def release(deliveries: Sequence[Claimed]) -> None:
    """Return claimed deliveries that were not tried, with their attempts; not those that another process has claimed
    meanwhile."""
    execute(
        """UPDATE notifications_delivery d SET attempts = d.attempts - 1, next_at = now()
             FROM unnest(%s::bigint[], %s::int[]) AS c (id, attempts)
            WHERE d.id = c.id AND d.attempts = c.attempts AND d.state = 'pending'""",
        columns([(delivery.id, delivery.attempt) for delivery in deliveries], 2),
    )
