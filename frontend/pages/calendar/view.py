"""Calendar: reservations over time by node, the next free slot for a shape, and booking it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_POST

from frontend.pages.calendar.lanes import Window, node_lanes, ticks
from frontend.ui.page import page, perform, refusal, show
from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.db.sql import query
from gpusched.lib.times import readable, rfc3339
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.reservations import MAX_GPUS, NewReservation
from gpusched.protocol.states import Role
from scheduling.reservations import booking, changes, create
from scheduling.reservations.choice import Shape
from scheduling.reservations.representation import represent_reservations
from scheduling.reservations.tables import OPEN_STATES
from tenants.api.tenants import find_tenant
from tenants.auth.identity import Identity

DAYS = {"1": "day", "7": "week", "28": "4 weeks"}
MAX_LISTED = 100


@page
def calendar(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Show the calendar for ?days=; with ?gpus= and ?hours= also the next free slot."""
    days = request.GET.get("days", "7")
    days = days if days in DAYS else "7"
    now = timezone.now()
    span = timedelta(days=int(days))
    window = Window(now - span / 8, now + span * 7 / 8)
    visible = identity.visible_tenants()
    context: dict[str, Any] = {
        "days": days,
        "periods": DAYS,
        "lanes": node_lanes(window, visible),
        "ticks": ticks(window),
        "now": window.percent(now),
        "reservations": _open_reservations(visible),
        "tenants": _bookable(identity),
        "gpus": request.GET.get("gpus", "1"),
        "hours": request.GET.get("hours", "2"),
        "model": request.GET.get("model", ""),
        "models": _models(),
        "several": request.GET.get("several") == "on",
        **_slot(request, identity),
    }
    return show(request, identity, "calendar/page.html", context)


@require_POST
@page
def book(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Book the slot that the page showed."""

    def do() -> str:
        tenant = find_tenant(request.POST.get("tenant", ""), identity)
        shape, seconds = _shape(request.POST)
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


def _open_reservations(visible: Sequence[int] | None) -> list[dict[str, Any]]:
    """Return the open reservations of visible tenants in the order of their starts, with times for the template."""
    rows = represent_reservations(visible, states=OPEN_STATES, limit=MAX_LISTED)
    times = [{name: datetime.fromisoformat(row[name]) for name in ("starts_at", "ends_at")} for row in rows]
    return sorted(({**row, **at} for row, at in zip(rows, times, strict=True)), key=lambda row: row["starts_at"])


def _slot(request: HttpRequest, identity: Identity) -> dict[str, Any]:
    """Return the next free slot of the requested shape, or why there is none."""
    if "gpus" not in request.GET:
        return {}
    try:
        shape, seconds = _shape(request.GET)
        slot = booking.find_slot(create.wish_of(shape, None, seconds))
    except Problem as problem:
        return {"slot_problem": refusal(problem)}
    if slot is None:
        return {"slot_problem": "No free slot is known: jobs without a time limit hold too many of these GPUs."}
    starts_at = datetime.fromtimestamp(slot.starts_at, UTC)
    return {
        "slot": {
            "starts_at": starts_at,
            "from": "" if slot.blocker is None else rfc3339(starts_at),
            "nodes": booking.node_names(slot.devices),
            "blocker": booking.describe_blocker(slot.blocker, identity) if slot.blocker else "",
        }
    }


def _shape(values: Any) -> tuple[Shape, int]:
    """Return the shape and the seconds of a form. 400 for wrong numbers."""
    try:
        gpus, hours = int(values.get("gpus", "")), float(values.get("hours", ""))
    except ValueError:
        raise invalid([FieldError("gpus", "invalid", "enter numbers of GPUs and hours")]) from None
    if not 1 <= gpus <= MAX_GPUS:
        raise invalid([FieldError("gpus", "out_of_range", f"must be between 1 and {MAX_GPUS}")])
    if not 0 < hours <= 31 * 24:
        raise invalid([FieldError("hours", "out_of_range", "must be more than 0 and at most 744")])
    model = str(values.get("model", "")).strip()
    return Shape(gpus, (model,) if model else (), one_node=values.get("several") != "on"), round(hours * 3600)


def _bookable(identity: Identity) -> list[str]:
    """Return the tenants for which the caller may book."""
    rows = query("SELECT id, name FROM tenants_all WHERE archived_at IS NULL ORDER BY name")
    return [row["name"] for row in rows if identity.sees(row["id"]) and identity.has(Role.MEMBER, row["id"])]


def _models() -> list[str]:
    rows = query("SELECT DISTINCT model FROM nodes_devices d JOIN nodes_all n ON n.id = d.node_id"
                 " WHERE n.removed_at IS NULL ORDER BY model")  # fmt: skip
    return [row["model"] for row in rows]
