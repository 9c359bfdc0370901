"""Remove a node: lists and counts leave it out, and its agent is refused. Its history stays."""

from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import execute, query
from gpusched.protocol.states import NodeIntent, NodeState
from nodes.health import missing_users
from nodes.inventory import retire
from nodes.models import Node
from nodes.not_found import absent

# The answer to an agent with the credential of a removed node.
REFUSAL = "this node was removed by an admin; join it again with a join token made after that"


def remove(name: str) -> str:
    """Remove a node that is lost or closed and holds nothing. Inside a transaction.

    Jobs, attempts, the ledger and incidents still name it. Its GPUs are retired, its credential no longer works, and
    its name is free. 404 for an unknown name; 409 while a job holds anything there or the node may still get jobs."""
    node = Node.objects.select_for_update().filter(name=name, removed_at=None).first()
    if node is None:
        raise absent(name)
    _require_empty(node)
    retire.retire_all(node.pk)
    missing_users.clear(node.pk)
    execute("UPDATE nodes_incident SET until = clock_timestamp() WHERE node_id = %s AND until IS NULL", [node.pk])
    node.removed_at = timezone.now()
    node.save(update_fields=["removed_at"])
    previous = {key: str(getattr(node, key)) for key in ("state", "intent", "hostname", "let_in_by")}
    log.record("node.remove", f"node {name}", previous, None)
    events.changed("nodes", [node.pk])
    wake.request_cycle()
    return f"node {name} is removed; its history stays, and the name can be joined again"


def _require_empty(node: Node) -> None:
    live = query("SELECT count(DISTINCT job_id) AS jobs FROM nodes_assignment WHERE node_id = %s AND state <> 'ended'",
                 [node.pk])[0]["jobs"]  # fmt: skip
    if live:
        jobs = "1 job" if live == 1 else f"{live} jobs"
        have = "has" if live == 1 else "have"
        step = "drain it and wait for their end, or cancel them"
        raise Problem(409, "in_use", f"{jobs} on node {node.name} {have} not ended", next_step=step)
    if node.state != NodeState.LOST and node.intent == NodeIntent.OPEN:
        raise Problem(
            409,
            "wrong_state",
            f"node {node.name} is {node.state} and may get jobs",
            next_step=f"drain it first: gpusched node drain {node.name}",
        )


def require_not_removed(node_key: str, join_token_prefix: str) -> None:
    """401 for a machine whose node was removed, unless the join token is newer: its agent would otherwise join again by
    itself with the token that it still has."""
    rows = query(
        "SELECT n.name FROM nodes_node n WHERE n.node_key = %s AND n.removed_at > coalesce("
        " (SELECT created_at FROM nodes_jointoken WHERE prefix = %s), 'infinity') ORDER BY n.removed_at DESC LIMIT 1",
        [node_key, join_token_prefix],
    )
    if rows:
        detail = f"node '{rows[0]['name']}' was removed by an admin"
        step = "to have it back, make a new join token (gpusched node join-token) and join with that"
        raise Problem(401, "node_removed", detail, next_step=step)
