"""Tenants that submit at the same hour of most weeks get soft reservations (A74)."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import override_settings

from gpusched.env import read
from jobs.models import Job
from scheduling.reservations.regular import WEEK_HOURS, Habit, Submits, book_regular, habits
from scheduling.reservations.tables import Reservation, Source
from tests.factories import make_node, submit

HOUR_NOW = 500_000


def weekly(weeks, gpus=2, tenant_id=1):
    return [Submits(tenant_id, HOUR_NOW + 3 - week * WEEK_HOURS, gpus + week) for week in weeks]


@pytest.mark.parametrize(
    ("weeks", "expected"),
    [
        ([1, 2, 3, 4, 5], [Habit(1, HOUR_NOW + 3, 5, 5)]),
        ([1, 2, 4, 5], [Habit(1, HOUR_NOW + 3, 4, 4)]),
        ([1, 3, 5], []),
    ],
)
def test_habit_needs_four_of_five_weeks(weeks, expected):
    assert habits(weekly(weeks), HOUR_NOW) == expected


@pytest.fixture
def regular(user, tenant):
    """Let the tenant have submitted two GPUs at the same hour, two hours from now, in four of the last five weeks."""
    make_node(gpus=4)
    now = datetime.now(UTC)
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    for week in (1, 2, 3, 5):
        job_id = submit(user, tenant, gpu_count=2)
        Job.objects.filter(pk=job_id).update(submitted_at=hour - timedelta(weeks=week, minutes=-5))
    return tenant, hour, now


@pytest.mark.django_db(transaction=True)
def test_regular_tenant_gets_one_soft_reservation(regular):
    """A74: it costs nothing, and repeated rounds book it once."""
    tenant, hour, now = regular
    assert (book_regular(now), book_regular(now)) == (1, 0)
    [reservation] = Reservation.objects.all()
    assert (reservation.tenant, reservation.starts_at, reservation.gpus) == (tenant, hour, 2)
    assert (reservation.is_hard, reservation.source, reservation.confidence) == (False, Source.PREWARM, 0.8)


@pytest.mark.django_db(transaction=True)
def test_nothing_is_booked_when_prewarming_is_off(regular):
    """A74"""
    with override_settings(ENV=read({"GPUSCHED_PREWARMING": "0"})):
        assert book_regular(regular[2]) == 0
    assert not Reservation.objects.exists()
