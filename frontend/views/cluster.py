"""Fleet, nodes and tenants: what there is, taking nodes out of service, and letting new ones join."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from frontend import feed
from frontend.views.entrance import act, page, show
from frontend.views.overview import bar_scale
from gpusched.lib.problems import Problem
from gpusched.protocol.states import NodeIntent
from nodes import services
from tenants.api import tenants_shown
from tenants.permissions import Identity

_JOIN_HOURS = 24.0
_INTENTS = {"cordon": NodeIntent.CORDONED, "drain": NodeIntent.DRAINING, "uncordon": NodeIntent.OPEN}


@page
def fleet(request: HttpRequest, who: Identity) -> HttpResponse:
    return show(request, who, "pages/fleet.html", {"nodes": _nodes(who)})


@page
def nodes(request: HttpRequest, who: Identity) -> HttpResponse:
    return _nodes_page(request, who)


def _nodes_page(request: HttpRequest, who: Identity, token: str = "") -> HttpResponse:
    found = _nodes(who)
    words = {
        "nodes": found,
        "is_cpu_only": len(found) == 1 and not found[0]["devices"],
        "url": request.build_absolute_uri("/").rstrip("/"),
        "token": token,
        "hours": int(_JOIN_HOURS),
    }
    return show(request, who, "pages/nodes.html", words)


def _nodes(who: Identity) -> list[dict[str, Any]]:
    return list(feed.rows("nodes", who.visible_tenants()).values())


@require_POST
@page
def set_intent(request: HttpRequest, who: Identity) -> HttpResponse:
    """Cordon, drain or uncordon the node that the form names."""
    who.require_admin()
    intent = _INTENTS.get(request.POST.get("verb", ""))
    name, note = (request.POST.get(field, "").strip() for field in ("node", "note"))
    if intent is None or not name or "\x00" in name + note:
        messages.error(request, "Choose a node and what to do with it.")
        return redirect("nodes")
    return act(request, "nodes", lambda: services.set_intent(name, intent, note))


@require_POST
@page
def join_token(request: HttpRequest, who: Identity) -> HttpResponse:
    """Makes a token with which nodes join and shows it this once: it is not kept anywhere else."""
    try:
        who.require_admin()
    except Problem:
        messages.error(request, "Only an admin can make a join token.")
        return redirect("nodes")
    _, text = services.create_join_token(_JOIN_HOURS, who.username)
    response = _nodes_page(request, who, text)
    response["Cache-Control"] = "no-store"
    return response


@page
def tenants(request: HttpRequest, who: Identity) -> HttpResponse:
    visible = who.visible_tenants()
    rows = feed.rows("tenants", visible)
    found = [{**tenant, "live": rows.get(tenant["name"], {})} for tenant in tenants_shown(visible)]
    return show(request, who, "pages/tenants.html", {"tenants": found, "scale": bar_scale(rows.values())})
