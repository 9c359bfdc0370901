"""What the texts that say why a node or device is out of service tell those who may not see every tenant: the kind."""

import re
from collections.abc import Collection
from typing import Any

from gpusched.protocol.states import NodeIntent

# Kinds of incidents of a node that somebody, or the system, closed.
CLOSINGS = (NodeIntent.CORDONED, NodeIntent.DRAINING)
# How the note of a node begins that the system holds.
AUTO_CORDON_NOTE = "held after "
# What of a row names processes, jobs, people or folders of whichever tenant, and what stands there for the others.
_TEXTS: dict[str, Any] = {"health_note": "", "occupant": "", "cause": None, "hints": None, "missing_users": {}}
_HELD = re.compile(rf"{AUTO_CORDON_NOTE}\d+ node faults")


def redact_notes(row: dict[str, Any], visible: Collection[int] | None) -> dict[str, Any]:
    """The row of a node, device or incident as somebody may read it; `visible`: the tenants that they see, None: all.
    What an admin noted with a cordon is for all; of the system's own note the jobs that it names are left out."""
    if visible is None:
        return row
    # Of a node that was closed the cause is that note.
    note = "cause" if row.get("kind") in CLOSINGS else "intent_note"
    shown = {name: value if name == note else _TEXTS.get(name, value) for name, value in row.items()}
    if found := _HELD.match(shown.get(note) or ""):
        shown[note] = found[0]
    return shown
