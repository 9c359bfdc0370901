"""Create reservations and leases from requests: who may book what, when, and for whom."""

from datetime import datetime, timedelta

from django.db import transaction

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.api.rest import parse_moment
from gpusched.lib.db.sql import database_now
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.reservations import MAX_SECONDS, MIN_SECONDS, NewReservation, validate
from gpusched.protocol.states import Role
from scheduling.reservations import booking, recurrence
from scheduling.reservations.booking import Wish
from scheduling.reservations.choice import Shape
from scheduling.reservations.tables import Recurrence, Reservation, Source
from tenants.auth.identity import Identity
from tenants.models import Tenant
from tenants.people import members
from tenants.tenancy import archived

MAX_DAYS_AHEAD = 366
# A start that has passed by less than this means now: the request took time.
TOLERATED = timedelta(minutes=1)


def create(request: NewReservation, tenant: Tenant, identity: Identity, *, now: datetime | None = None) -> Reservation:
    """Book a reservation and, if it recurs, its occurrences of the next weeks. 400 for wrong fields, 403 without the
    right, 409 and 422 if it is refused."""
    now = now or database_now()
    identity.require(Role.MEMBER, tenant.pk, "this tenant")
    if errors := validate(request):
        raise invalid(errors)
    starts_at, ends_at = times_of(request, now)
    with transaction.atomic():
        archived.lock_open([tenant.pk])
        reservation = Reservation(
            tenant=tenant,
            user_id=identity.user_id or None,
            user_ids=members.user_ids("users", request.users, tenant.pk, identity),
            gpus=request.gpus,
            gpu_models=list(request.gpu_models),
            gpu_memory_mb=request.gpu_memory_mb,
            node_selector=request.node_selector,
            one_node=request.one_node,
            starts_at=starts_at,
            ends_at=ends_at,
            recurrence=request.recurrence or "",
            is_hard=request.kind == "hard",
            is_lease=request.lease,
            source=_source(request, tenant, identity),
            confidence=request.confidence,
            note=request.note,
            state=booking.state_at(starts_at, now),
        )
        booking.book(reservation, identity)
        if reservation.recurrence:
            Reservation.objects.filter(pk=reservation.pk).update(series_id=reservation.pk)
            reservation.series = reservation
            recurrence.book_following(reservation, now)
    return reservation


def wish_of(shape: Shape, start: str | None, for_seconds: int, now: datetime | None = None) -> Wish:
    """Return the wish for a slot from `start` on (None: now). 400 for times out of range."""
    request = NewReservation(gpus=shape.gpus, from_=start, for_seconds=for_seconds)
    if errors := validate(request):
        raise invalid(errors)
    return Wish(shape, *times_of(request, now or database_now()))


def times_of(request: NewReservation, now: datetime) -> tuple[datetime, datetime]:
    """Return the start and end of a valid request. 400 if they are out of range."""
    starts_at = now if request.from_ is None else parse_moment("from", request.from_, spare=timedelta(days=400))
    if now - TOLERATED <= starts_at < now:
        starts_at = now
    if not now <= starts_at <= now + timedelta(days=MAX_DAYS_AHEAD):
        message = f"must not be in the past, and at most {MAX_DAYS_AHEAD} days from now"
        raise invalid([FieldError("from", "out_of_range", message)])
    if request.until is None:
        ends_at = starts_at + timedelta(seconds=request.for_seconds or 0)
    else:
        ends_at = parse_moment("until", request.until)
        if not MIN_SECONDS <= (ends_at - starts_at).total_seconds() <= MAX_SECONDS:
            message = "must be at least a minute and at most 31 days after the start"
            raise invalid([FieldError("until", "out_of_range", message)])
    if request.recurrence and ends_at - starts_at > timedelta(days=recurrence.DAYS[Recurrence(request.recurrence)]):
        longest = {"daily": "a day", "weekly": "a week"}[request.recurrence]
        message = f"a {request.recurrence} reservation lasts at most {longest}"
        raise invalid([FieldError("recurrence", "conflict", message)])
    return starts_at, ends_at


def _source(request: NewReservation, tenant: Tenant, identity: Identity) -> Source:
    """Return by whom it is booked. 403 for a source that the caller is not."""
    if request.source is None:
        is_member = tenant.pk in identity.roles
        return Source.USER if is_member or not identity.can_administer else Source.ADMIN
    source = Source(request.source)
    if source in (Source.ADMIN, Source.PREWARM) and not identity.can_administer:
        detail = f"only an admin may book with the source {source}"
        raise Problem(403, "not_permitted", detail, next_step="leave the source out")
    return source
