"""Write notices of jobs that are about to end by their time limit."""

from django.conf import settings

from gpusched.lib.db.sql import execute

# Short jobs are reported at the last fifth of their time. The key has the limit: an extended job is reported again.
_ABOUT_TO_END = """
    INSERT INTO notifications_notice (kind, key, tenant_id, user_id, subject_id, data)
    SELECT 'job_about_to_end', format('ends:%%s:%%s:%%s', j.id, j.attempt, j.max_runtime_seconds), j.tenant_id,
           j.user_id, j.id, jsonb_build_object('attempt', j.attempt, 'state', j.state, 'ends_at',
                                    to_char(e.ends_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
      FROM jobs_all j
     CROSS JOIN LATERAL (SELECT j.started_at + make_interval(secs => j.max_runtime_seconds) AS ends_at) e
     WHERE j.state = 'running' AND j.max_runtime_seconds IS NOT NULL AND j.array_id IS NULL AND j.array_count IS NULL
       AND e.ends_at - make_interval(secs => least(%(seconds)s, j.max_runtime_seconds / 5.0)) <= now()
       AND EXISTS (SELECT 1 FROM notifications_route r WHERE r.is_enabled AND 'job_about_to_end' = ANY(r.kinds)
                      AND (r.tenant_id = j.tenant_id OR r.user_id = j.user_id))
    ON CONFLICT (key) DO NOTHING
"""


def note_expiring() -> int:
    """Write a notice for each job that ends within GPUSCHED_NOTIFY_ABOUT_TO_END_MINUTES. Return how many."""
    return execute(_ABOUT_TO_END, {"seconds": settings.ENV.notify_about_to_end_minutes * 60})
