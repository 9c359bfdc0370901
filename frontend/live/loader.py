"""Looks at the database for all pages: what is there now, and how it differs from the last look, as messages."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import msgspec

from frontend.live import feed
from frontend.live.topics import Rows, View, topics

Row = Mapping[str, Any]
# A change that no event named, or whose event got lost, is loaded after this time.
FULL_LOAD_SECONDS = 5.0
MAX_NAMED = 1000


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


@dataclass(frozen=True)
class Update:
    """`rows` None: there is no such job for these viewers. Messages are ready but for topic and number."""

    rows: Rows | None
    snapshot: str | None
    delta: str | None


@dataclass
class Invalidations:
    """Of which nodes (None: any) and of which jobs the bell has rung since the last look."""

    nodes: set[int] | None = field(default_factory=set)
    jobs: set[int] = field(default_factory=set)

    def hear(self, bell: str, ids: Collection[int]) -> None:
        if bell == "jobs" and ids:
            self.add(Invalidations(set(), set(ids)))
        elif bell in ("nodes", "assignments") and ids:
            self.add(Invalidations(set(ids)))
        elif bell in ("jobs", "nodes", "assignments", "tenants"):  # a tenant's name stands at what it holds
            self.add(Invalidations(None))

    def add(self, other: "Invalidations") -> None:
        """Drop the ids once there are many, as the next load may be days away."""
        if self.nodes is None or other.nodes is None or len(self.jobs | other.jobs) > MAX_NAMED:
            self.nodes, self.jobs = None, set()
        else:
            self.nodes |= other.nodes
            self.jobs |= other.jobs


class FeedLoader:
    """Remembers what can be loaded in parts, from one load to the next. Used by one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._whole_at = float("-inf")
        self._rung = Invalidations()

    def look(
        self, views: Collection[View], before: Mapping[View, Rows], wanted: Collection[View], rung: Invalidations
    ) -> dict[View, Update]:
        """Load these views. `before`: their rows of the last load; `wanted`: views that need a snapshot."""
        # A load of other lists, or one that fails, must not lose what has changed.
        self._rung.add(rung)
        loaded = feed.load(views, self._reloaded(feed.kinds_for(views)))
        news = {}
        for view in views:
            rows = feed.restrict(loaded, *view)
            snapshot = _json('"snapshot":', rows) if rows is not None and view in wanted else None
            delta = _delta(before[view], rows) if rows is not None and view in before else None
            news[view] = Update(rows, snapshot, delta)
        return news

    def _reloaded(self, kinds: Collection[str]) -> dict[str, Any]:
        """Load the parts that have changed, of the kinds that can be loaded so."""
        in_parts = [topic for kind in kinds if (topic := topics()[kind]).reload is not None]
        if not in_parts:
            return {}
        now = monotonic()
        is_old = now - self._whole_at >= FULL_LOAD_SECONDS
        nodes = None if is_old else self._rung.nodes
        for topic in in_parts:
            if topic.kind in self._known and topic.reload is not None:
                self._known[topic.kind] = topic.reload(self._known[topic.kind], nodes, self._rung.jobs)
            else:
                self._known[topic.kind] = topic.load((), {})
        if is_old or self._rung.nodes is None:
            self._whole_at = now
        self._rung = Invalidations()
        return {topic.kind: self._known[topic.kind] for topic in in_parts}


def _delta(before: Rows, after: Rows) -> str | None:
    """None when nothing has changed."""
    found = difference(before, after)
    if not found:
        return None
    return msgspec.json.encode(found).decode()[1:]


def _json(name: str, value: object) -> str:
    return f"{name}{msgspec.json.encode(value).decode()}}}"
