"""Calendar: reservations over time by node, the next free slot for a shape, and booking it."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from frontend.pages.calendar import slot
from frontend.pages.calendar.lanes import timeline
from frontend.ui.page import page, perform, show
from gpusched.lib.db.sql import query
from gpusched.lib.times import readable
from gpusched.protocol.reservations import NewReservation
from gpusched.protocol.states import Role
from scheduling.reservations import changes, create
from scheduling.reservations.representation import represent_reservations
from scheduling.reservations.tables import OPEN_STATES
from tenants.api.tenants import find_tenant
from tenants.auth.identity import Identity

DAYS = {"1": "day", "7": "week", "28": "4 weeks"}
MAX_LISTED = 100
_NEXT = """
    SELECT id, tenant_id, user_id FROM scheduling_reservations
     WHERE state = ANY(%(states)s) AND (%(visible)s::bigint[] IS NULL OR tenant_id = ANY(%(visible)s))
     ORDER BY starts_at, id LIMIT %(limit)s + 1
"""


@page
def calendar(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Show the calendar for ?days=; with ?gpus= and ?hours= also the next free slot."""
    days = request.GET.get("days", "7")
    days = days if days in DAYS else "7"
    visible = identity.visible_tenants()
    listed = _open_reservations(identity)
    context: dict[str, Any] = {
        "days": days,
        "periods": DAYS,
        **timeline(int(days), visible),
        "reservations": listed[:MAX_LISTED],
        "max_listed": MAX_LISTED if len(listed) > MAX_LISTED else None,
        "tenants": _bookable(identity),
        **slot.form(request.GET),
        **slot.next_slot(request.GET, identity),
    }
    return show(request, identity, "calendar/page.html", context)


@require_POST
@page
def book(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Book the slot that the page showed."""

    def do() -> str:
        tenant = find_tenant(request.POST.get("tenant", ""), identity)
        shape, seconds = slot.shape(request.POST)
        wanted = NewReservation(
            gpus=shape.gpus,
            gpu_model="|".join(shape.gpu_models) or None,
            one_node=shape.one_node,
            from_=request.POST.get("from") or None,
            for_seconds=seconds,
            note=request.POST.get("note", ""),
        )
        booked = create.create(wanted, tenant, identity)
        return f"reservation {booked.pk} is booked from {readable(booked.starts_at)}"

    return perform(request, "calendar", do)


@require_POST
@page
def end(request: HttpRequest, identity: Identity, reservation_id: int, verb: str) -> HttpResponse:
    """Cancel a reservation, or end an active one now."""

    def do() -> str:
        changes.find(reservation_id, identity)
        ended = (changes.shorten if verb == "shorten" else changes.cancel)(reservation_id, identity)
        return f"reservation {reservation_id} is {ended.state}"

    return perform(request, "calendar", do)


def _open_reservations(identity: Identity) -> list[dict[str, Any]]:
    """Return the open reservations of visible tenants in the order of their starts, at most one more than are listed,
    with times for the template and whether the caller may end them. A series has its later ones booked later, so the
    newest are not those that begin next."""
    params = {"states": list(OPEN_STATES), "visible": identity.visible_tenants(), "limit": MAX_LISTED}
    subjects = {row["id"]: row for row in query(_NEXT, params)}
    rows = [
        {
            **row,
            "starts_at": datetime.fromisoformat(row["starts_at"]),
            "ends_at": datetime.fromisoformat(row["ends_at"]),
            "may_end": _may_end(subjects[row["id"]], identity),
        }
        for row in represent_reservations(None, list(subjects))
    ]
    return sorted(rows, key=lambda row: (row["starts_at"], row["id"]))


def _may_end(subject: dict[str, Any], identity: Identity) -> bool:
    return identity.may_act_for(subject["user_id"] or 0, subject["tenant_id"])


def _bookable(identity: Identity) -> list[str]:
    """Return the tenants for which the caller may book."""
    rows = query("SELECT id, name FROM tenants_all WHERE archived_at IS NULL ORDER BY name")
    return [row["name"] for row in rows if identity.sees(row["id"]) and identity.has(Role.MEMBER, row["id"])]
