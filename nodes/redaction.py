"""Redact out-of-service notes for viewers who cannot see every tenant."""

import re
from collections.abc import Collection
from typing import Any

from gpusched.protocol.states import NodeIntent

# Kinds of incidents of a node that an admin or the system closed.
CLOSED_KINDS = (NodeIntent.CORDONED, NodeIntent.DRAINING)
# Prefix of the note on a node that the system cordoned.
AUTO_CORDON_NOTE = "held after "
# Fields that may name processes, jobs, users or folders of any tenant, and their redacted values.
_TEXTS: dict[str, Any] = {"health_note": "", "occupant": "", "cause": None, "hints": [], "missing_users": {}}
_AUTO_CORDON = re.compile(rf"{AUTO_CORDON_NOTE}\d+ node faults")


def redact_notes(row: dict[str, Any], visible: Collection[int] | None) -> dict[str, Any]:
    """Redact the row of a node, device or incident for a viewer of the tenants `visible` (None: all). An admin's note
    on a cordon is public; the system's own note loses the jobs that it names."""
    if visible is None:
        return row
    # The cause of a closing is the note of the node.
    note = "cause" if row.get("kind") in CLOSED_KINDS else "intent_note"
    redacted = {name: value if name == note else _TEXTS.get(name, value) for name, value in row.items()}
    if match := _AUTO_CORDON.match(redacted.get(note) or ""):
        redacted[note] = match[0]
    return redacted
