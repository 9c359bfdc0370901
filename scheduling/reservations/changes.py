"""Change reservations: shorten, cancel and renew them, and end them for any other reason."""

from datetime import datetime, timedelta

from django.db import transaction

from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.audit import log
from gpusched.lib.db import locks
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import database_now, execute
from gpusched.lib.times import readable
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.reasons import Notice
from gpusched.protocol.reservations import MAX_SECONDS, MIN_SECONDS
from gpusched.protocol.states import Role
from jobs.lifecycle import notices
from jobs.lifecycle.reservation import leave_reservation
from scheduling.reservations import booking, bookings, limits
from scheduling.reservations.choice import Chosen
from scheduling.reservations.tables import OPEN_STATES, Reservation, ReservationState, ReservedDevice
from tenants.auth.identity import Identity


def find(reservation_id: int, identity: Identity) -> Reservation:
    """Return a reservation of a tenant that the caller sees; the same 404 otherwise."""
    rows = Reservation.objects.select_related("tenant").filter(pk=reservation_id)
    if not rows or not identity.sees(rows[0].tenant_id):
        raise not_found(f"reservation {reservation_id}", next_step="list your reservations")
    return rows[0]


def shorten(reservation_id: int, identity: Identity, *, now: datetime | None = None) -> Reservation:
    """Move the end of an active reservation to now. Its jobs keep running, as jobs without a reservation. 409 unless it
    is active."""
    with transaction.atomic():
        reservation = _locked(reservation_id, identity)
        if reservation.state != ReservationState.ACTIVE:
            detail = f"only an active reservation can be shortened; reservation {reservation_id} is {reservation.state}"
            raise Problem(409, "wrong_state", detail, next_step="cancel a planned one")
        before = booking.facts(reservation)
        end(reservation, ReservationState.RELEASED, now or database_now(), _shortened(reservation, identity))
        log.record("reservation.shorten", _subject(reservation), before, booking.facts(reservation))
    return reservation


def cancel(
    reservation_id: int, identity: Identity, *, series: bool = False, now: datetime | None = None
) -> Reservation:
    """Cancel a planned reservation, or end an active one now. `series`: also the later occurrences, and book no more.
    409 if it has ended."""
    now = now or database_now()
    with transaction.atomic():
        reservation = _locked(reservation_id, identity)
        if reservation.state not in OPEN_STATES and not series:
            detail = f"reservation {reservation_id} has ended: it is {reservation.state}"
            raise Problem(409, "wrong_state", detail, next_step="nothing is left to cancel")
        if reservation.state in OPEN_STATES:
            _cancel(reservation, now)
        if series and reservation.series_id is not None:
            Reservation.objects.filter(series_id=reservation.series_id).update(recurrence="")
            later = Reservation.objects.select_related("tenant").select_for_update(of=("self",))
            later = later.filter(series_id=reservation.series_id, starts_at__gt=reservation.starts_at)
            for row in later.filter(state=ReservationState.PLANNED):
                _cancel(row, now)
            reservation.refresh_from_db()
    return reservation


def renew(reservation_id: int, seconds: int, identity: Identity, *, now: datetime | None = None) -> Reservation:
    """Move the end of a lease, or of an active reservation, to `seconds` from now. 409 unless it is active, or if its
    devices are reserved or in use by others then. 403 beyond the quota, and to keep an idle one longer while the budget
    is used up."""
    now = now or database_now()
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        message = f"must be between {MIN_SECONDS} and {MAX_SECONDS} (31 days)"
        raise invalid([FieldError("for_seconds", "out_of_range", message)])
    with transaction.atomic():
        reservation = _locked(reservation_id, identity)
        # From its end on others may start there, before the next review marks it expired.
        state = ReservationState.EXPIRED if reservation.ends_at <= now else reservation.state
        if state != ReservationState.ACTIVE:
            detail = f"only an active reservation can be renewed; reservation {reservation_id} is {state}"
            raise Problem(409, "wrong_state", detail, next_step="book a new one")
        ends_at = now + timedelta(seconds=seconds)
        before = booking.facts(reservation)
        if ends_at > reservation.ends_at:
            _require_free(reservation, ends_at, identity)
            if reservation.is_hard and not bookings.has_jobs(reservation.pk):
                limits.require_budget(reservation, now)
        live = ReservedDevice.objects.filter(reservation=reservation, ends_at=reservation.ends_at)
        reservation.ends_at, reservation.noticed_at = ends_at, None
        if reservation.is_hard:
            limits.require_within_quota(reservation, [_chosen(device) for device in live])
        live.update(ends_at=ends_at)
        reservation.save(update_fields=["ends_at", "noticed_at"])
        job_ids = list(reservation.uses.values_list("job_id", flat=True))
        notices.clear_notice(job_ids, Notice.RESERVATION_ENDS, "reservation_renewed", now)
        log.record("reservation.renew", _subject(reservation), before, booking.facts(reservation))
        booking.announce(reservation)
    return reservation


def end(reservation: Reservation, state: ReservationState, at: datetime, problem: str = "") -> None:
    """End a reservation in the caller's transaction, and free its devices from `at` on. Its jobs no longer belong to
    it, so they may continue anywhere. A job that insists on it and has never started keeps waiting, unless it was a
    soft one, which is a preference only. What remains to be charged is charged later (idle_charge.py)."""
    was_active = reservation.state == ReservationState.ACTIVE
    reservation.state, reservation.ended_at, reservation.problem = state, at, problem[:500]
    if was_active:
        reservation.ends_at = max(min(reservation.ends_at, at), reservation.starts_at)
    reservation.save(update_fields=["state", "ended_at", "problem", "ends_at", "is_no_show"])
    booking.end_devices(reservation, at if was_active else reservation.starts_at)
    leave_reservation(reservation.pk, with_waiting=not reservation.is_hard)
    booking.announce(reservation)


def _shortened(reservation: Reservation, identity: Identity) -> str:
    if reservation.user_id == identity.user_id:
        return "shortened by its owner"
    is_owner = identity.roles.get(reservation.tenant_id) == Role.OWNER
    return f"shortened by an {'owner of the tenant' if is_owner else 'admin'}"


def _cancel(reservation: Reservation, now: datetime) -> None:
    before = booking.facts(reservation)
    end(reservation, ReservationState.CANCELLED, now)
    log.record("reservation.cancel", _subject(reservation), before, booking.facts(reservation))


def _locked(reservation_id: int, identity: Identity) -> Reservation:
    """Return the row, locked together with all bookings. 404 or 403 unless the caller may change it."""
    locks.acquire_in_transaction(Lock.RESERVATIONS)
    reservation = find(reservation_id, identity)
    execute("SELECT 1 FROM scheduling_reservation WHERE id = %s FOR UPDATE", [reservation_id])
    role = identity.role_for(reservation.user_id or 0)
    identity.require(role, reservation.tenant_id, f"reservation {reservation_id}")
    reservation.refresh_from_db(fields=["state", "ends_at", "recurrence"])
    return reservation


def _require_free(reservation: Reservation, ends_at: datetime, identity: Identity) -> None:
    """Raise a 409 if another hard reservation has one of the devices before the new end, also on a node that is out of
    service."""
    own = ReservedDevice.objects.filter(reservation=reservation, is_live=True, ends_at=reservation.ends_at)
    others = ReservedDevice.objects.select_related("reservation").filter(
        device_id__in=own.values("device_id"), is_live=True, starts_at__gte=reservation.ends_at, starts_at__lt=ends_at
    )
    if first := others.order_by("starts_at", "pk").first():
        tenant_id = first.reservation.tenant_id
        name = f"reservation {first.reservation_id}" if identity.sees(tenant_id) else "a reservation of another tenant"
        detail = f"{name} has its GPUs from {readable(first.starts_at)}"
        raise Problem(409, "no_room", detail, next_step="renew it until then at most, or book other GPUs")


def _chosen(device: ReservedDevice) -> Chosen:
    return Chosen(device.device_id, device.node_id, device.cpu_milli, device.memory_mb)


def _subject(reservation: Reservation) -> str:
    return f"reservation {reservation.pk}"
