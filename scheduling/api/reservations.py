"""REST for reservations and leases."""

from datetime import UTC, datetime
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid
from gpusched.lib.api.rest import (
    PAGED,
    cursor_number,
    is_true,
    page_limit,
    paged,
    read_body,
    read_moment,
    read_query,
    whole_number,
)
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError, JobRequest
from gpusched.protocol.reservations import MAX_GPUS, MAX_SECONDS, MIN_SECONDS, NewReservation, validate
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.reservations import Cancellation, NextSlot, Renewal, ReservationData
from jobs.submit.job_row import resolve_tenant
from scheduling.reservations import booking, changes, create
from scheduling.reservations.choice import Shape
from scheduling.reservations.representation import represent_reservations
from scheduling.reservations.tables import Reservation, ReservationState
from tenants.api.tenants import selected_tenants
from tenants.auth.identity import Identity, identity
from tenants.models import Tenant

_WHO = "own reservations: member, else owner"


class Reservations(APIView):
    @documented(
        "List reservations, newest first",
        tag="reservations",
        who="viewer",
        answer=Page[ReservationData],
        parameters={
            "tenant": "name of a tenant",
            "state": f"{', '.join(ReservationState.values)}, or several with commas",
            "from": "only those that end after this time",
            "until": "only those that begin before this time",
            **PAGED,
        },
    )
    def get(self, request: Request) -> Response:
        """Those of your own tenants."""
        caller, filters = identity(request), read_query(request)
        states = [state for state in filters.get("state", "").split(",") if state]
        if unknown := sorted(set(states) - set(ReservationState.values)):
            message = f"there is no state '{unknown[0][:50]}'; use {', '.join(ReservationState.values)}"
            raise invalid([FieldError("state", "unknown_value", message)])
        limit = page_limit(filters)
        items = represent_reservations(
            selected_tenants(filters, caller),
            states=states or None,
            start=read_moment(filters, "from"),
            end=read_moment(filters, "until"),
            before=cursor_number(filters, "reservations"),
            limit=limit,
        )
        return Response(paged(items, limit, "reservations"))

    @documented(
        "Book a reservation",
        tag="reservations",
        who="member",
        body=NewReservation,
        answer=ReservationData,
        status=201,
        refusals=(400, 401, 403, 404, 409, 413, 415, 422),
    )
    def post(self, request: Request) -> Response:
        """It has GPUs of its own from the start on. 409 `no_room` names what is in the way and the next free slot. A
        `hard` one is charged also while it is idle; a `soft` one is only a preference of the scheduler. A `lease`
        begins now. A recurring one is booked for the next weeks (`GPUSCHED_RESERVATION_WEEKS_AHEAD`)."""
        caller = identity(request)
        body = read_body(request, NewReservation, validate)
        tenant_id, _ = resolve_tenant(JobRequest(tenant=body.tenant), caller)
        reservation = create.create(body, Tenant.objects.get(pk=tenant_id), caller)
        return _answer(reservation, "booked", status=201)


class NextFreeSlot(APIView):
    @documented(
        "Find the next free slot for a reservation",
        tag="reservations",
        who="anybody",
        answer=NextSlot,
        parameters={
            "gpus": f"1 to {MAX_GPUS}, default 1: how many GPUs",
            "for_seconds": f"{MIN_SECONDS} to {MAX_SECONDS}, default 3600: how long",
            "from": "the earliest start; default: now",
            "gpu_model": "accepted models, like A100|H100",
            "gpu_memory_mb": "1 to 100000000: memory of each GPU",
            "several_nodes": "true: the GPUs may be on several nodes",
        },
        refusals=(400, 401, 403, 422),
    )
    def get(self, request: Request) -> Response:
        """Nothing is booked. 422 if no node, or with `several_nodes` not all nodes together, have such GPUs."""
        caller, filters = identity(request), read_query(request)
        models = tuple(model.strip() for model in filters.get("gpu_model", "").split("|") if model.strip())
        memory = whole_number(filters, "gpu_memory_mb", 0, 1, 100_000_000) if "gpu_memory_mb" in filters else None
        shape = Shape(
            whole_number(filters, "gpus", 1, 1, MAX_GPUS),
            models,
            memory,
            one_node=not is_true(filters, "several_nodes"),
        )
        seconds = whole_number(filters, "for_seconds", 3600, MIN_SECONDS, MAX_SECONDS)
        return Response(next_slot_answer(create.wish_of(shape, filters.get("from"), seconds), caller))


def next_slot_answer(wish: booking.Wish, caller: Identity) -> dict[str, Any]:
    """Return the answer about the next free slot."""
    slot = booking.find_slot(wish)
    if slot is None:
        return {"starts_at": None, "ends_at": None, "nodes": [], "blocker": ""}
    starts_at = datetime.fromtimestamp(slot.starts_at, UTC)
    return {
        "starts_at": rfc3339(starts_at),
        "ends_at": rfc3339(starts_at + (wish.ends_at - wish.starts_at)),
        "nodes": booking.node_names(slot.devices),
        "blocker": booking.describe_blocker(slot.blocker, caller) if slot.blocker else "",
    }


class OneReservation(APIView):
    @documented("Read a reservation", tag="reservations", who="viewer", answer=ReservationData)
    def get(self, request: Request, reservation_id: int) -> Response:
        """With the jobs that run in it."""
        return _answer(changes.find(reservation_id, identity(request)))


class ShortenReservation(APIView):
    @documented(
        "End an active reservation now",
        tag="reservations",
        who=_WHO,
        answer=ReservationData,
        refusals=(400, 401, 403, 404, 409),
    )
    def post(self, request: Request, reservation_id: int) -> Response:
        """Its jobs keep running, without a reservation. It is charged until now."""
        return _answer(changes.shorten(reservation_id, identity(request)), "shortened")


class CancelReservation(APIView):
    @documented(
        "Cancel a reservation",
        tag="reservations",
        who=_WHO,
        body=Cancellation,
        answer=ReservationData,
        refusals=(400, 401, 403, 404, 409, 413, 415),
    )
    def post(self, request: Request, reservation_id: int) -> Response:
        """A planned one costs nothing; an active one ends now."""
        body = read_body(request, Cancellation)
        return _answer(changes.cancel(reservation_id, identity(request), series=body.series), "cancelled")


class RenewReservation(APIView):
    @documented(
        "Renew a lease or an active reservation",
        tag="reservations",
        who=_WHO,
        body=Renewal,
        answer=ReservationData,
        refusals=(400, 401, 403, 404, 409, 413, 415),
    )
    def post(self, request: Request, reservation_id: int) -> Response:
        """It then ends `for_seconds` from now. 409 `no_room` if the GPUs are reserved by others then."""
        seconds = read_body(request, Renewal).for_seconds
        return _answer(changes.renew(reservation_id, seconds, identity(request)), "renewed")


def _answer(reservation: Reservation, done: str = "", status: int = 200) -> Response:
    [represented] = represent_reservations(None, [reservation.pk])
    return Response({**represented, **({"status": done} if done else {})}, status=status)
