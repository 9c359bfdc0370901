"""How two states of rows differ: what is new or quite different, what has changed of a row, and what is gone."""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def difference(before: Mapping[str, Row], after: Mapping[str, Row]) -> dict[str, Any]:
    """{"set": whole rows, "patch": changes of rows, "gone": keys}, each only where there is one; {}: they are equal."""
    whole: dict[str, Row] = {}
    patches: dict[str, Row] = {}
    for key, row in after.items():
        old = before.get(key)
        if old is row or old == row:
            continue
        changes = None if old is None else changed(old, row)
        if changes is None:
            whole[key] = row
        else:
            patches[key] = changes
    gone = [key for key in before if key not in after]
    return {name: found for name, found in (("set", whole), ("patch", patches), ("gone", gone)) if found}


def changed(old: Row, new: Row) -> dict[str, Any] | None:
    """The fields of `new` that differ, of objects again only those; lists are given whole. None where a field is gone:
    that cannot be said."""
    if any(name not in new for name in old):
        return None
    found: dict[str, Any] = {}
    for name, value in new.items():
        if name in old and (old[name] is value or old[name] == value):
            continue
        inner = old.get(name)
        if isinstance(inner, dict) and isinstance(value, dict):
            changes = changed(inner, value)
            if changes is None:
                return None
            found[name] = changes
        else:
            found[name] = value
    return found
