"""The panel beside the fleet map: actions on the selected GPU, its jobs and its node, and their status."""

from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponse

from frontend.actions import status
from frontend.actions.confirmation import loss_of
from frontend.actions.job_actions import actions_for
from frontend.pages.node import remedies
from frontend.pages.node.view import count_jobs, find_node
from frontend.ui.page import page, show
from gpusched.lib.api.problems import not_found
from gpusched.lib.db.sql import query
from nodes.health.incidents import of_nodes
from scheduling.status.cluster import scheduler_lag
from tenants.auth.identity import Identity

_HOLDERS = """
    SELECT j.id, j.name, j.tenant_id, j.user_id, j.state, j.attempt, j.reason, j.stop_reason, j.array_count,
           (SELECT count(DISTINCT h.device_id) FROM nodes_held h WHERE h.job_id = j.id) AS gpus
      FROM jobs_all j WHERE j.id = ANY(%s) ORDER BY j.id
"""


@page
def gpu_actions(request: HttpRequest, identity: Identity, name: str, device_id: int) -> HttpResponse:
    """Return an HTML fragment with the actions that the caller can perform."""
    node = find_node(name, identity)
    device = next((device for device in node["devices"] if device["id"] == device_id), None)
    if device is None:
        raise not_found(f"GPU {device_id} of node '{name[:253]}'")
    jobs = [
        {**row, "verbs": actions_for(row, identity), "last_request": status.of_job(row), "loss": loss_of(row["id"])}
        for row in query(_HOLDERS, [device["jobs"]])
    ]
    incidents, running_jobs = of_nodes([name])[name], count_jobs(name)
    lag = cache(scheduler_lag)
    context: dict[str, Any] = {
        "node": node,
        "d": {**device, "last_request": status.of_device(device, incidents, lag)},
        "jobs": jobs,
        "is_held": remedies.is_auto_cordoned(node),
        "job_count": running_jobs,
        "last_request": status.of_node(node, incidents, running_jobs, lag),
    }
    return show(request, identity, "node/gpu_panel.html", context)
