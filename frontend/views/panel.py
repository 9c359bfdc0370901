"""Beside the fleet's map: what the person may do to the chosen GPU, its jobs and its node, and how that stands."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse

from frontend import waysback
from frontend.jobverbs import verbs_of
from frontend.views.entrance import page, show
from frontend.views.node import confirmation, found_node, jobs_there
from gpusched.lib.problems import not_found
from gpusched.lib.sql import query
from gpusched.protocol.states import JobState
from nodes.incidents import of_nodes
from tenants.permissions import Identity

_HOLDERS = """
    SELECT j.id, j.name, j.tenant_id, j.user_id, j.state, j.reason, j.array_count,
           (SELECT count(DISTINCT a.device_id) FROM nodes_allocation a JOIN nodes_assignment s ON s.id = a.assignment_id
             WHERE s.job_id = j.id) AS gpus
      FROM jobs_job j WHERE j.id = ANY(%s) ORDER BY j.id
"""


@page
def gpu_actions(request: HttpRequest, who: Identity, name: str, device_id: int) -> HttpResponse:
    """A piece of HTML; nothing in it that this person may not do. `is_awaited`: something asked for is not yet so."""
    node = found_node(name, who)
    device = next((device for device in node["devices"] if device["id"] == device_id), None)
    if device is None:
        raise not_found(f"GPU {device_id} of node '{name[:253]}'")
    jobs = [{**row, "verbs": verbs_of(row, who)} for row in query(_HOLDERS, [device["jobs"]])]
    confirmed = confirmation(node, _since(node)) if who.is_admin else {}
    is_stopping = any(job["state"] == JobState.STOPPING for job in jobs)
    words: dict[str, Any] = {
        "node": node,
        "d": device,
        "jobs": jobs,
        "is_held": waysback.is_held(node),
        "jobs_there": jobs_there(name),
        "confirmed": confirmed,
        "is_awaited": is_stopping or (bool(confirmed) and not confirmed["is_seen"]),
    }
    return show(request, who, "pages/panel_actions.html", words)


def _since(node: dict[str, Any]) -> datetime | None:
    """Since when the node is closed as it is now."""
    lasting = (row for row in of_nodes([node["name"]])[node["name"]] if row["until"] is None)
    return next((row["since"] for row in lasting if (row["device_id"], row["kind"]) == (None, node["intent"])), None)
