"""Health: open and past incidents, agents, the control plane and automatic actions."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from frontend.live import feed
from frontend.pages.health import control_plane
from frontend.ui.page import page, show
from gpusched.lib.times import parsed
from nodes.health.incidents import with_closers
from tenants.auth.identity import Identity

_NEXT_STEPS = {
    "cordoned": "uncordon it, or wait if the system holds it",
    "draining": "uncordon it",
    "node_lost": "it recovers when its agent reports",
    "dirty": "it recovers when the process ends, or when the driver answers; its cause names which",
    "foreign": "it recovers when the process ends",
    "quarantined": "clear it on the node's page",
    "degraded": "repair the hardware, then clear it",
    "lost": "it recovers when it is seen again",
    "hot": "it recovers when it has cooled",
}


@page
def health(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Show incidents and activities to members; only admins see causes and the control plane."""
    rows = feed.rows("health", identity.visible_tenants(), identity.user_id)
    incidents = [_with_moments(row) for key, row in rows.items() if key.startswith("incident:")]
    incidents = with_closers(incidents) if identity.is_admin else incidents
    incidents.sort(key=lambda row: row["since"], reverse=True)
    agents = control_plane.agents() if identity.is_admin else []
    context: dict[str, Any] = {
        "control": rows["control"],
        "counts": rows["agents"],
        "open": [{**row, "next_step": _NEXT_STEPS.get(row["kind"], "")} for row in incidents if row["until"] is None],
        "incidents": [row for row in incidents if row["until"] is not None][:100],
        "activities": sorted((row for key, row in rows.items() if key.startswith("did:")), key=_at, reverse=True),
        "plane": control_plane.control_plane() if identity.is_admin else None,
        "agents": agents,
        "noted": [row for row in agents if row["notes"] or row["state"] != "online"],
    }
    return show(request, identity, "health/page.html", context)


def _with_moments(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "since": parsed(row["since"]), "until": row["until"] and parsed(row["until"])}


def _at(row: dict[str, Any]) -> str:
    return str(row["at"])
