"""Reservations with two real connections: what is booked at one moment never exceeds the capacity (A72)."""

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone
from psycopg.errors import DeadlockDetected, ExclusionViolation

from gpusched.lib.api.problems import Problem
from scheduling.reservations import recurrence
from scheduling.reservations.tables import Reservation, ReservedDevice
from tests.at_once import at_once
from tests.factories import make_member, make_node, make_tenant
from tests.scheduling.reservations.booking import reserve

pytestmark = pytest.mark.django_db(transaction=True)


def test_concurrent_bookings_never_share_a_device():
    """A72: four connections book the three devices of a node for one hour."""
    make_node(gpus=3)
    tenant = make_tenant()
    user = make_member(tenant)
    results = at_once(*[lambda: reserve(user, tenant, 60, 60) for _ in range(4)])
    assert sorted(type(result).__name__ for result in results) == ["Problem", *["Reservation"] * 3]
    [refused] = [result for result in results if isinstance(result, Problem)]
    assert refused.code == "no_room"
    assert ReservedDevice.objects.values("device_id").distinct().count() == 3


def test_two_workers_book_an_occurrence_of_a_series_once():
    make_node(gpus=1)
    tenant = make_tenant()
    reserve(make_member(tenant), tenant, 60, 60, recurrence="weekly")
    later = timezone.now() + timedelta(weeks=2)
    assert sorted(at_once(*[lambda: recurrence.extend_series(later)] * 2)) == [0, 2]


def test_concurrent_bookings_never_exceed_the_quota():
    make_node(gpus=8)
    tenant = make_tenant(quota={"max_gpus": 3})
    user = make_member(tenant)
    results = at_once(*[lambda: reserve(user, tenant, 60, 60) for _ in range(5)])
    assert sorted(type(result).__name__ for result in results) == ["Problem"] * 2 + ["Reservation"] * 3


def test_database_refuses_one_of_two_concurrent_rows_of_a_device():
    """A72: the constraint alone, without the lock of the service.

    An exclusion constraint is checked after the insert. When both rows are inserted before either is checked, each
    transaction waits for the other, and PostgreSQL ends one of them as a deadlock instead of a violation.
    """
    tenant = make_tenant()
    start = timezone.now() + timedelta(hours=1)
    reservation = Reservation.objects.create(tenant=tenant, gpus=1, starts_at=start, ends_at=start + timedelta(hours=1))

    def hold(minutes: float):
        def work():
            since = start + timedelta(minutes=minutes)
            with transaction.atomic():
                ReservedDevice.objects.create(
                    reservation=reservation, device_id=1, node_id=1, cpu_milli=0, memory_mb=0, starts_at=since,
                    ends_at=since + timedelta(minutes=30), is_live=True, charged_to=since,
                )  # fmt: skip

        return work

    results = at_once(hold(0), hold(20))
    [error] = [result for result in results if result is not None]
    assert isinstance(error.__cause__, ExclusionViolation | DeadlockDetected)
    assert "reserved_device_once" in str(error) or "scheduling_reserveddevice" in str(error)
    assert ReservedDevice.objects.count() == 1
    assert at_once(hold(60), hold(90)) == [None, None]
