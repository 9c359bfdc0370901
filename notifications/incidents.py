"""Write notices of incidents for admins."""

from gpusched.lib.db.sql import execute
from nodes.redaction import AUTO_CORDON_NOTE, CLOSED_KINDS

# Triggers write incidents, so their keys replace a cursor. Retention of notices must be longer than this. One that no
# route asks for has a notice, too, which goes to none: a route that asks for incidents later gets no old ones.
_DAYS = 7
# What an admin closed is no incident; what the system closed is.
_INCIDENTS = """
    INSERT INTO notifications_notice (kind, key, subject_id, data, at, expanded_at)
    SELECT 'incident', 'incident:' || i.id, i.id,
           jsonb_build_object('title', 'Incident: ' || p.place || ' ' || i.kind, 'node', n.name, 'gpu', d.index,
                              'kind', i.kind, 'cause', i.cause,
                              'text', concat_ws(': ', p.place || ' is ' || i.kind, nullif(i.cause, ''))),
           i.since, CASE WHEN NOT w.is_wanted THEN now() END
      FROM nodes_incidents i JOIN nodes_all n ON n.id = i.node_id LEFT JOIN nodes_devices d ON d.id = i.device_id
     CROSS JOIN LATERAL (SELECT CASE WHEN d.id IS NULL THEN 'node ' || n.name
                                     ELSE 'GPU ' || d.index || ' of ' || n.name END AS place) p
     CROSS JOIN LATERAL (SELECT EXISTS (
           SELECT 1 FROM notifications_route r WHERE r.is_enabled AND 'incident' = ANY(r.kinds)
              AND r.created_at <= i.since) AS is_wanted) w
     WHERE EXISTS (SELECT 1 FROM notifications_route) AND i.since > now() - make_interval(days => %(days)s)
       AND (i.kind <> ALL(%(closed)s) OR starts_with(i.cause, %(auto)s))
    ON CONFLICT (key) DO NOTHING
"""


def note_incidents() -> int:
    """Write a notice for each new incident, on a server with routes. Return how many."""
    values = {"days": _DAYS, "closed": [str(kind) for kind in CLOSED_KINDS], "auto": AUTO_CORDON_NOTE}
    return execute(_INCIDENTS, values)
