"""Join nodes: join tokens, credentials and their authentication."""

from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from gpusched.lib.api.problems import Problem, not_found
from gpusched.lib.audit import log
from gpusched.lib.auth import credentials
from gpusched.lib.bus import events
from gpusched.lib.db.sql import query, retry_atomic
from gpusched.lib.process.tls_proxy import AUTHORITY
from gpusched.lib.times import rfc3339
from gpusched.protocol.agent_messages import Join, Joined
from gpusched.protocol.states import NodeState
from nodes.inventory import copies, removal, rotation
from nodes.models import JoinToken, Node
from nodes.telemetry import readings


def create_join_token(hours: float, actor: str) -> tuple[JoinToken, str]:
    """Create a token with which nodes can join for `hours`. Return it and its text, which is not stored."""
    credential = credentials.generate("j")
    with transaction.atomic():
        token = JoinToken.objects.create(
            prefix=credential.prefix,
            secret_hash=credential.secret_hash,
            created_by=actor,
            expires_at=timezone.now() + timedelta(hours=hours),
        )
        log.record("join_token.create", f"join token {credential.prefix}", None, {"expires_in_hours": hours})
    return token, credential.text


def join_command(url: str, secret: str) -> str:
    """Return the command that joins a machine. It names the authority's file if Caddy signs its certificate itself."""
    trust = f"--ca-file {AUTHORITY} " if authority_file(url) else ""
    return f"gpusched-agent join {trust}{url} {secret}"


def authority_file(url: str) -> Path | None:
    """Return the certificate of the server's own authority, which `up` writes. None: clients at `url` need none."""
    path: Path = settings.DATA_DIR / AUTHORITY
    return path if url.startswith("https:") and path.exists() else None


def revoke_join_token(token_id: int) -> str:
    """Revoke a join token. Joined nodes stay. Revoking it again changes nothing. 404 for an unknown token."""
    with transaction.atomic():
        token = JoinToken.objects.select_for_update().filter(pk=token_id).first()
        if token is None:
            raise not_found(f"join token {token_id}")
        if token.revoked_at is None:
            token.revoked_at = timezone.now()
            token.save(update_fields=["revoked_at"])
            after = {"revoked_at": rfc3339(token.revoked_at)}
            log.record("join_token.revoke", f"join token {token.prefix}", {"revoked_at": None}, after)
    return f"join token {token.prefix}… lets no more nodes join"


def token_of(header: str) -> str:
    """Return the prefix of the join token in an Authorization header; empty if the token is not valid."""
    prefix, secret = credentials.bearer(header)
    token = JoinToken.objects.filter(prefix=prefix, revoked_at=None, expires_at__gt=timezone.now()).first()
    return prefix if token is not None and credentials.proves(secret, token.secret_hash) else ""


def join_node(message: Join, heartbeat_seconds: float, let_in_by: str = "") -> Joined:
    """Create the node, or give an existing one (same `node_key`) a new credential and keep its inventory.
    `let_in_by`: the prefix of its join token.

    409 if another machine has the name, unless that node has reported before, is lost, and nothing on it is in use. 409
    also for a copy of the node's disk while the node reports, and for a machine that is another node already."""

    def work() -> Joined:
        return _join(message, heartbeat_seconds, let_in_by)

    # A message of the node's agent may store its devices at the same moment, in another order.
    try:
        return retry_atomic(work)
    except IntegrityError:
        # Another machine took the name, or this one joined twice, at the same moment. The retry sees the committed row.
        return retry_atomic(work)


def _join(message: Join, heartbeat_seconds: float, let_in_by: str) -> Joined:
    node = Node.objects.select_for_update().filter(node_key=message.node_key, removed_at=None).first()
    removal.require_not_removed(message.node_key, let_in_by)  # now: a removal may have held the lock
    if node is None:
        node = _reuse_lost_node(message) or Node(name=message.name, joined_at=timezone.now())
        node.node_key = message.node_key
    elif copies.is_copy(node.pk, message.facts.boot_id):
        raise _name_taken(f"another machine reports as node '{node.name}'", copies.NEXT_STEP)
    credential = credentials.generate("n")
    node.credential_prefix, node.credential_hash = credential.prefix, credential.secret_hash
    node.credential_at, node.next_credential_hash, node.rotation_asked_at = timezone.now(), "", None
    node.let_in_by = let_in_by
    node.save()
    events.changed("credentials", [node.pk])
    readings.store_facts(node.pk, message.facts)
    for refusal in copies.twins([node.pk]).values():
        raise Problem(409, "in_use", refusal, next_step=copies.TWIN_STEP)
    return Joined(node_id=node.pk, credential=credential.text, heartbeat_seconds=heartbeat_seconds)


def _reuse_lost_node(message: Join) -> Node | None:
    old = Node.objects.select_for_update().filter(name=message.name, removed_at=None).first()
    if old is None:
        return None
    if old.last_seen_at is None:
        # Its agent may start long after the join and then needs its credential unchanged.
        raise _name_taken(
            f"another machine has joined and not yet reported as node '{message.name}'",
            "join with --name, or ask an admin to remove that node",
        )
    busy = query("SELECT 1 FROM nodes_assignment WHERE node_id = %s AND state <> 'ended' LIMIT 1", [old.pk])
    if old.state == NodeState.ONLINE or busy:
        raise _name_taken(
            f"another machine is node '{message.name}'", "join with --name, or wait until the old one is lost"
        )
    return old


def _name_taken(detail: str, next_step: str) -> Problem:
    return Problem(409, "name_taken", detail, next_step=next_step)


def authenticate(header: str) -> int | None:
    """Return the id of the node whose credential an Authorization header carries, or None. The first use of a new
    credential ends the old one.

    401 with the code `node_removed` if that node was removed."""
    prefix, secret = credentials.bearer(header)
    sql = "SELECT id, credential_hash, next_credential_hash, removed_at FROM nodes_node WHERE credential_prefix = %s"
    rows = query(sql, [prefix]) if prefix else []
    if not rows:
        return None
    [node] = rows
    is_present = credentials.proves(secret, node["credential_hash"])
    if not is_present and not credentials.proves(secret, node["next_credential_hash"]):
        return None
    if node["removed_at"] is not None:
        raise Problem(401, "node_removed", removal.REFUSAL, next_step="gpusched node join-token makes one")
    if not is_present and not rotation.complete(node["id"], node["next_credential_hash"]):
        return None
    return int(node["id"])
