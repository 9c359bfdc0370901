"""One node: its state, problems, GPU allocations and readings, and the actions of admins."""

from collections.abc import Callable
from datetime import UTC, timedelta
from functools import cache
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_POST

from frontend.actions import status
from frontend.pages.node import labels, remedies, timeline
from frontend.ui.page import page, perform, show
from gpusched import __version__
from gpusched.lib.api.problems import Problem, not_found
from gpusched.lib.db.sql import query, retry_atomic
from gpusched.lib.times import rfc3339
from gpusched.protocol.states import DeviceHealth, NodeIntent, NodeState
from nodes import not_found as nodes_not_found
from nodes.health import cordon, device_health
from nodes.health.incidents import of_nodes, with_closers
from nodes.inventory import removal, representation, retire
from scheduling.status.cluster import scheduler_lag
from tenants.auth.identity import Identity

_INTENTS = {
    "cordon": NodeIntent.CORDONED,
    "drain": NodeIntent.DRAINING,
    "uncordon": NodeIntent.OPEN,
    "release": NodeIntent.OPEN,
}
# Time windows by their name in the URL: hours, and the resolution of readings.
SPANS = {"1h": (1, "raw"), "24h": (24, "5m"), "7d": (168, "5m")}
_TICKS = 6


@page
def node(request: HttpRequest, identity: Identity, name: str) -> HttpResponse:
    listed = find_node(name, identity)
    visible = identity.visible_tenants()
    requested = request.GET.get("span", "24h")
    span = requested if requested in SPANS else "24h"
    hours, resolution = SPANS[span]
    now = timezone.now()
    window = timeline.Window(now - timedelta(hours=hours), now)
    incidents = of_nodes([name])[name]
    since = {(row["device_id"], row["kind"]): row["since"] for row in incidents if row["until"] is None}
    lag = cache(scheduler_lag)
    context: dict[str, Any] = {
        "node": {
            **listed,
            "devices": [
                {**_read(d, listed), "last_request": status.of_device(d, incidents, lag)} for d in listed["devices"]
            ],
        },
        "unread": "its node is lost" if listed["state"] == NodeState.LOST else "not read",
        "running": timeline.running(name, visible),
        "problems": remedies.problems(listed, since),
        "is_held": remedies.is_auto_cordoned(listed),
        "last_request": status.of_node(listed, incidents, count_jobs(name), lag),
        "incidents": with_closers(incidents) if identity.is_admin else [],
        "lanes": timeline.device_lanes(name, listed["devices"], incidents, window, visible),
        "ticks": _ticks(window),
        "span": span,
        "spans": SPANS,
        "readings": {
            "gpus": msgspec.json.encode([{"id": d["id"], "index": d["index"]} for d in listed["devices"]]).decode(),
            "since": rfc3339(window.begin),
            "hours": hours,
            "resolution": resolution,
        },
        "server_version": __version__,
        "marks": labels.represent(name) if identity.is_admin else {},
    }
    return show(request, identity, "node/page.html", context)


def find_node(name: str, identity: Identity) -> dict[str, Any]:
    """Return the node as listed for the caller. 404 if unknown."""
    matches = representation.nodes(identity.visible_tenants(), name) if "\x00" not in name else []
    if not matches:
        raise nodes_not_found.absent(name)
    return matches[0]


def _read(device: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Return the device without stale readings of a lost node. Health set by the system or an admin stays."""
    if node["state"] != NodeState.LOST:
        return device
    is_read = device["health"] in (DeviceHealth.OK, DeviceHealth.HOT)
    return {**device, "reading": None, **({"health": "unread", "health_note": ""} if is_read else {})}


def count_jobs(name: str) -> int:
    """Return the number of jobs with a rank on the node."""
    rows = query(
        "SELECT count(DISTINCT s.job_id) AS jobs FROM nodes_ranks s JOIN nodes_all n ON n.id = s.node_id"
        " WHERE n.name = %s AND s.state <> 'ended'",
        [name],
    )
    return int(rows[0]["jobs"])


def _ticks(window: timeline.Window) -> list[dict[str, Any]]:
    step = (window.end - window.begin) / _TICKS
    moments = [window.begin + step * number for number in range(_TICKS)]
    return [{"at": moment.astimezone(UTC), "left": f"{100 * window.part(moment):.2f}"} for moment in moments]


@require_POST
@page
def set_intent(request: HttpRequest, identity: Identity, name: str, verb: str) -> HttpResponse:
    """Cordon, drain or uncordon a node, or release one that the system holds."""
    if verb not in _INTENTS:
        raise not_found(f"action '{verb[:20]}'")
    find_node(name, identity)
    note = request.POST.get("note", "").strip()

    def do() -> str:
        if "\x00" in note:
            raise Problem(400, "invalid", "the note must not contain a NUL character", next_step="write it without")
        return cordon.set_intent(name, _INTENTS[verb], note)

    return _act_as_admin(request, identity, name, do)


@require_POST
@page
def set_marks(request: HttpRequest, identity: Identity, name: str, kind: str) -> HttpResponse:
    """Change the labels or taints of a node to the submitted lines."""
    changes = {"labels": labels.change_labels, "taints": labels.change_taints}
    if kind not in changes:
        raise not_found(f"kind '{kind[:20]}'")
    find_node(name, identity)
    previous_text, new_text = (request.POST.get(field, "").replace("\x00", "") for field in ("were", "typed"))
    return _act_as_admin(request, identity, name, lambda: changes[kind](name, previous_text, new_text))


@require_POST
@page
def remove(request: HttpRequest, identity: Identity, name: str) -> HttpResponse:
    """Remove the node permanently and return to the list of nodes."""
    find_node(name, identity)
    target: list[str] = ["node", name]

    def do() -> str:
        identity.require_admin()
        message = retry_atomic(lambda: removal.remove(name))
        target[:] = ["nodes"]  # the node's page no longer exists
        return message

    return perform(request, target, do)


@require_POST
@page
def act_on_gpu(request: HttpRequest, identity: Identity, name: str, device_id: int, verb: str) -> HttpResponse:
    """Quarantine, clear or retire a GPU of the node."""
    note = request.POST.get("note", "").strip().replace("\x00", "")
    verbs: dict[str, Callable[[], str]] = {
        "quarantine": lambda: device_health.quarantine(device_id, note, identity.username),
        "clear": lambda: device_health.clear(device_id),
        "retire": lambda: retire.retire(device_id),
    }
    if verb not in verbs or all(device["id"] != device_id for device in find_node(name, identity)["devices"]):
        raise not_found(f"GPU {device_id} of node '{name[:253]}'")
    return _act_as_admin(request, identity, name, lambda: retry_atomic(verbs[verb]))


def _act_as_admin(request: HttpRequest, identity: Identity, name: str, action: Callable[[], str]) -> HttpResponse:
    def do() -> str:
        identity.require_admin()
        return action()

    return perform(request, "node", do, name)
