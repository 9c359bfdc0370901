"""The calls for reservations and leases."""

from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict

from gpusched.client.transport.call import Call, get, moment, without_none, write
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.reservations import NextSlot, ReservationData

# Times without a zone are UTC.
Moment = str | datetime


class ReservationOptions(TypedDict, total=False):
    """Options of a reservation; docs/rest.md, Reservations."""

    tenant: str | None
    users: Sequence[str]
    gpu_model: str | None
    gpu_memory_mb: int | None
    node_selector: dict[str, str]
    one_node: bool
    recurrence: str | None
    kind: str
    source: str | None
    confidence: float | None
    note: str


def reserve(
    gpus: int,
    start: Moment | None,
    until: Moment | None,
    for_seconds: int | None,
    default_tenant: str | None,
    options: ReservationOptions,
    *,
    lease: bool = False,
    dry_run: bool = False,
) -> Call[ReservationData]:
    """Book GPUs, or a lease of GPUs from now on."""
    times = {"from": moment(start), "until": moment(until), "for_seconds": for_seconds}
    fields = {"tenant": default_tenant, **options, "lease": lease or None}
    body = without_none(gpus=gpus, **times, **fields)
    return write("POST", "/reservations", ReservationData, body, is_dry_run=dry_run)


def reservations(
    *,
    tenant: str | None = None,
    state: str | None = None,
    start: Moment | None = None,
    until: Moment | None = None,
) -> Call[Page[ReservationData]]:
    """Return reservations, newest first. `state`: one or several with commas. `start`, `until`: those that overlap with
    this time."""
    times = {"from": moment(start), "until": moment(until)}
    return get("/reservations", Page[ReservationData], tenant=tenant, state=state, **times)


def reservation(reservation_id: int) -> Call[ReservationData]:
    """Return a reservation with the jobs that run in it."""
    return get(f"/reservations/{reservation_id}", ReservationData)


def shorten_reservation(reservation_id: int) -> Call[ReservationData]:
    """End an active reservation, or a lease, now; its jobs keep running."""
    return write("POST", f"/reservations/{reservation_id}/shorten", ReservationData)


def cancel_reservation(reservation_id: int, *, series: bool = False) -> Call[ReservationData]:
    """Cancel a reservation. `series`: also its later occurrences, if it recurs."""
    return write("POST", f"/reservations/{reservation_id}/cancel", ReservationData, {"series": series})


def renew_reservation(reservation_id: int, for_seconds: int) -> Call[ReservationData]:
    """Let a lease, or an active reservation, end `for_seconds` from now."""
    return write("POST", f"/reservations/{reservation_id}/renew", ReservationData, {"for_seconds": for_seconds})


def next_slot(
    gpus: int,
    for_seconds: int,
    *,
    start: Moment | None = None,
    gpu_model: str | None = None,
    gpu_memory_mb: int | None = None,
    several_nodes: bool = False,
) -> Call[NextSlot]:
    """Return the next time at which the GPUs are free for so long. Books nothing."""
    shape = {"gpu_model": gpu_model, "gpu_memory_mb": gpu_memory_mb}
    several = "true" if several_nodes else None
    query = {"from": moment(start), "several_nodes": several, **shape}
    return get("/reservations/next-slot", NextSlot, gpus=gpus, for_seconds=for_seconds, **query)
