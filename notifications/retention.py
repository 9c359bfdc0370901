"""Delete old deliveries and notices, in small steps."""

from gpusched.lib.db.sql import execute

_STEP = 5_000
_DELIVERIES = """
    DELETE FROM notifications_delivery WHERE id IN (
        SELECT id FROM notifications_delivery WHERE ended_at < now() - make_interval(secs => %s) LIMIT %s)
"""
# Incidents and budgets are recognised by their notices, so those stay for at least this time.
_LEAST_SECONDS = 32 * 86_400.0
_NOTICES = """
    DELETE FROM notifications_notice WHERE id IN (
        SELECT n.id FROM notifications_notice n
         WHERE n.expanded_at < now() - make_interval(secs => %s)
           AND NOT EXISTS (SELECT 1 FROM notifications_delivery d WHERE d.notice_id = n.id) LIMIT %s)
"""


def drop_old(days: float) -> int:
    """Delete deliveries that ended `days` ago, and notices without any left. 0 days: nothing. Return how many."""
    if not days:
        return 0
    seconds = days * 86_400
    return execute(_DELIVERIES, [seconds, _STEP]) + execute(_NOTICES, [max(seconds, _LEAST_SECONDS), _STEP])
