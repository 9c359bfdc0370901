"""Book reservations in tests, in minutes from now."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from gpusched.protocol.reservations import NewReservation
from scheduling.reservations.create import create
from scheduling.reservations.tables import Reservation, ReservedDevice
from tests.factories import identity_for


def at(minutes: float) -> str:
    """Return the time so many minutes from now."""
    return (timezone.now() + timedelta(minutes=minutes)).isoformat()


def reserve(
    user: Any, tenant: Any, start: float = 60, minutes: float = 60, gpus: int = 1, **fields: Any
) -> Reservation:
    """Book GPUs from `start` minutes from now on; 0: from now on."""
    request = NewReservation(
        tenant=tenant.name, gpus=gpus, from_=at(start) if start else None, for_seconds=round(minutes * 60), **fields
    )
    return create(request, tenant, identity_for(user))


def device_ids(reservation: Reservation) -> set[int]:
    return set(ReservedDevice.objects.filter(reservation=reservation).values_list("device_id", flat=True))
