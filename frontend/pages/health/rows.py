"""The rows of topic `health`: the control plane, the agents, incidents and automatic actions."""

from dataclasses import dataclass

from frontend.live.topics import Topic
from frontend.pages.notices import activity
from gpusched import __version__
from gpusched.lib.db.sql import Row, query
from nodes import redaction
from nodes.health import incidents
from scheduling.status import cluster
from tenants.auth.page_access import Visible

MAX_INCIDENTS = 100
_VERSIONS = """
    SELECT agent_version AS version, count(*) AS nodes FROM nodes_all WHERE removed_at IS NULL GROUP BY 1 ORDER BY 1
"""


@dataclass(frozen=True)
class Health:
    """Public rows, incidents with causes, and activities with tenants."""

    rows: dict[str, Row]
    incidents: list[Row]
    activities: list[activity.Activity]


def load(activities: list[activity.Activity]) -> Health:
    """`activities`: as loaded by frontend.pages.notices.activity."""
    versions = query(_VERSIONS)
    lag = cluster.scheduler_lag()
    rows: dict[str, Row] = {
        "control": {"version": __version__, "cycle_is_alive": lag["is_alive"]},
        "agents": {**cluster.agents(), "versions": versions},
    }
    lasting = incidents.latest(MAX_INCIDENTS, is_open=True)
    latest = {row["id"]: row for row in [*lasting, *incidents.latest(MAX_INCIDENTS)]}
    return Health(rows, list(latest.values()), activities)


def restrict(loaded: Health, visible: Visible) -> dict[str, Row]:
    """Return redacted incidents, and the activities that the viewer can see."""
    rows = dict(loaded.rows)
    for row in loaded.incidents:
        rows[f"incident:{row['id']}"] = redaction.redact_notes(row, visible)
    for entry in activity.restrict(loaded.activities, visible, with_nodes=True):
        rows[f"did:{entry.row['key']}"] = entry.row
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
