"""Record which Unix users nodes lack, from ranks that could not start there. Such jobs go to other nodes for a while;
then the node is tried again."""

from collections.abc import Collection

from gpusched.lib.bus import events
from gpusched.lib.db.sql import execute, prepared, query

# A node is tried again after this time, or once an admin uncordons it: the user may exist by then.
RETRY_MINUTES = 10
_MISSING = """
    INSERT INTO nodes_missinguser (node_id, unix_user, detail, since)
    SELECT DISTINCT ON (s.node_id, t.unix_user) s.node_id, t.unix_user, left(s.detail, 300), clock_timestamp()
      FROM nodes_assignment s JOIN jobs_all j ON j.id = s.job_id JOIN tenants_all t ON t.id = j.tenant_id
     WHERE s.id = ANY(%s) ORDER BY s.node_id, t.unix_user, s.id
        ON CONFLICT (node_id, unix_user) DO UPDATE SET detail = excluded.detail, since = excluded.since
    RETURNING node_id
"""
# Only nodes that could take jobs.
_CURRENT = """
    SELECT m.node_id, t.id AS tenant_id, t.unix_user FROM nodes_missinguser m
      JOIN nodes_node n ON n.id = m.node_id JOIN tenants_all t ON t.unix_user = m.unix_user
     WHERE m.since > clock_timestamp() - make_interval(mins => %s) AND n.state = 'online' AND n.intent = 'open'
     ORDER BY m.node_id, t.id
"""


def record(assignment_ids: Collection[int]) -> None:
    """Record ranks that just ended as `no_account`. Inside the transaction that ends them."""
    if assignment_ids:
        rows = query(_MISSING, [sorted(assignment_ids)])
        events.changed("nodes", {row["node_id"] for row in rows})


def current() -> list[tuple[int, int, str]]:
    """Return (node, tenant, its Unix user) where jobs of the tenant cannot start at present. The user is empty for
    tenants without one, if the node has none for them."""
    return [(row["node_id"], row["tenant_id"], row["unix_user"]) for row in prepared(_CURRENT, [RETRY_MINUTES])]


def clear(node_id: int) -> None:
    """Allow a node to be tried again at once."""
    execute("DELETE FROM nodes_missinguser WHERE node_id = %s", [node_id])


def drop_old() -> int:
    """Delete entries older than a day. Return how many."""
    return execute("DELETE FROM nodes_missinguser WHERE since < now() - interval '1 day'")
