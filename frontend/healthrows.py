"""The rows of topic `health`: the control plane, the agents, what is not well, and what the system did by itself."""

from dataclasses import dataclass
from typing import Any

from frontend import doings
from frontend.access import Visible
from gpusched import __version__
from gpusched.lib.sql import query
from nodes import incidents
from scheduling import services

Row = dict[str, Any]
MOST_INCIDENTS = 100


@dataclass(frozen=True)
class Health:
    """Rows that all see, incidents with their causes, and doings with their tenants."""

    rows: dict[str, Row]
    incidents: list[Row]
    doings: list[doings.Doing]


def load(known: list[doings.Doing]) -> Health:
    """`known`: what frontend.doings has loaded."""
    versions = query("SELECT agent_version AS version, count(*) AS nodes FROM nodes_node GROUP BY 1 ORDER BY 1")
    lag = services.scheduler_lag()
    rows: dict[str, Row] = {
        "control": {"version": __version__, "cycle_is_alive": lag["is_alive"]},
        "agents": {**services.agents(), "versions": versions},
    }
    lasting = incidents.latest(MOST_INCIDENTS, is_open=True)
    latest = {row["id"]: row for row in [*lasting, *incidents.latest(MOST_INCIDENTS)]}
    return Health(rows, list(latest.values()), known)


def restrict(loaded: Health, visible: Visible) -> dict[str, Row]:
    """Causes name jobs and people of whichever tenant: only admins read them."""
    rows = dict(loaded.rows)
    for row in loaded.incidents:
        rows[f"incident:{row['id']}"] = row if visible is None else {**row, "cause": None}
    rows.update({f"did:{one.row['key']}": one.row for one in doings.restrict(loaded.doings, visible)})
    return rows
