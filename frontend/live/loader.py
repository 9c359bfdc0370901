"""Looks at the database for all pages: what is there now, and how it differs from the last look, as messages."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from time import monotonic

import msgspec

from frontend import feed
from frontend.live.differences import difference
from frontend.live.topics import View, kind_of
from frontend.pages.fleet import rows as fleet

# What has changed in the fleet without a bell, or with one that was lost, is seen after so long.
WHOLE_FLEET_SECONDS = 5.0
MOST_NAMED = 1000


@dataclass(frozen=True)
class News:
    """`rows` None: there is no such job for these viewers. Messages are ready but for topic and number."""

    rows: feed.Rows | None
    snapshot: str | None
    delta: str | None


@dataclass
class Rung:
    """Of which nodes (None: any) and of which jobs the bell has rung since the last look."""

    nodes: set[int] | None = field(default_factory=set)
    jobs: set[int] = field(default_factory=set)

    def hear(self, bell: str, ids: Collection[int]) -> None:
        if bell == "jobs" and ids:
            self.add(Rung(set(), set(ids)))
        elif bell in ("nodes", "assignments") and ids:
            self.add(Rung(set(ids)))
        elif bell in ("jobs", "nodes", "assignments", "tenants"):  # a tenant's name stands at what it holds
            self.add(Rung(None))

    def add(self, other: "Rung") -> None:
        """Forgets which they were once they are many: nobody may look for days."""
        if self.nodes is None or other.nodes is None or len(self.jobs | other.jobs) > MOST_NAMED:
            self.nodes, self.jobs = None, set()
        else:
            self.nodes |= other.nodes
            self.jobs |= other.jobs


class Eyes:
    """Remembers the fleet from one look to the next. Used by one thread at a time."""

    def __init__(self) -> None:
        self._fleet: fleet.Fleet | None = None
        self._whole_at = float("-inf")
        self._rung = Rung()

    def look(
        self, views: Collection[View], before: Mapping[View, feed.Rows], wanted: Collection[View], rung: Rung
    ) -> dict[View, News]:
        """`before`: the rows of the last look; `wanted`: views of which somebody waits for a snapshot."""
        # A look at other lists, or one that fails, must not lose what the bell said of the fleet.
        self._rung.add(rung)
        kinds = {kind_of(topic) for topic, _ in views}
        loaded = feed.load(views, self._seen() if kinds & {"nodes", "overview"} else None)
        news = {}
        for view in views:
            rows = feed.restrict(loaded, *view)
            snapshot = _json('"snapshot":', rows) if rows is not None and view in wanted else None
            delta = _delta(before[view], rows) if rows is not None and view in before else None
            news[view] = News(rows, snapshot, delta)
        return news

    def _seen(self) -> fleet.Fleet:
        now = monotonic()
        is_old = now - self._whole_at >= WHOLE_FLEET_SECONDS
        if self._fleet is None:
            self._fleet = fleet.load()
        else:
            nodes = None if is_old else self._rung.nodes
            self._fleet = fleet.load_again(self._fleet, nodes, self._rung.jobs)
        if is_old or self._rung.nodes is None:
            self._whole_at = now
        self._rung = Rung()
        return self._fleet


def _delta(before: feed.Rows, after: feed.Rows) -> str | None:
    """None when nothing has changed."""
    found = difference(before, after)
    if not found:
        return None
    return msgspec.json.encode(found).decode()[1:]


def _json(name: str, value: object) -> str:
    return f"{name}{msgspec.json.encode(value).decode()}}}"
