"""The rows of topic `health`: the control plane, the agents, what is not well, and what the system did by itself."""

from dataclasses import dataclass
from typing import Any

from frontend.live.topics import Topic
from frontend.pages.notices import activity as doings
from gpusched import __version__
from gpusched.lib.db.sql import query
from nodes import redaction
from nodes.health import incidents
from scheduling.status import cluster
from tenants.auth.page_access import Visible

Row = dict[str, Any]
MAX_INCIDENTS = 100
_VERSIONS = """
    SELECT agent_version AS version, count(*) AS nodes FROM nodes_all WHERE removed_at IS NULL GROUP BY 1 ORDER BY 1
"""


@dataclass(frozen=True)
class Health:
    """Rows that all see, incidents with their causes, and doings with their tenants."""

    rows: dict[str, Row]
    incidents: list[Row]
    doings: list[doings.Activity]


def load(known: list[doings.Activity]) -> Health:
    """`known`: what frontend.pages.notices.activity has loaded."""
    versions = query(_VERSIONS)
    lag = cluster.scheduler_lag()
    rows: dict[str, Row] = {
        "control": {"version": __version__, "cycle_is_alive": lag["is_alive"]},
        "agents": {**cluster.agents(), "versions": versions},
    }
    lasting = incidents.latest(MAX_INCIDENTS, is_open=True)
    latest = {row["id"]: row for row in [*lasting, *incidents.latest(MAX_INCIDENTS)]}
    return Health(rows, list(latest.values()), known)


def restrict(loaded: Health, visible: Visible) -> dict[str, Row]:
    """Incidents without what nodes.redaction keeps, and the doings that the viewer may read."""
    rows = dict(loaded.rows)
    for row in loaded.incidents:
        rows[f"incident:{row['id']}"] = redaction.redact_notes(row, visible)
    rows.update({f"did:{one.row['key']}": one.row for one in doings.restrict(loaded.doings, visible, with_nodes=True)})
    return rows


TOPICS = (
    Topic(
        "health",
        lambda _, loaded: load(loaded["activity"]),
        lambda health, _, viewer: restrict(health, viewer.visible),
        needs=("activity",),
        group="people",
        invalidated_by=frozenset({"jobs", "nodes", "tenants"}),
        pause_seconds=2.0,
    ),
)
