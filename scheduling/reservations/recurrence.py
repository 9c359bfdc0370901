"""Recurring reservations: the times of their occurrences, and the rows of the next weeks."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.lib.db import locks
from gpusched.lib.db.locks import Lock
from scheduling.reservations import booking
from scheduling.reservations.tables import OPEN_STATES, Recurrence, Reservation, ReservationState, ReservedDevice
from tenants.auth.identity import Identity, identity_of_server, identity_of_user
from tenants.people import members

DAYS = {Recurrence.DAILY: 1, Recurrence.WEEKLY: 7}


def next_start(starts_at: datetime, recurrence: str, zone: str, first_at: datetime) -> datetime:
    """Return the start of the occurrence after `starts_at`: at the time of day of the first one in the tenant's time
    zone, also over a change of the clocks. On a day that lacks this time, it is later by the hour that is skipped."""
    local = ZoneInfo(zone)
    at = first_at.astimezone(local).time().replace(fold=0)  # else that time would be earlier
    day = starts_at.astimezone(local).date()
    # Where the clocks go forward to midnight, the later time is on the next day.
    if datetime.combine(day - timedelta(days=1), at, local).astimezone(UTC) == starts_at:
        day -= timedelta(days=1)
    following = day + timedelta(days=DAYS[Recurrence(recurrence)])
    return datetime.combine(following, at, local).astimezone(starts_at.tzinfo)


def extend_series(now: datetime | None = None) -> int:
    """Book the occurrences of the next weeks of every series. Return how many rows were written.

    Only one worker at a time does: two would book an occurrence twice."""
    with locks.locked(Lock.SERIES):
        return _extend_series(now or timezone.now())


def _extend_series(now: datetime) -> int:
    # Occurrences after the horizon are of a clock that was ahead; a series continues from those before it.
    latest = (
        Reservation.objects.filter(starts_at__lte=now + _ahead())
        .exclude(recurrence="")
        .exclude(series=None)
        .order_by("series_id", "-starts_at")
        .distinct("series_id")
        .select_related("tenant", "series")
    )
    return sum(book_following(reservation, now) for reservation in latest)


def book_following(reservation: Reservation, now: datetime) -> int:
    """Book the occurrences that follow this one, within the weeks of the setting, by the present rights of its owner.
    One for which there is no room, or that its owner may not book, is stored as refused, with the reason; one that was
    missed longer ago is not stored. Return how many rows were written."""
    latest, count = reservation, 0
    first = reservation.series or reservation
    while latest.recurrence and not latest.tenant.archived_at:
        starts_at = _next_to_store(latest, first, now - _ahead())
        if starts_at > now + _ahead():
            break
        with transaction.atomic():
            locks.acquire_in_transaction(Lock.RESERVATIONS)
            latest.refresh_from_db(fields=["recurrence"])
            if not latest.recurrence:  # the series was cancelled meanwhile
                break
            latest, count = _book_occurrence(latest, starts_at, now), count + 1
    return count


def _next_to_store(latest: Reservation, first: Reservation, since: datetime) -> datetime:
    """Return the start of the next occurrence at `since` or later."""
    starts_at = latest.starts_at
    while True:
        starts_at = next_start(starts_at, latest.recurrence, latest.tenant.time_zone, first.starts_at)
        if starts_at >= since:
            return starts_at


def _book_occurrence(previous: Reservation, starts_at: datetime, now: datetime) -> Reservation:
    following = _copy(previous, starts_at)
    # Not the server's: its reasons would name the jobs of other tenants, and no-shows would never count.
    identity = identity_of_user(following.user) if following.user else identity_of_server()
    try:
        if starts_at <= now:
            detail = "its time passed while the server did not run, or while the tenant was archived"
            raise Problem(409, "no_room", detail)
        with transaction.atomic():
            _require_right(following, identity)
            is_cut = _end_before(previous, starts_at)
            booking.book(following, identity)
    except Problem as problem:
        refused = _copy(previous, starts_at)
        refused.state, refused.problem, refused.ended_at = ReservationState.REFUSED, problem.detail[:500], now
        refused.save(force_insert=True)
        return refused
    if is_cut:
        previous.ends_at = starts_at
    return following


def _require_right(reservation: Reservation, identity: Identity) -> None:
    """Raise a 403 if the owner may no longer book for the tenant."""
    user = reservation.user
    if user is not None and (why := members.why_owner_starts_nothing(user, reservation.tenant, identity)):
        raise Problem(403, "not_permitted", why, next_step="book the series as another user")


def _end_before(previous: Reservation, starts_at: datetime) -> bool:
    """End an occurrence when the following one begins; return whether that is earlier. A day on which the clocks go
    forward has 23 hours, so one of a whole day would be in the way of the next. A renewed one keeps its end."""
    longest = timedelta(days=DAYS[Recurrence(previous.recurrence)])
    if previous.state not in OPEN_STATES or not starts_at < previous.ends_at <= previous.starts_at + longest:
        return False
    Reservation.objects.filter(pk=previous.pk).update(ends_at=starts_at)
    ReservedDevice.objects.filter(reservation=previous, is_live=True, ends_at__gt=starts_at).update(ends_at=starts_at)
    booking.announce(previous)
    return True


def _ahead() -> timedelta:
    return timedelta(weeks=settings.ENV.reservation_weeks_ahead)


def _copy(previous: Reservation, starts_at: datetime) -> Reservation:
    names = (
        "tenant", "user", "user_ids", "gpus", "gpu_models", "gpu_memory_mb", "node_selector", "one_node", "recurrence",
        "series", "is_hard", "source", "confidence", "note",
    )  # fmt: skip
    values = {name: getattr(previous, name) for name in names}
    return Reservation(starts_at=starts_at, ends_at=starts_at + (previous.ends_at - previous.starts_at), **values)
