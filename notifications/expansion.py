"""Expand notices into deliveries, one for each route that gets them, by the access that its owner has at present."""

from gpusched.lib.db.sql import query

MAX_NOTICES = 500
# The log of a failed job arrives shortly after its end.
LOG_SECONDS = 3.0
# A route gets nothing from before it was created, if the sender was down then. A route of a tenant gets the notices
# of the tenant. A route of a user gets those of the user's own jobs and reservations, and those of the whole tenant,
# while the user is a member; admins also get those without a tenant.
# Of a user's route r and a notice: whether the user gets it.
GETS_NOTICE = """
    EXISTS (
        SELECT 1 FROM tenants_people p WHERE p.id = r.user_id AND p.is_active AND (
           {notice}.tenant_id IS NULL AND {notice}.user_id IS NULL AND p.is_superuser
           OR {notice}.user_id = r.user_id AND ({notice}.tenant_id IS NULL OR p.is_superuser)
           OR ({notice}.user_id IS NULL OR {notice}.user_id = r.user_id) AND EXISTS (
              SELECT 1 FROM tenants_members m WHERE m.user_id = r.user_id AND m.tenant_id = {notice}.tenant_id)))
"""
_GETS_IT = GETS_NOTICE.format(notice="b")
_EXPAND = f"""
    WITH batch AS (
        SELECT * FROM notifications_notice WHERE expanded_at IS NULL ORDER BY id LIMIT %(limit)s
           FOR UPDATE SKIP LOCKED),
    made AS (
        INSERT INTO notifications_delivery (notice_id, route_id, state, attempts, next_at, error, is_urgent)
        SELECT b.id, r.id, 'pending', 0,
               CASE WHEN b.kind = 'job_failed' THEN now() + make_interval(secs => %(log_seconds)s) ELSE now() END, '',
               false
          FROM batch b JOIN notifications_route r ON r.is_enabled AND r.created_at <= b.at AND (
               b.kind = ANY(r.kinds) AND (r.tenant_id = b.tenant_id OR {_GETS_IT}))
         ORDER BY b.id, r.id ON CONFLICT (notice_id, route_id) DO NOTHING)
    UPDATE notifications_notice n SET expanded_at = now() FROM batch b WHERE n.id = b.id RETURNING n.id
"""


def expand() -> bool:
    """Expand the next notices. Return whether there may be more."""
    rows = query(_EXPAND, {"limit": MAX_NOTICES, "log_seconds": LOG_SECONDS})
    return len(rows) == MAX_NOTICES
