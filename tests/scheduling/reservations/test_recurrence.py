"""Series of reservations: the times of their occurrences, what is stored of each, and their end."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from gpusched.lib.db.sql import execute
from gpusched.protocol.reservations import NewReservation
from scheduling.reservations import changes, recurrence
from scheduling.reservations.create import create
from scheduling.reservations.tables import Reservation
from tenants.models import Tenant
from tests.factories import identity_for, make_member, make_node, make_tenant, make_user
from tests.scheduling.reservations.booking import reserve

pytestmark = pytest.mark.django_db(transaction=True)


def test_recurring_reservation_is_booked_for_the_next_weeks(user, tenant):
    make_node(gpus=1)
    head = reserve(user, tenant, 60, 60, recurrence="weekly")
    series = list(Reservation.objects.filter(series_id=head.pk))
    assert [row.starts_at - head.starts_at for row in series] == [timedelta(weeks=n) for n in range(4)]
    later = timezone.now() + timedelta(weeks=2)
    assert recurrence.extend_series(later) == 2
    assert recurrence.extend_series(later) == 0


def test_series_stores_no_occurrences_missed_long_ago(user, tenant):
    make_node(gpus=1)
    head = reserve(user, tenant, 60, 60, recurrence="weekly")
    later = timezone.now() + timedelta(weeks=5200)
    assert recurrence.extend_series(later) == 8
    missed = Reservation.objects.filter(series_id=head.pk, state="refused")
    assert missed.count() == 4 and all(row.starts_at > later - timedelta(weeks=4) for row in missed)
    assert {row.problem for row in missed} == {
        "its time passed while the server did not run, or while the tenant was archived"
    }


def test_series_continues_after_the_clock_was_ahead(user, tenant):
    make_node(gpus=1)
    head = reserve(user, tenant, 60, 60, recurrence="weekly")
    recurrence.extend_series(timezone.now() + timedelta(weeks=520))
    soon = timezone.now() + timedelta(weeks=1)
    assert recurrence.extend_series(soon) == 1
    assert Reservation.objects.get(series_id=head.pk, starts_at=head.starts_at + timedelta(weeks=4)).state == "planned"
    assert recurrence.extend_series(soon) == 0


def test_occurrence_without_room_is_stored_as_refused_with_the_reason(user, tenant):
    make_node(gpus=1)
    blocker = reserve(user, tenant, 60 + 7 * 24 * 60, 60)
    head = reserve(user, tenant, 60, 60, recurrence="weekly")
    states = list(Reservation.objects.filter(series_id=head.pk).values_list("state", flat=True))
    assert states == ["planned", "refused", "planned", "planned"]
    [refused] = Reservation.objects.filter(series_id=head.pk, state="refused")
    assert f"reservation {blocker.pk} holds some until" in refused.problem


def test_later_occurrence_names_nothing_of_another_tenant(user, tenant):
    make_node(gpus=1)
    head = reserve(user, tenant, 60, 60, recurrence="weekly")
    other = make_tenant()
    reserve(make_member(other), other, 60 + 28 * 24 * 60, 60)
    assert recurrence.extend_series(timezone.now() + timedelta(weeks=1)) == 1
    [refused] = Reservation.objects.filter(series_id=head.pk, state="refused")
    assert "a reservation of another tenant holds some until" in refused.problem


def test_later_occurrence_is_refused_after_frequent_no_shows(user, tenant):
    make_node(gpus=1)
    head = reserve(user, tenant, 60, 60, recurrence="daily")
    no_shows = Reservation.objects.filter(series_id=head.pk, pk__lt=head.pk + 3)
    no_shows.update(state="released", ended_at=timezone.now(), is_no_show=True)
    assert recurrence.extend_series(timezone.now() + timedelta(days=1)) == 1
    assert "you may only book soft ones" in Reservation.objects.get(series_id=head.pk, state="refused").problem


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE auth_user SET is_active = false", "the account of its owner, {}, is disabled"),
        ("DELETE FROM tenants_membership", "its owner, {}, no longer has the role member in tenant {}"),
        ("UPDATE tenants_membership SET role = 'viewer'", "its owner, {}, no longer has the role member in tenant {}"),
    ],
)
def test_later_occurrence_is_refused_when_its_owner_may_no_longer_book(user, tenant, change, problem):
    make_node(gpus=1)
    head = reserve(user, tenant, 60, 60, recurrence="weekly")
    execute(change)
    assert recurrence.extend_series(timezone.now() + timedelta(weeks=1)) == 1
    [refused] = Reservation.objects.filter(series_id=head.pk, state="refused")
    assert refused.problem == problem.format(user.username, tenant.name)


def test_later_occurrence_of_an_admin_is_booked_without_a_membership(tenant):
    make_node(gpus=1)
    head = reserve(make_user("root", admin=True), tenant, 60, 60, recurrence="weekly")
    assert recurrence.extend_series(timezone.now() + timedelta(weeks=1)) == 1
    assert set(Reservation.objects.filter(series_id=head.pk).values_list("state", flat=True)) == {"planned"}


def test_occurrences_keep_the_time_of_day_when_the_clocks_change():
    start = datetime(2027, 3, 27, 8, tzinfo=UTC)  # 09:00 in Berlin, the day before its clocks go forward
    assert recurrence.next_start(start, "daily", "Europe/Berlin", start) == datetime(2027, 3, 28, 7, tzinfo=UTC)
    assert recurrence.next_start(start, "weekly", "UTC", start) == start + timedelta(weeks=1)


@pytest.mark.parametrize(("zone", "day"), [("Europe/Berlin", "03-27T02:30"), ("America/Santiago", "09-04T00:15")])
def test_time_of_day_that_one_day_lacks_is_back_on_the_next_day(zone, day):
    """In Berlin there is no 02:30 on 28 March, in Santiago no 00:15 on 5 September."""
    local = datetime.fromisoformat(f"2027-{day}").replace(tzinfo=ZoneInfo(zone))
    first = local.astimezone(UTC)
    second = recurrence.next_start(first, "daily", zone, first)
    third = recurrence.next_start(second, "daily", zone, first)
    assert second.astimezone(ZoneInfo(zone)) == local + timedelta(days=1, hours=1)
    assert third.astimezone(ZoneInfo(zone)) == local + timedelta(days=2)


def test_time_that_a_day_lacks_is_later_also_for_a_series_from_the_hour_that_came_twice():
    """In Berlin 02:30 came twice on 25 October 2026, and there is none on 28 March 2027."""
    zone = ZoneInfo("Europe/Berlin")
    first, before = datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=1), datetime(2027, 3, 27, 2, 30, tzinfo=zone)
    lacking = recurrence.next_start(before.astimezone(UTC), "daily", zone.key, first.astimezone(UTC))
    assert lacking.astimezone(zone) == datetime(2027, 3, 28, 3, 30, tzinfo=zone)


@pytest.mark.parametrize(("recurrence_", "days"), [("daily", 1), ("weekly", 7)])
def test_occurrence_that_midnight_moves_to_the_next_day_moves_no_others(recurrence_, days):
    """In Nuuk there is no 23:43 on Saturday, 27 March 2027: it is 00:43 on Sunday."""
    local = datetime(2027, 3, 27, 23, 43, tzinfo=ZoneInfo("America/Nuuk")) - timedelta(days=days)
    first = local.astimezone(UTC)
    moved = recurrence.next_start(first, recurrence_, "America/Nuuk", first)
    assert moved.astimezone(local.tzinfo) == datetime(2027, 3, 28, 0, 43, tzinfo=local.tzinfo)
    later = recurrence.next_start(moved, recurrence_, "America/Nuuk", first)
    assert later.astimezone(local.tzinfo) == local + timedelta(days=2 * days)


@pytest.mark.parametrize("hours", [24, 23.5])
def test_occurrence_of_a_whole_day_is_in_the_way_of_none_when_the_clocks_go_forward(user, tenant, hours):
    """A72: in Berlin the day until 28 March 2027, 08:00, has 23 hours."""
    make_node(gpus=1)
    Tenant.objects.filter(pk=tenant.pk).update(time_zone="Europe/Berlin")
    tenant.refresh_from_db()
    first, length = datetime(2027, 3, 26, 7, tzinfo=UTC), timedelta(hours=hours)
    wish = {"gpus": 1, "from_": first.isoformat(), "for_seconds": round(hours * 3600), "recurrence": "daily"}
    create(NewReservation(tenant=tenant.name, **wish), tenant, identity_for(user), now=first - timedelta(days=1))
    rows = Reservation.objects.order_by("starts_at")[:4]
    assert [row.state for row in rows] == ["planned"] * 4
    assert [row.ends_at - row.starts_at for row in rows] == [length, timedelta(hours=23), length, length]
    assert [row.devices.get().ends_at for row in rows] == [row.ends_at for row in rows]


def test_cancelled_series_books_no_more(user, tenant):
    make_node(gpus=1)
    head = reserve(user, tenant, recurrence="daily")
    changes.cancel(head.pk, identity_for(user), series=True)
    assert set(Reservation.objects.values_list("state", flat=True)) == {"cancelled"}
    assert recurrence.extend_series(timezone.now() + timedelta(weeks=2)) == 0


def test_cancelled_series_keeps_its_earlier_occurrences(user, tenant):
    make_node(gpus=1)
    head = reserve(user, tenant, recurrence="weekly")
    rows = Reservation.objects.filter(series_id=head.pk).order_by("starts_at")
    changes.cancel(rows[2].pk, identity_for(user), series=True)
    assert [row.state for row in rows] == ["planned", "planned", "cancelled", "cancelled"]
    assert recurrence.extend_series(timezone.now() + timedelta(weeks=2)) == 0


def test_series_that_is_cancelled_while_it_is_extended_books_no_more(user, tenant, monkeypatch):
    make_node(gpus=1)
    head = reserve(user, tenant, recurrence="daily")
    next_start = recurrence.next_start

    def cancelled_before(*args):
        monkeypatch.setattr(recurrence, "next_start", next_start)
        changes.cancel(head.pk, identity_for(user), series=True)
        return next_start(*args)

    monkeypatch.setattr(recurrence, "next_start", cancelled_before)
    assert recurrence.extend_series(timezone.now() + timedelta(weeks=1)) == 0
    assert set(Reservation.objects.values_list("state", "recurrence")) == {("cancelled", "")}
