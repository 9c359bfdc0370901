"""Groups of the list of nodes, by what an admin must do, and their order."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
# Key in the URL, label beside the count, heading.
GROUPS = (
    ("attention", "Needs attention", "Needs attention"),
    ("closed", "Closed", "Closed by an admin, or by the system after faults"),
    ("open", "Open", "Open"),
)
KEYS = tuple(key for key, _, _ in GROUPS)
_NUMBER = re.compile(r"(\d+)")


def group_of(node: Row) -> str:
    if node["state"] != "online" or any(device["health"] != "ok" for device in node["devices"]):
        return "attention"
    return "open" if node["intent"] == "open" else "closed"


def counts(nodes: Iterable[Row]) -> dict[str, int]:
    """Return the number of nodes in each group."""
    counter = Counter(group_of(node) for node in nodes)
    return {key: counter[key] for key in KEYS}


def grouped(nodes: Iterable[Row]) -> list[dict[str, Any]]:
    """Return `key`, `heading` and `nodes` of each non-empty group, in natural order of names."""
    members: dict[str, list[Row]] = {key: [] for key in KEYS}
    for node in sorted(nodes, key=_by_name):
        members[group_of(node)].append(node)
    return [{"key": key, "heading": heading, "nodes": members[key]} for key, _, heading in GROUPS if members[key]]


def _by_name(node: Row) -> list[tuple[int, str]]:
    """Sort `n2` before `n10`, as the page's script does."""
    return [(int(part) if part.isdigit() else -1, part) for part in _NUMBER.split(node["name"].lower())]
