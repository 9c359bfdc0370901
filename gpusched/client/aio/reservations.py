"""The methods of a client for reservations and leases."""

from typing import Unpack

from gpusched.client.aio.connection import AsyncConnection, items, single
from gpusched.client.calls import booking
from gpusched.protocol.rest.reservations import ReservationData


class AsyncReservationMethods(AsyncConnection):
    """The methods of a client for reservations and leases."""

    reservations = items(booking.reservations)
    reservation = single(booking.reservation)
    shorten_reservation = single(booking.shorten_reservation)
    cancel_reservation = single(booking.cancel_reservation)
    renew_reservation = single(booking.renew_reservation)
    next_slot = single(booking.next_slot)

    async def reserve(
        self,
        gpus: int,
        *,
        start: booking.Moment | None = None,
        until: booking.Moment | None = None,
        for_seconds: int | None = None,
        dry_run: bool = False,
        **options: Unpack[booking.ReservationOptions],
    ) -> ReservationData:
        """Book GPUs from `start` (default: now) `until` a time or `for_seconds`. Raises Conflict, which names what is
        in the way and the next free slot, if they are not free. `dry_run`: check it, and book nothing."""
        tenant = self.config.tenant
        call = booking.reserve(gpus, start, until, for_seconds, tenant, options, dry_run=dry_run)
        return await self.send(call)

    async def lease(
        self, gpus: int, for_seconds: int, **options: Unpack[booking.ReservationOptions]
    ) -> ReservationData:
        """Take GPUs from now on without a job; see `renew_reservation` and `shorten_reservation`."""
        tenant = self.config.tenant
        return await self.send(booking.reserve(gpus, None, None, for_seconds, tenant, options, lease=True))
