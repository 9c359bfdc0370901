"""Books soft reservations for tenants that submit at the same hours of most weeks."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from statistics import median_low
from typing import NamedTuple

from django.conf import settings
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import rows
from gpusched.protocol.reservations import NewReservation
from scheduling.reservations.create import create
from scheduling.reservations.tables import Reservation, Source
from tenants.auth.identity import identity_of_server
from tenants.models import Tenant

WEEKS, MIN_WEEKS = 5, 4
HOUR_SECONDS, WEEK_HOURS = 3600, 168
# Reservations are booked for the hours that begin within this time.
AHEAD_HOURS = 24
_SUBMITS = """
    SELECT tenant_id, floor(extract(epoch FROM submitted_at) / 3600)::bigint AS hour, sum(gpu_count)::bigint
      FROM jobs_all
     WHERE gpu_count > 0 AND submitted_at > %(now)s - interval '5 weeks' AND submitted_at <= %(now)s
     GROUP BY 1, 2
"""


class Submits(NamedTuple):
    """The GPUs that a tenant requested in an hour since the epoch."""

    tenant_id: int
    hour: int
    gpus: int


class Habit(NamedTuple):
    """An hour ahead at which a tenant submits in most weeks. `gpus`: the lower median of those weeks."""

    tenant_id: int
    hour: int
    gpus: int
    weeks: int


def habits(submits: Iterable[Submits], hour_now: int) -> list[Habit]:
    """Return the hours ahead at which a tenant submitted in at least MIN_WEEKS of the last WEEKS weeks. Pure."""
    by_tenant: dict[int, dict[int, int]] = {}
    for entry in submits:
        by_tenant.setdefault(entry.tenant_id, {})[entry.hour] = entry.gpus
    result = []
    for tenant_id, gpus_by_hour in sorted(by_tenant.items()):
        for hour in range(hour_now + 1, hour_now + 1 + AHEAD_HOURS):
            earlier = [hour - week * WEEK_HOURS for week in range(1, WEEKS + 1)]
            gpus = [gpus_by_hour[past] for past in earlier if past in gpus_by_hour]
            if len(gpus) >= MIN_WEEKS:
                result.append(Habit(tenant_id, hour, median_low(gpus), len(gpus)))
    return result


def book_regular(now: datetime | None = None) -> int:
    """Book a soft reservation for each habit that has none yet. Return how many; those without room are left out."""
    if not settings.ENV.prewarming:
        return 0
    now = now or timezone.now()
    submits = [Submits(*row) for row in rows(_SUBMITS, {"now": now})]
    expected = habits(submits, int(now.timestamp()) // HOUR_SECONDS)
    tenants = {
        tenant.pk: tenant
        for tenant in Tenant.objects.filter(pk__in={habit.tenant_id for habit in expected}, archived_at=None)
    }
    booked = set(
        Reservation.objects.filter(source=Source.PREWARM, starts_at__gt=now, tenant__in=tenants).values_list(
            "tenant_id", "starts_at"
        )
    )
    wanted = [(habit, datetime.fromtimestamp(habit.hour * HOUR_SECONDS, UTC)) for habit in expected]
    return sum(
        _book(habit, starts_at, tenants[habit.tenant_id], now)
        for habit, starts_at in wanted
        if habit.tenant_id in tenants and (habit.tenant_id, starts_at) not in booked
    )


def _book(habit: Habit, starts_at: datetime, tenant: Tenant, now: datetime) -> int:
    request = NewReservation(
        tenant=tenant.name,
        gpus=habit.gpus,
        from_=starts_at.isoformat(),
        for_seconds=int(timedelta(hours=1).total_seconds()),
        one_node=False,
        kind="soft",
        source="prewarm",
        confidence=habit.weeks / WEEKS,
        note=f"submits at this hour in {habit.weeks} of the last {WEEKS} weeks",
    )
    try:
        create(request, tenant, identity_of_server(), now=now)
    except Problem:
        return 0  # a preference without room for it: the next round tries again
    return 1
