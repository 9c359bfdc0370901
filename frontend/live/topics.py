"""Names of topics: what a page may ask for, of which kind that is, and whether two people see the same there."""

import re
from functools import lru_cache

from frontend.pages.queue import rows as queuerows
from frontend.viewer import Viewer

LISTS = frozenset({"overview", "nodes", "readings", "jobs", "tenants", "health", "mine", "notices"})
KINDS = LISTS | {"queue", "job", "node", "tenant"}
# What these say depends on the person, not only on the tenants whose jobs they see.
PERSONAL = frozenset({"mine", "notices"})
# All see the same.
COMMON = frozenset({"readings"})

# A topic as somebody sees it; equal for all who see the same.
View = tuple[str, Viewer]

_JOB = re.compile(r"job:([1-9][0-9]{0,17})", re.ASCII)
_NODE = re.compile(r"node:([^\x00]{1,253})")
_TENANT = re.compile(r"tenant:([a-z0-9-]{1,63})", re.ASCII)


@lru_cache(4096)
def kind_of(topic: str) -> str | None:
    """None: there is no such topic."""
    if topic in LISTS:
        return topic
    if job_of(topic) is not None:
        return "job"
    if node_of(topic) is not None:
        return "node"
    if tenant_of(topic) is not None:
        return "tenant"
    return "queue" if queuerows.window_of(topic) else None


def job_of(topic: str) -> int | None:
    """The job's id in `job:<id>`."""
    found = _JOB.fullmatch(topic)
    return int(found[1]) if found else None


def node_of(topic: str) -> str | None:
    """The name in `node:<name>`."""
    found = _NODE.fullmatch(topic)
    return found[1] if found else None


def tenant_of(topic: str) -> str | None:
    """The name in `tenant:<name>`."""
    found = _TENANT.fullmatch(topic)
    return found[1] if found else None


@lru_cache(1 << 14)
def view(topic: str, viewer: Viewer) -> View:
    """`viewer` with the person, of which only personal topics keep it."""
    kind = kind_of(topic)
    return topic, viewer if kind in PERSONAL else Viewer() if kind in COMMON else Viewer(viewer.visible)
