"""What the live feed says: the rows of each topic, loaded once for everybody and restricted to what each may see."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frontend.live.topics import (
    PERSONAL,
    View,
    job_of,
    kind_of,
    node_of,
    tenant_of,
    view,
)
from frontend.pages.fleet import readings
from frontend.pages.fleet import rows as fleet
from frontend.pages.health import rows as healthrows
from frontend.pages.job import rows as jobrows
from frontend.pages.jobs import rows as worklists  # fmt: skip
from frontend.pages.my_work import rows as minerows
from frontend.pages.node import rows as noderows
from frontend.pages.notices import activity
from frontend.pages.notices import rows as noticerows
from frontend.pages.overview import rows as overview
from frontend.pages.queue import rows as queuerows
from frontend.pages.tenants import rows as tenantrows
from frontend.viewer import Viewer

Row = dict[str, Any]
Rows = dict[str, Row]


@dataclass
class Loaded:
    """What the database said of some topics, not yet restricted to anybody."""

    lists: dict[str, Any] = field(default_factory=dict)
    jobs: dict[int, Row] = field(default_factory=dict)


def load(views: Collection[View], known: fleet.Fleet | None = None) -> Loaded:
    """What these views show at this moment. `known`: the fleet, if it has been loaded."""
    loaded = Loaded()
    if known is not None:
        loaded.lists["nodes"] = known
    kinds = {kind_of(topic) for topic, _ in views}
    _load_cluster(loaded, kinds, views)
    _load_people(loaded, kinds, views)
    if windows := [(found, viewer.visible) for topic, viewer in views if (found := queuerows.window_of(topic))]:
        loaded.lists["queue"] = queuerows.load(windows)
    if ids := {job_id for topic, _ in views if (job_id := job_of(topic)) is not None}:
        loaded.jobs = jobrows.load(ids)
    return loaded


def _load_cluster(loaded: Loaded, kinds: Collection[str | None], views: Collection[View]) -> None:
    lists = loaded.lists
    if ("nodes" in kinds or "overview" in kinds) and "nodes" not in lists:
        lists["nodes"] = fleet.load()
    if "readings" in kinds:
        lists["readings"] = readings.load()
    if "tenants" in kinds or "tenant" in kinds or "overview" in kinds:
        lists["tenants"] = tenantrows.load()
    if "overview" in kinds:
        lists["overview"] = overview.load(lists["nodes"].nodes, lists["tenants"])
    if names := {name for topic, _ in views if (name := node_of(topic)) is not None}:
        lists["node"] = noderows.load(names)
    if names := {name for topic, _ in views if (name := tenant_of(topic)) is not None}:
        lists["tenant"] = tenantrows.load_whole(names, lists["tenants"])


def _load_people(loaded: Loaded, kinds: Collection[str | None], views: Collection[View]) -> None:
    lists = loaded.lists
    people = {kind: {v.user_id for topic, v in views if topic == kind and v.user_id is not None} for kind in PERSONAL}
    if "jobs" in kinds:
        lists["jobs"] = worklists.load({tenant_id for _, viewer in views for tenant_id in viewer.visible or ()})
    known = activity.load() if "health" in kinds or "notices" in kinds else []
    if "health" in kinds:
        lists["health"] = healthrows.load(known)
    if "notices" in kinds:
        lists["notices"] = noticerows.load(people["notices"], known)
    if "mine" in kinds:
        lists["mine"] = minerows.load(people["mine"])


_RESTRICT: Mapping[str, Any] = {
    "overview": overview.restrict,
    "nodes": fleet.restrict,
    "readings": readings.restrict,
    "jobs": worklists.restrict,
    "tenants": tenantrows.restrict,
    "health": healthrows.restrict,
}
_RESTRICT_PERSONAL: Mapping[str, Any] = {"mine": minerows.restrict, "notices": noticerows.restrict}


def restrict(loaded: Loaded, topic: str, viewer: Viewer) -> Rows | None:
    """A topic's rows for who sees it; None for what is not there for them."""
    if (job_id := job_of(topic)) is not None:
        return jobrows.restrict(loaded.jobs.get(job_id), viewer.visible)
    if (name := node_of(topic)) is not None:
        return noderows.restrict(loaded.lists["node"], name, viewer.visible)
    if (name := tenant_of(topic)) is not None:
        return tenantrows.restrict_whole(loaded.lists["tenant"], name, viewer.visible)
    if window := queuerows.window_of(topic):
        return queuerows.restrict(loaded.lists["queue"], window, viewer.visible)
    personal = _RESTRICT_PERSONAL.get(topic)
    rows: Rows = (
        personal(loaded.lists[topic], viewer) if personal else _RESTRICT[topic](loaded.lists[topic], viewer.visible)
    )
    return rows


def rows(topic: str, visible: Sequence[int] | None, user_id: int | None = None) -> Rows:
    """A fresh load of one topic; no rows for what is not there for the viewer. KeyError: unknown topic."""
    if kind_of(topic) is None:
        raise KeyError(topic)
    return load_for([topic], visible, user_id)[topic] or {}


def load_for(
    topics: Collection[str], visible: Sequence[int] | None, user_id: int | None = None
) -> dict[str, Rows | None]:
    """The same of several topics, loaded together."""
    viewer = Viewer(None if visible is None else tuple(visible), user_id)
    views = [view(topic, viewer) for topic in topics]
    loaded = load(views)
    return {topic: restrict(loaded, topic, seen) for topic, seen in views}
