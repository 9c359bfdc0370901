"""What the live feed says: the rows of each topic, loaded once for everybody and restricted to what each may see."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frontend import fleet, jobrows, overview, tenantrows, worklists

Row = dict[str, Any]
Rows = dict[str, Row]
LISTS = frozenset({"overview", "nodes", "queue", "jobs", "tenants"})
_JOB = re.compile(r"job:([1-9][0-9]{0,17})", re.ASCII)


@dataclass
class Loaded:
    """What the database said of some topics, not yet restricted to anybody."""

    lists: dict[str, Any] = field(default_factory=dict)
    jobs: dict[int, Row] = field(default_factory=dict)


def is_topic(topic: str) -> bool:
    return topic in LISTS or job_of(topic) is not None


def job_of(topic: str) -> int | None:
    """The job's id in `job:<id>`."""
    found = _JOB.fullmatch(topic)
    return int(found[1]) if found else None


def load(topics: Collection[str], tenants: Collection[int] = ()) -> Loaded:
    """The topics' rows at this moment. `tenants`: those whose members are among the viewers."""
    loaded = Loaded()
    lists = loaded.lists
    if "nodes" in topics or "overview" in topics:
        lists["nodes"] = fleet.load()
    if "tenants" in topics or "overview" in topics:
        lists["tenants"] = tenantrows.load()
    if "overview" in topics:
        lists["overview"] = overview.load(lists["nodes"].nodes, lists["tenants"])
    if "queue" in topics:
        lists["queue"] = worklists.load_queue(tenants)
    if "jobs" in topics:
        lists["jobs"] = worklists.load_jobs(tenants)
    if ids := [job_id for topic in topics if (job_id := job_of(topic)) is not None]:
        loaded.jobs = jobrows.load(ids)
    return loaded


_RESTRICT: Mapping[str, Any] = {
    "overview": overview.restrict,
    "nodes": fleet.restrict,
    "queue": worklists.restrict_queue,
    "jobs": worklists.restrict_jobs,
    "tenants": tenantrows.restrict,
}


def restrict(loaded: Loaded, topic: str, visible: Sequence[int] | None) -> Rows | None:
    """A topic's rows for who sees these tenants (None: all); None for a job that is not there for them."""
    job_id = job_of(topic)
    if job_id is not None:
        return jobrows.restrict(loaded.jobs.get(job_id), visible)
    rows: Rows = _RESTRICT[topic](loaded.lists[topic], visible)
    return rows


def rows(topic: str, visible: Sequence[int] | None) -> Rows:
    """A fresh load of one topic; no rows for a job that is not there for the viewer. KeyError: unknown topic."""
    if not is_topic(topic):
        raise KeyError(topic)
    return restrict(load([topic], visible or ()), topic, visible) or {}
