"""What the live feed says: the rows of each topic, loaded once for everybody and restricted to what each may see."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frontend import fleet, jobrows, overview, queuerows, tenantrows, worklists
from frontend.access import Viewer
from frontend.topics import View, job_of, kind_of, view

Row = dict[str, Any]
Rows = dict[str, Row]


@dataclass
class Loaded:
    """What the database said of some topics, not yet restricted to anybody."""

    lists: dict[str, Any] = field(default_factory=dict)
    jobs: dict[int, Row] = field(default_factory=dict)


def load(views: Collection[View]) -> Loaded:
    """What these views show at this moment."""
    loaded = Loaded()
    lists = loaded.lists
    kinds = {kind_of(topic) for topic, _ in views}
    tenants = {tenant_id for _, viewer in views for tenant_id in viewer.visible or ()}
    if kinds & {"nodes", "overview"}:
        lists["nodes"] = fleet.load()
    if kinds & {"tenants", "overview"}:
        lists["tenants"] = tenantrows.load()
    if "overview" in kinds:
        lists["overview"] = overview.load(lists["nodes"].nodes, lists["tenants"])
    if "jobs" in kinds:
        lists["jobs"] = worklists.load(tenants)
    if windows := [(found, viewer.visible) for topic, viewer in views if (found := queuerows.window_of(topic))]:
        lists["queue"] = queuerows.load(windows)
    if ids := {job_id for topic, _ in views if (job_id := job_of(topic)) is not None}:
        loaded.jobs = jobrows.load(ids)
    return loaded


_RESTRICT: Mapping[str, Any] = {
    "overview": overview.restrict,
    "nodes": fleet.restrict,
    "jobs": worklists.restrict,
    "tenants": tenantrows.restrict,
}


def restrict(loaded: Loaded, topic: str, viewer: Viewer) -> Rows | None:
    """A topic's rows for who sees it; None for what is not there for them."""
    job_id = job_of(topic)
    if job_id is not None:
        return jobrows.restrict(loaded.jobs.get(job_id), viewer.visible)
    if window := queuerows.window_of(topic):
        return queuerows.restrict(loaded.lists["queue"], window, viewer.visible)
    rows: Rows = _RESTRICT[topic](loaded.lists[topic], viewer.visible)
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
