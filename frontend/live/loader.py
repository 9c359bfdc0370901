"""Loads topics for all pages and encodes snapshots and deltas."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import msgspec

from frontend.live import feed
from frontend.live.topics import Rows, View, topics

Row = Mapping[str, Any]
# A change without an event, or whose event is lost, is loaded after this time.
FULL_LOAD_SECONDS = 5.0
MAX_NAMED = 1000


def difference(previous: Mapping[str, Row], current: Mapping[str, Row]) -> dict[str, Any]:
    """Return {"set": full rows, "patch": changed fields, "gone": keys} without empty parts; {} if equal."""
    full_rows: dict[str, Row] = {}
    patches: dict[str, Row] = {}
    for key, row in current.items():
        old = previous.get(key)
        if old is row or old == row:
            continue
        changes = None if old is None else changed(old, row)
        if changes is None:
            full_rows[key] = row
        else:
            patches[key] = changes
    removed = [key for key in previous if key not in current]
    return {name: part for name, part in (("set", full_rows), ("patch", patches), ("gone", removed)) if part}


def changed(old: Row, new: Row) -> dict[str, Any] | None:
    """Return the fields of `new` that differ, recursively for objects; lists are replaced. None if a field is gone,
    which a patch cannot express."""
    if any(name not in new for name in old):
        return None
    result: dict[str, Any] = {}
    for name, value in new.items():
        if name in old and (old[name] is value or old[name] == value):
            continue
        inner = old.get(name)
        if isinstance(inner, dict) and isinstance(value, dict):
            changes = changed(inner, value)
            if changes is None:
                return None
            result[name] = changes
        else:
            result[name] = value
    return result


@dataclass(frozen=True)
class Update:
    """`rows` None: the topic does not exist for these viewers. Messages lack only their topic and number."""

    rows: Rows | None
    snapshot: str | None
    delta: str | None


@dataclass
class Invalidations:
    """Nodes (None: any) and jobs that have changed since the last load."""

    nodes: set[int] | None = field(default_factory=set)
    jobs: set[int] = field(default_factory=set)

    def record(self, kind: str, ids: Collection[int]) -> None:
        if kind == "jobs" and ids:
            self.add(Invalidations(set(), set(ids)))
        elif kind in ("nodes", "assignments") and ids:
            self.add(Invalidations(set(ids)))
        elif kind in ("jobs", "nodes", "assignments", "tenants"):  # rows contain tenant names
            self.add(Invalidations(None))

    def add(self, other: "Invalidations") -> None:
        """Merge another set. Drop the ids once there are many, as the next load can be days away."""
        if self.nodes is None or other.nodes is None or len(self.jobs | other.jobs) > MAX_NAMED:
            self.nodes, self.jobs = None, set()
        else:
            self.nodes |= other.nodes
            self.jobs |= other.jobs


class FeedLoader:
    """Loads views, and caches topics that can be reloaded in parts. Used by one thread at a time."""

    def __init__(self) -> None:
        self._cached: dict[str, Any] = {}
        self._full_load_at = float("-inf")
        self._invalidations = Invalidations()

    def load(
        self,
        views: Collection[View],
        previous: Mapping[View, Rows],
        needing_snapshot: Collection[View],
        changes: Invalidations,
    ) -> dict[View, Update]:
        """Load these views. `before`: their rows of the last load; `wanted`: views that need a snapshot."""
        # A load of other topics, or a failed one, must not lose changes.
        self._invalidations.add(changes)
        loaded = feed.load(views, self._reloaded(feed.kinds_for(views)))
        updates = {}
        for view in views:
            rows = feed.restrict(loaded, *view)
            snapshot = _json('"snapshot":', rows) if rows is not None and view in needing_snapshot else None
            delta = _delta(previous[view], rows) if rows is not None and view in previous else None
            updates[view] = Update(rows, snapshot, delta)
        return updates

    def _reloaded(self, kinds: Collection[str]) -> dict[str, Any]:
        """Load the parts that have changed, of the kinds that can be loaded so."""
        in_parts = [topic for kind in kinds if (topic := topics()[kind]).reload is not None]
        if not in_parts:
            return {}
        now = monotonic()
        is_old = now - self._full_load_at >= FULL_LOAD_SECONDS
        nodes = None if is_old else self._invalidations.nodes
        for topic in in_parts:
            if topic.kind in self._cached and topic.reload is not None:
                self._cached[topic.kind] = topic.reload(self._cached[topic.kind], nodes, self._invalidations.jobs)
            else:
                self._cached[topic.kind] = topic.load((), {})
        if is_old or self._invalidations.nodes is None:
            self._full_load_at = now
        self._invalidations = Invalidations()
        return {topic.kind: self._cached[topic.kind] for topic in in_parts}


def _delta(previous: Rows, current: Rows) -> str | None:
    """Return the encoded changes, or None if there are none."""
    changes = difference(previous, current)
    if not changes:
        return None
    return msgspec.json.encode(changes).decode()[1:]


def _json(name: str, value: object) -> str:
    return f"{name}{msgspec.json.encode(value).decode()}}}"
