"""End requests without a result: cancelled, expired, refused because their endpoint gets no more replicas, or failed.

Tokens of expired and refused requests return, and those of requests that end before their first start, or because no
replica could be reached."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from gpusched.lib.db.sql import query, retry_atomic
from serving import counts, payloads
from tenants import buckets
from tenants.models import BucketUse

MAX_AT_ONCE = 1000
_SOME = f"LIMIT {MAX_AT_ONCE} FOR UPDATE OF r SKIP LOCKED"
_END = """
    WITH locked AS (
        SELECT r.id, r.state FROM serving_inferencerequest r JOIN serving_endpoint e ON e.id = r.endpoint_id
         WHERE {which} ORDER BY r.id {lock})
    UPDATE serving_inferencerequest r
       SET state = %(state)s, ended_at = clock_timestamp(), error_code = %(code)s, error = %(error)s, dispatcher = NULL
      FROM locked l, serving_endpoint e
     WHERE r.id = l.id AND e.id = r.endpoint_id
    RETURNING r.id, r.endpoint_id, r.user_id, r.cost, r.queued_at, e.tenant_id, l.state AS was,
              r.attempt = 0 OR r.state IN ('expired', 'refused') OR r.error_code = 'replica_unreachable' AS is_refunded,
              date_part('epoch', r.ended_at - r.queued_at) AS seconds
"""
_EXPIRED = _END.format(
    which="r.state = 'queued' AND coalesce(r.returned_at, r.queued_at)"
    " < clock_timestamp() - make_interval(secs => e.timeout_seconds)",
    lock=_SOME,
)
_OF_ENDPOINT = _END.format(which="r.state = 'queued' AND r.endpoint_id = %(endpoint)s", lock=_SOME)
_ABANDONED = _END.format(
    which="""r.state = 'queued' AND e.protocol = 'openai' AND NOT EXISTS (
             SELECT 1 FROM serving_dispatcher d
              WHERE d.id = r.dispatcher AND d.seen_at > clock_timestamp() - make_interval(secs => %(silent)s))""",
    lock=_SOME,
)
# A cancelled request in progress is ended at once, and the result of its attempt is ignored. It waits for one that a
# dispatcher is just taking, because its cancel is not repeated.
_CANCELLED = _END.format(which="r.state IN ('queued', 'running') AND r.id = ANY(%(ids)s)", lock="FOR UPDATE OF r")


class Ended(NamedTuple):
    """A request that ended without a result."""

    id: int
    was_queued: bool


def cancel(ids: Sequence[int]) -> list[Ended]:
    """Cancel these requests unless they have ended. The caller has checked the rights."""
    return end(ids, "cancelled", "cancelled", "")


def end(ids: Sequence[int], state: str, code: str, error: str) -> list[Ended]:
    """End these requests in this state unless they have ended."""
    return _end(_CANCELLED, state, code, error, ids=list(ids))


def end_abandoned(silent_seconds: float) -> list[Ended]:
    """End waiting requests to the OpenAI API whose client's web process is gone, at most MAX_AT_ONCE."""
    return _end(_ABANDONED, "cancelled", "client_left", "the connection to its client ended", silent=silent_seconds)


def expire() -> list[Ended]:
    """End requests that have waited longer than the timeout of their endpoint since they were submitted or returned to
    the queue, at most MAX_AT_ONCE."""
    return _end(_EXPIRED, "expired", "expired", "no replica took it within timeout_seconds")


def refuse_all(endpoint_id: int, code: str, error: str) -> list[Ended]:
    """End waiting requests of an endpoint that gets no more replicas, at most MAX_AT_ONCE."""
    return _end(_OF_ENDPOINT, "refused", code, error, endpoint=endpoint_id)


def forget(hours: float) -> int:
    """Delete requests that ended this long ago with their files, at most MAX_AT_ONCE. Return how many."""
    deleted = query(
        """DELETE FROM serving_inferencerequest WHERE id IN (
               SELECT r.id FROM serving_endpoint e CROSS JOIN LATERAL (
                      SELECT id FROM serving_inferencerequest
                       WHERE endpoint_id = e.id AND state NOT IN ('queued', 'running')
                         AND ended_at < now() - %s * interval '1 hour'
                       ORDER BY ended_at LIMIT %s) r LIMIT %s)
           RETURNING payload_file, result_file""",
        [hours, MAX_AT_ONCE, MAX_AT_ONCE],
    )
    payloads.delete(filter(None, (name for row in deleted for name in row.values())))
    return len(deleted)


def _end(sql: str, state: str, code: str, error: str, **values: Any) -> list[Ended]:
    def work() -> list[dict[str, Any]]:
        rows = query(sql, {"state": state, "code": code, "error": error, **values})
        for row in rows:
            counts.count_end(row["endpoint_id"], state, row["seconds"])
        _refund([row for row in rows if row["is_refunded"]])
        return rows

    # A dispatcher that records the results of a batch may lock its requests in another order than a cancel.
    return [Ended(row["id"], row["was"] == "queued") for row in retry_atomic(work)]


def _refund(rows: Sequence[Mapping[str, Any]]) -> None:
    """Return the tokens of these requests: one refund for those that took theirs from the same buckets on one day."""
    if not rows:
        return
    created = buckets.creations({row["tenant_id"] for row in rows}, BucketUse.TASKS) if len(rows) > 1 else {}
    refunds: dict[tuple[int, int, datetime, int], tuple[float, datetime]] = {}
    for row in rows:
        at = row["queued_at"]
        # The day may turn in some time zone each quarter of an hour.
        quarter = at.replace(minute=at.minute // 15 * 15, second=0, microsecond=0)
        key = (row["tenant_id"], row["user_id"], quarter, bisect(created.get(row["tenant_id"], ()), at))
        cost, first_at = refunds.get(key, (0.0, at))
        refunds[key] = (cost + row["cost"], min(first_at, at))
    if len(refunds) > 1:
        buckets.lock({key[0] for key in refunds}, {key[1] for key in refunds}, BucketUse.TASKS)
    for (tenant_id, user_id, *_), (cost, taken_at) in sorted(refunds.items()):
        buckets.refund(tenant_id, user_id, BucketUse.TASKS, cost, taken_at=taken_at)
