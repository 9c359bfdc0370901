"""Groups of the list of nodes, by what an admin must do, and their order."""

from collections.abc import Mapping
from typing import Any

# Key in the URL, label in the choice of a group, heading.
GROUPS = (
    ("attention", "Needs attention", "Needs attention"),
    ("closed", "Closed", "Closed by an admin, or by the system after faults"),
    ("open", "Open", "Open"),
)
KEYS = tuple(key for key, _, _ in GROUPS)


def group_of(node: Mapping[str, Any]) -> str:
    if node["state"] != "online" or any(device["health"] != "ok" for device in node["devices"]):
        return "attention"
    return "open" if node["intent"] == "open" else "closed"
