"""Open, cordon and drain nodes."""

from django.db import transaction

from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.protocol.states import NodeIntent
from nodes import not_found
from nodes.health import missing_users
from nodes.models import Node


def set_intent(name: str, intent: NodeIntent, note: str = "") -> str:
    """Open a node, cordon it (no new jobs start) or drain it (the same, until running jobs end). Return a message."""
    with transaction.atomic():
        node = Node.objects.select_for_update().filter(name=name, removed_at=None).first()
        if node is None:
            raise not_found.absent(name)
        previous = {"intent": str(node.intent), "note": node.intent_note}
        node.intent, node.intent_note = intent, "" if intent == NodeIntent.OPEN else note[:200]
        node.save(update_fields=["intent", "intent_note"])
        if intent == NodeIntent.OPEN:
            missing_users.clear(node.pk)
        log.record("node.intent", f"node {name}", previous, {"intent": str(intent), "note": node.intent_note})
        events.changed("nodes", [node.pk])
        wake.request_cycle()
    return {
        NodeIntent.OPEN: f"node {name} takes jobs again",
        NodeIntent.CORDONED: f"node {name} takes no new jobs",
        NodeIntent.DRAINING: f"node {name} takes no new jobs; what runs there may end",
    }[intent]
