"""In which group of the list of nodes each one stands: by what is to be done about it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

# As frontend/src/views/nodes.ts has them.
GROUPS = (
    ("attention", "Needs attention"),
    ("closed", "Closed"),
    ("open", "Open"),
)


def group_of(node: Mapping[str, Any]) -> str:
    if node["state"] != "online" or any(device["health"] != "ok" for device in node["devices"]):
        return "attention"
    return "open" if node["intent"] == "open" else "closed"


def counts(nodes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many nodes each group has."""
    found = Counter(group_of(node) for node in nodes)
    return {name: found[name] for name, _ in GROUPS}
