"""In which group of the list of nodes each one stands: by what is to be done about it; and in which order."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
# As the address says it, beside the number of its nodes, and over them.
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
    """How many nodes each group has."""
    counter = Counter(group_of(node) for node in nodes)
    return {key: counter[key] for key in KEYS}


def grouped(nodes: Iterable[Row]) -> list[dict[str, Any]]:
    """`key`, `heading` and the `nodes` of each group that has some; by name, numbers in names as such."""
    members: dict[str, list[Row]] = {key: [] for key in KEYS}
    for node in sorted(nodes, key=_by_name):
        members[group_of(node)].append(node)
    return [{"key": key, "heading": heading, "nodes": members[key]} for key, _, heading in GROUPS if members[key]]


def _by_name(node: Row) -> list[tuple[int, str]]:
    """`n2` before `n10`, as the page's script has them."""
    return [(int(part) if part.isdigit() else -1, part) for part in _NUMBER.split(node["name"].lower())]
