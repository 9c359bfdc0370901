"""Names of topics: what a page may ask for, of which kind that is, and whether two people see the same there."""

import re
from functools import lru_cache

from frontend import queuerows
from frontend.access import Viewer

LISTS = frozenset({"overview", "nodes", "jobs", "tenants"})
KINDS = LISTS | {"queue", "job"}
# What these say depends on the person, not only on the tenants whose jobs they see.
PERSONAL: frozenset[str] = frozenset()

# A topic as somebody sees it; equal for all who see the same.
View = tuple[str, Viewer]

_JOB = re.compile(r"job:([1-9][0-9]{0,17})", re.ASCII)


@lru_cache(4096)
def kind_of(topic: str) -> str | None:
    """None: there is no such topic."""
    if topic in LISTS:
        return topic
    if job_of(topic) is not None:
        return "job"
    return "queue" if queuerows.window_of(topic) else None


def job_of(topic: str) -> int | None:
    """The job's id in `job:<id>`."""
    found = _JOB.fullmatch(topic)
    return int(found[1]) if found else None


def view(topic: str, viewer: Viewer) -> View:
    """`viewer` with the person, of which only personal topics keep it."""
    return topic, viewer if kind_of(topic) in PERSONAL else Viewer(viewer.visible)
