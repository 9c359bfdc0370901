"""Rotate the credentials of nodes. An admin asks; the agent makes a new secret, stores it, and offers its hash; the old
secret stays valid until the new one is used once. The secret itself is never sent before that use."""

from collections.abc import Collection, Iterable

from django.db import transaction
from django.utils import timezone

from gpusched.lib.audit import log
from gpusched.lib.auth import credentials
from gpusched.lib.bus import events
from gpusched.lib.db.sql import columns, execute, query
from gpusched.lib.times import rfc3339
from nodes import not_found
from nodes.models import Node

_HEX = frozenset("0123456789abcdef")


def ask(name: str) -> str:
    """Ask the agent of a node for a new credential. Asking again while it has not been used changes nothing. Return a
    message. 404 for an unknown name."""
    with transaction.atomic():
        node = Node.objects.select_for_update().filter(name=name, removed_at=None).first()
        if node is None:
            raise not_found.absent(name)
        if node.rotation_asked_at is None:
            node.rotation_asked_at = timezone.now()
            node.save(update_fields=["rotation_asked_at"])
            after = {"rotation_asked_at": rfc3339(node.rotation_asked_at)}
            log.record("node.rotate_credential", f"node {name}", {"rotation_asked_at": None}, after)
            events.changed("nodes", [node.pk])
    return (
        f"node {name} gets a new credential when its agent reports next; the old one is valid until the new one is used"
    )


def store_offers(offers: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """Store what agents offer, as (node, hash of a new secret), for nodes whose rotation was asked for. Return those
    that are stored. Inside a transaction."""
    wanted = [(node_id, text) for node_id, text in offers if len(text) == 64 and _HEX.issuperset(text)]
    if not wanted:
        return set()
    # The latest of a node counts: DISTINCT ON keeps the statement from updating a row twice.
    rows = query(
        """UPDATE nodes_node n SET next_credential_hash = t.hash
             FROM (SELECT DISTINCT ON (id) id, hash FROM unnest(%s::bigint[], %s::text[]) WITH ORDINALITY
                     AS o (id, hash, number) ORDER BY id, number DESC) t
            WHERE n.id = t.id AND n.rotation_asked_at IS NOT NULL AND n.removed_at IS NULL
              AND n.credential_hash <> t.hash
        RETURNING n.id, n.next_credential_hash AS hash""",
        columns(wanted, 2),
    )
    return {(row["id"], row["hash"]) for row in rows}


def complete(node_id: int, secret_hash: str) -> bool:
    """Make an offered secret the only one of its node: it was used. Return False if another one has replaced it."""
    with transaction.atomic():
        is_first = execute(
            "UPDATE nodes_node SET credential_hash = next_credential_hash, next_credential_hash = '',"
            " credential_at = clock_timestamp(), rotation_asked_at = NULL"
            " WHERE id = %s AND next_credential_hash = %s AND removed_at IS NULL",
            [node_id, secret_hash],
        )
        if is_first:
            events.changed("credentials", [node_id])
            events.changed("nodes", [node_id])
            return True
    # Another connection of the agent used it at the same moment.
    return bool(query("SELECT 1 FROM nodes_node WHERE id = %s AND credential_hash = %s", [node_id, secret_hash]))


def replaced(headers: Collection[str]) -> set[str]:
    """Return those of these Authorization headers whose secret is no longer valid."""
    secret_of = {header: credentials.bearer(header) for header in headers}
    rows = query(
        "SELECT credential_prefix, credential_hash FROM nodes_node WHERE credential_prefix = ANY(%s)",
        [list({prefix for prefix, _ in secret_of.values()})],
    )
    hash_of = {row["credential_prefix"]: row["credential_hash"] for row in rows}
    return {
        header
        for header, (prefix, secret) in secret_of.items()
        if prefix not in hash_of or not credentials.proves(secret, hash_of[prefix])
    }
