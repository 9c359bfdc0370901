"""The topics of the live feed: what a page can subscribe to, how often it is loaded, and which viewers share its rows.

Each page declares its topics as `TOPICS` in a module of its own. `MODULES` names these modules as text, as a URLconf
names views, so that pages may import the feed."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

from frontend.viewer import Viewer
from gpusched.lib.db.sql import Row

MODULES = (
    "frontend.pages.overview.rows",
    "frontend.pages.fleet.rows",
    "frontend.pages.fleet.readings",
    "frontend.pages.node.rows",
    "frontend.pages.queue.rows",
    "frontend.pages.jobs.rows",
    "frontend.pages.job.rows",
    "frontend.pages.my_work.rows",
    "frontend.pages.tenants.rows",
    "frontend.pages.notices.activity",
    "frontend.pages.notices.rows",
    "frontend.pages.health.rows",
    "frontend.pages.endpoints.rows",
    "frontend.pages.calendar.rows",
)

# Of a name: enough for a filter of 200 characters, which a URL writes with nine each. Pages send names, and the cache
# holds the latest ones.
MAX_NAME = 2000

Rows = dict[str, Row]
# A topic and its viewer; equal for all viewers of the same rows.
View = tuple[str, Viewer]
# Arguments: (key, viewer) of each view of one kind, and the loaded topics in `needs`, by kind.
Load = Callable[[Sequence[tuple[Any, Viewer]], Mapping[str, Any]], Any]
# Arguments: the loaded data, the key and the viewer. None: it does not exist, or the viewer cannot see it.
Restrict = Callable[[Any, Any, Viewer], Rows | None]
# Arguments: the previous data, and the nodes (None: any) and jobs that have changed since.
Reload = Callable[[Any, set[int] | None, set[int]], Any]


class Audience(Enum):
    """The viewers that share the rows of a topic: all, those who can see the same tenants, or one user."""

    ALL = "all"
    TENANTS = "tenants"
    PERSON = "person"


@dataclass(frozen=True)
class Topic:
    """A kind of topic.

    `key_of`: the key in a name, such as 17 in `job:17`; None for a name of another kind. Without it the name is the
    kind. `needs`: kinds that are loaded first. `group`: kinds that are loaded together. `invalidated_by`: changes after
    which the rows may differ. `period_seconds`: the longest time without a load, for rows that change without an event,
    as readings and waits do; 0: as for all others. `pause_seconds`: the shortest time between two loads."""

    kind: str
    load: Load
    restrict: Restrict
    key_of: Callable[[str], Any] | None = None
    needs: tuple[str, ...] = ()
    audience: Audience = Audience.TENANTS
    reload: Reload | None = None
    group: str = ""
    invalidated_by: frozenset[str] = frozenset()
    period_seconds: float = 0.0
    pause_seconds: float = 0.0

    def key(self, name: str) -> Any:
        if self.key_of is not None:
            return self.key_of(name)
        return name if name == self.kind else None


def key_by(pattern: re.Pattern[str], convert: Callable[[str], Any] = str) -> Callable[[str], Any]:
    """Return a `key_of` for names that match the pattern: its group, converted."""

    def key_of(name: str) -> Any:
        match = pattern.fullmatch(name)
        return convert(match[1]) if match else None

    return key_of


@cache
def topics() -> dict[str, Topic]:
    """Every kind of topic, by kind."""
    declared = [topic for module in MODULES for topic in import_module(module).TOPICS]
    return {topic.kind: topic for topic in declared}


def parse(name: str) -> tuple[Topic, Any] | None:
    """Return the kind of a topic and its key, or None if there is no such topic."""
    return _parse(name) if len(name) <= MAX_NAME else None


@lru_cache(4096)
def _parse(name: str) -> tuple[Topic, Any] | None:
    for topic in topics().values():
        if (key := topic.key(name)) is not None:
            return topic, key
    return None


def kind_of(name: str) -> str | None:
    """Return the kind of a topic, or None if there is no such topic."""
    parsed = parse(name)
    return parsed[0].kind if parsed else None


@lru_cache(1 << 14)
def view(name: str, viewer: Viewer) -> View:
    """Return the topic with as much of the viewer as its rows depend on."""
    parsed = parse(name)
    audience = parsed[0].audience if parsed else Audience.TENANTS
    if audience is Audience.PERSON:
        return name, viewer
    return name, Viewer() if audience is Audience.ALL else Viewer(viewer.visible)
