"""Book reservations: choose devices, or refuse with what is in the way and the next free slot.

All bookings exclude each other by a lock; the cycles and longer time limits share it, so that no device gets a job and
a reservation at one moment. PostgreSQL's exclusion constraint decides in any case."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.lib.db import locks
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import execute, rows
from gpusched.lib.times import readable
from gpusched.protocol.reasons import fix_plurals
from scheduling.reservations import capacity, limits
from scheduling.reservations.choice import (
    Chosen,
    Holding,
    OfferedNode,
    Shape,
    Slot,
    choose,
    endless_blocker,
    largest,
    next_slot,
    suitable,
)
from scheduling.reservations.tables import OPEN_STATES, Reservation, ReservationState, ReservedDevice
from tenants.auth.identity import Identity


@dataclass(frozen=True)
class Wish:
    """A wanted reservation, checked but not yet booked."""

    shape: Shape
    starts_at: datetime
    ends_at: datetime

    @property
    def seconds(self) -> float:
        return (self.ends_at - self.starts_at).total_seconds()


def shape_of(reservation: Reservation) -> Shape:
    """Return the shape of a stored reservation."""
    return Shape(
        reservation.gpus,
        tuple(reservation.gpu_models),
        reservation.gpu_memory_mb,
        tuple(sorted(reservation.node_selector.items())),
        reservation.one_node,
    )


def book(reservation: Reservation, identity: Identity) -> Reservation:
    """Store the reservation (a new row) with its devices. Raise the problem if it is refused; nothing is stored then.

    403 beyond the tenant's quota or budget, or after too many no-shows; 409 with what is in the way; 422 if it can
    never fit."""
    with transaction.atomic():
        locks.acquire_in_transaction(Lock.RESERVATIONS)
        wish = Wish(shape_of(reservation), reservation.starts_at, reservation.ends_at)
        if reservation.is_hard:
            limits.require_no_shows_within_limit(reservation.user_id, identity)
            limits.require_budget(reservation)
        chosen = _choose(wish, reservation, identity)
        if reservation.is_hard:
            limits.require_within_quota(reservation, chosen)
        reservation.save(force_insert=True)
        add_devices(reservation, chosen, reservation.starts_at)
        log.record("reservation.create", f"reservation {reservation.pk}", None, facts(reservation))
        announce(reservation)
    return reservation


def find_slot(wish: Wish, *, is_hard: bool = True) -> Slot | None:
    """Return the next free slot of the wished length, from the wished start on. 422 if the shape can never fit."""
    nodes = _suitable(wish, soft=not is_hard)
    return next_slot(nodes, wish.shape, wish.starts_at.timestamp(), wish.seconds)


def add_devices(reservation: Reservation, chosen: Sequence[Chosen], starts_at: datetime) -> None:
    """Store chosen devices of a reservation, from `starts_at` to its end."""
    is_live = reservation.is_hard and reservation.state in OPEN_STATES
    ReservedDevice.objects.bulk_create(
        ReservedDevice(
            reservation=reservation,
            device_id=device.device_id,
            node_id=device.node_id,
            cpu_milli=device.cpu_milli,
            memory_mb=device.memory_mb,
            starts_at=starts_at,
            ends_at=reservation.ends_at,
            is_live=is_live,
            charged_to=starts_at,
            is_settled=not is_live,
        )
        for device in chosen
    )


_END_DEVICES = """
    UPDATE scheduling_reserveddevice d
       SET ends_at = e.ends_at, is_live = false, is_settled = d.is_settled OR d.charged_to >= e.ends_at
      FROM (SELECT id, greatest(starts_at, least(ends_at, %s)) AS ends_at FROM scheduling_reserveddevice
             WHERE reservation_id = %s) e
     WHERE e.id = d.id
"""


def end_devices(reservation: Reservation, at: datetime) -> None:
    """End the devices of a reservation at `at` at the latest. Those that had not begun yet were never reserved."""
    execute(_END_DEVICES, [at, reservation.pk])


def announce(reservation: Reservation) -> None:
    """Wake the scheduler and the pages."""
    events.changed("reservations", [reservation.pk])
    wake.request_cycle()


def facts(reservation: Reservation) -> dict[str, object]:
    """Return what the audit log stores of a reservation."""
    return {
        "tenant": reservation.tenant.name,
        "gpus": reservation.gpus,
        "from": readable(reservation.starts_at),
        "until": readable(reservation.ends_at),
        "kind": "hard" if reservation.is_hard else "soft",
        "state": str(reservation.state),
    }


def _choose(wish: Wish, reservation: Reservation, identity: Identity) -> tuple[Chosen, ...]:
    """Return devices for the wish. A soft reservation prefers free ones, but never is in the way of anything."""
    is_hard = reservation.is_hard
    starts_at, ends_at = wish.starts_at.timestamp(), wish.ends_at.timestamp()
    nodes = _suitable(wish, soft=not is_hard)
    if (chosen := choose(nodes, wish.shape, starts_at, ends_at)) is not None:
        return chosen
    if not is_hard:
        return choose([_emptied(node) for node in nodes], wish.shape, starts_at, ends_at) or ()
    limits.require_possible(reservation)
    raise _refusal(nodes, wish, identity)


def _suitable(wish: Wish, *, soft: bool) -> list[OfferedNode]:
    nodes = suitable(capacity.load_nodes(wish.starts_at, soft=soft), wish.shape)
    if (most := largest(nodes, wish.shape)) < wish.shape.gpus:
        has = "no node in service has" if wish.shape.one_node else "all nodes in service together do not have"
        raise Problem(
            422,
            "never_fits",
            fix_plurals(f"{has} {wish.shape.gpus} GPUs of this kind; the largest possible is {most}"),
            next_step=_step_for_too_many(nodes, wish.shape, most),
        )
    return nodes


def _step_for_too_many(nodes: Sequence[OfferedNode], shape: Shape, most: int) -> str:
    if largest(nodes, replace(shape, one_node=False)) >= shape.gpus:
        return "reserve fewer GPUs, or let them be on several nodes (--several-nodes, in REST one_node: false)"
    return "reserve fewer GPUs, or other ones" if most else "reserve other ones, or add a node with GPUs"


def _emptied(node: OfferedNode) -> OfferedNode:
    devices = tuple(type(d)(d.id, d.model, d.memory_mb, d.island) for d in node.devices)
    return OfferedNode(
        node.id, node.name, node.cpu_milli, node.memory_mb, node.device_count, devices, node.labels, node.taints
    )


def _refusal(nodes: Sequence[OfferedNode], wish: Wish, identity: Identity) -> Problem:
    """Return the 409 that names what is in the way and the next free slot."""
    slot = next_slot(nodes, wish.shape, wish.starts_at.timestamp(), wish.seconds)
    blocker = slot.blocker if slot else endless_blocker(nodes, wish.starts_at.timestamp())
    times = f"from {readable(wish.starts_at)} to {readable(wish.ends_at)}"
    detail = fix_plurals(f"{wish.shape.gpus} GPUs are not free {times}")
    if blocker is not None:
        detail += f": {describe_blocker(blocker, identity)}"
    if slot is None:
        step = "reserve fewer GPUs, or ask for time limits of the jobs that have none"
        return Problem(409, "no_room", f"{detail}; no free slot is known", next_step=step)
    at = datetime.fromtimestamp(slot.starts_at, UTC)
    return Problem(
        409,
        "no_room",
        f"{detail}; the next free slot begins at {readable(_rounded_up(at))}",
        next_step=f"reserve from {_rounded_up(at):%Y-%m-%dT%H:%M:%SZ}, or reserve fewer GPUs",
    )


def describe_blocker(blocker: Holding, identity: Identity) -> str:
    """Return the words for what is in the way. What belongs to tenants that the caller does not see has no name."""
    subject = f"{blocker.kind} {blocker.id}"
    if not identity.sees(blocker.tenant_id):
        subject = f"a {blocker.kind} of another tenant"
    if blocker.until == float("inf"):
        return f"{subject} has no time limit"
    return f"{subject} holds some until {readable(_rounded_up(datetime.fromtimestamp(blocker.until, UTC)))}"


def _rounded_up(at: datetime) -> datetime:
    """Return the time in whole seconds, not earlier: sentences have no fractions, and must hold."""
    return at if not at.microsecond else at.replace(microsecond=0) + timedelta(seconds=1)


def node_names(devices: Sequence[Chosen]) -> list[str]:
    """Return the names of the nodes of these devices."""
    ids = sorted({device.node_id for device in devices})
    return [name for (name,) in rows("SELECT name FROM nodes_all WHERE id = ANY(%s) ORDER BY name", [ids])]


def state_at(starts_at: datetime, now: datetime | None = None) -> ReservationState:
    """Return the state of a new reservation."""
    return ReservationState.ACTIVE if starts_at <= (now or timezone.now()) else ReservationState.PLANNED
