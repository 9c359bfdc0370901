"""Turn events of jobs into notices: read the event log in order, from a cursor that moves in the same transaction.

The event is in the transaction of the change that it reports, so nothing that happened is missed, and the cursor and
the keys of notices make each event one notice, whatever is killed."""

from gpusched.lib.db.sql import execute, query
from jobs.events.log import MAX_LOOKED_AT

_START = """
    INSERT INTO notifications_cursor (id, event_id)
    SELECT 1, greatest(coalesce(max(id), 0) - %s, 0) FROM jobs_events ON CONFLICT (id) DO NOTHING
"""
_CURSOR = "SELECT event_id FROM notifications_cursor WHERE id = 1 FOR UPDATE SKIP LOCKED"
# Elements of arrays are reported with their array, by its own event. A job that was requeued has not ended. The state
# is that of the job unless it was retried meanwhile: then the event tells how it ended.
_NOTICES = """
    INSERT INTO notifications_notice (kind, key, tenant_id, user_id, subject_id, data, at)
    SELECT k.kind, 'event:' || e.id, j.tenant_id, j.user_id, j.id,
           jsonb_build_object('attempt', e.attempt, 'state', s.state, 'reason', e.data->>'reason',
                              'evidence', e.data, 'requeued', q.is_requeued), e.at
      FROM jobs_events e JOIN jobs_all j ON j.id = e.job_id AND j.array_id IS NULL
     CROSS JOIN LATERAL (
           SELECT EXISTS (SELECT 1 FROM jobs_events n WHERE n.job_id = e.job_id AND n.id > e.id
                             AND n.attempt = e.attempt AND n.kind = 'requeued') AS is_requeued,
                  EXISTS (SELECT 1 FROM jobs_events n WHERE n.job_id = e.job_id AND n.id > e.id
                             AND n.kind = 'retried') AS is_retried) q
     CROSS JOIN LATERAL (
           SELECT CASE WHEN j.attempt = e.attempt AND j.state = ANY(%(final)s) AND NOT q.is_retried THEN j.state
                       WHEN e.kind = 'cancelled' OR e.data->>'reason' = 'cancelled' THEN 'cancelled'
                       WHEN e.data->>'reason' = 'preempted' THEN 'preempted'
                       WHEN e.data->>'reason' = 'exited' AND e.data->>'exit_code' = '0' THEN 'completed'
                       WHEN e.data->>'reason' = 'array_ended' AND e.data->>'failed' = '0' AND e.data->>'preempted' = '0'
                       THEN CASE WHEN e.data->>'cancelled' = '0' THEN 'completed' ELSE 'cancelled' END
                       ELSE 'failed' END AS state) s
     CROSS JOIN LATERAL (
           SELECT CASE WHEN e.kind = 'ended' AND e.data->>'reason' = 'preempted' THEN 'job_preempted'
                       WHEN q.is_requeued THEN NULL
                       WHEN s.state = 'failed' THEN 'job_failed' ELSE 'job_ended' END AS kind) k
     WHERE e.id > %(since)s AND e.id <= %(until)s AND e.kind IN ('ended', 'cancelled') AND k.kind IS NOT NULL
       AND EXISTS (SELECT 1 FROM notifications_route r WHERE r.is_enabled AND k.kind = ANY(r.kinds)
                      AND e.at >= r.created_at AND (r.tenant_id = j.tenant_id OR r.user_id = j.user_id))
     ORDER BY e.id ON CONFLICT (key) DO NOTHING
"""
FINAL_STATES = ["completed", "failed", "cancelled", "preempted"]


def start_cursor() -> None:
    """Begin to follow, once: with the first route. Begin a little earlier: transactions that commit after this one may
    have written earlier ids. Routes get no events from before they were created."""
    execute(_START, [MAX_LOOKED_AT])


def follow(settled: int) -> bool:
    """Turn the next events, up to the id `settled`, into notices. Call it in a transaction. Return whether there are
    more already. Another process that does the same is left alone."""
    rows = query(_CURSOR)
    if not rows or rows[0]["event_id"] >= settled:
        return False
    since: int = rows[0]["event_id"]
    until = min(settled, since + MAX_LOOKED_AT)
    execute(_NOTICES, {"since": since, "until": until, "final": FINAL_STATES})
    execute("UPDATE notifications_cursor SET event_id = %s WHERE id = 1", [until])
    return until < settled
