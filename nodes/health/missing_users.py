"""Which Unix users nodes do not have, as ranks that could not start there told: such jobs go elsewhere for a while, and
are then tried again."""

from collections.abc import Collection

from gpusched.lib.bus import events
from gpusched.lib.db.sql import execute, query

# After this long a node is tried again: somebody may have created the user. At once when an admin uncordons it.
FRESH_MINUTES = 10
_MISSING = """
    INSERT INTO nodes_missinguser (node_id, unix_user, detail, since)
    SELECT DISTINCT ON (s.node_id, t.unix_user) s.node_id, t.unix_user, left(s.detail, 300), clock_timestamp()
      FROM nodes_assignment s JOIN jobs_all j ON j.id = s.job_id JOIN tenants_all t ON t.id = j.tenant_id
     WHERE s.id = ANY(%s) ORDER BY s.node_id, t.unix_user, s.id
        ON CONFLICT (node_id, unix_user) DO UPDATE SET detail = excluded.detail, since = excluded.since
    RETURNING node_id
"""
# Those of the nodes that could take jobs; the others are out of the question anyway.
_FRESH = """
    SELECT m.node_id, t.id AS tenant_id, t.unix_user FROM nodes_missinguser m
      JOIN nodes_node n ON n.id = m.node_id JOIN tenants_all t ON t.unix_user = m.unix_user
     WHERE m.since > clock_timestamp() - make_interval(mins => %s) AND n.state = 'online' AND n.intent = 'open'
     ORDER BY m.node_id, t.id
"""


def record(assignment_ids: Collection[int]) -> None:
    """Takes in ranks that just ended as `no_account`; inside the transaction that ends them."""
    if assignment_ids:
        told = query(_MISSING, [sorted(assignment_ids)])
        events.changed("nodes", {row["node_id"] for row in told})


def current() -> list[tuple[int, int, str]]:
    """(node, tenant, its Unix user) where a job of the tenant need not be tried at present. The user is empty for
    tenants that name none, where the node has none for such."""
    return [(row["node_id"], row["tenant_id"], row["unix_user"]) for row in query(_FRESH, [FRESH_MINUTES])]


def forget(node_id: int) -> None:
    """Tries a node again at once."""
    execute("DELETE FROM nodes_missinguser WHERE node_id = %s", [node_id])


def drop_old() -> int:
    """Deletes what was told a day ago and not since; gives how many."""
    return execute("DELETE FROM nodes_missinguser WHERE since < now() - interval '1 day'")
