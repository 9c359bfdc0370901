"""Replace devices that a hard reservation lost, or notify its owner at once that it lacks them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from gpusched.lib.bus import events
from gpusched.lib.db.sql import execute, rows
from gpusched.protocol.reasons import fix_plurals
from scheduling.reservations import booking, bookings, capacity
from scheduling.reservations.booking import shape_of
from scheduling.reservations.choice import Chosen, choose, suitable
from scheduling.reservations.owner_notices import notify
from scheduling.reservations.tables import Reservation, ReservedDevice

# A cordoned or draining node keeps the jobs that it has. A device that is only dirty is free again in a moment.
_IN_SERVICE = """
    EXISTS (SELECT 1 FROM nodes_devices v JOIN nodes_all n ON n.id = v.node_id
             WHERE v.id = d.device_id AND n.removed_at IS NULL AND n.state = 'online'
               AND v.health IN ('ok', 'hot', 'dirty')
               AND (n.intent = 'open' OR EXISTS (SELECT 1 FROM nodes_allocations l WHERE l.device_id = v.id)))
"""
_LOST = f"""
    SELECT d.id FROM scheduling_reserveddevice d WHERE d.is_live AND d.ends_at > %s AND NOT {_IN_SERVICE} ORDER BY d.id
"""
_END_LOST = """
    UPDATE scheduling_reserveddevice
       SET is_live = false, ends_at = greatest(starts_at, %(now)s),
           is_settled = charged_to >= greatest(starts_at, %(now)s)
     WHERE id = ANY(%(ids)s::bigint[])
"""
_INCOMPLETE = """
    SELECT r.id FROM scheduling_reservation r
     WHERE r.is_hard AND r.state IN ('planned', 'active') AND r.ends_at > %s
       AND r.gpus > (SELECT count(*) FROM scheduling_reserveddevice d
                      WHERE d.reservation_id = r.id AND d.is_live AND d.ends_at > %s)
     ORDER BY r.starts_at, r.id
"""
_NAMES = """
    SELECT DISTINCT n.name FROM scheduling_reserveddevice d JOIN nodes_all n ON n.id = d.node_id
     WHERE d.reservation_id = %s AND NOT d.is_live ORDER BY n.name
"""


def replace_lost(now: datetime) -> int:
    """End reserved devices that are out of service, and choose others. Return how many reservations changed. Call it
    with the lock RESERVATIONS."""
    lost = [row_id for (row_id,) in rows(_LOST, [now])]
    if lost:
        execute(_END_LOST, {"now": now, "ids": lost})
    incomplete = [reservation_id for (reservation_id,) in rows(_INCOMPLETE, [now, now])]
    chosen = Reservation.objects.select_related("tenant").filter(pk__in=incomplete).order_by("starts_at", "pk")
    return sum(_complete(reservation, now) for reservation in chosen) if incomplete else 0


def _complete(reservation: Reservation, now: datetime) -> bool:
    """Choose the missing devices. If there are none, store the problem and notify the owner."""
    held = list(ReservedDevice.objects.filter(reservation=reservation, is_live=True, ends_at__gt=now))
    chosen = _missing_devices(reservation, held, now)
    if chosen is None and held and reservation.one_node and not bookings.has_jobs(reservation.pk):
        chosen = _on_another_node(reservation, held, now)
    if chosen is not None:
        booking.add_devices(reservation, chosen, max(now, reservation.starts_at))
        problem = ""
    else:
        names = ", ".join(name for (name,) in rows(_NAMES, [reservation.pk]))
        problem = fix_plurals(
            f"lacks {reservation.gpus - len(held)} of its {reservation.gpus} GPUs: {names} went out of service, and no "
            "others are free"
        )
    if chosen is None and problem == reservation.problem:
        return False
    Reservation.objects.filter(pk=reservation.pk).update(problem=problem[:500])
    events.changed("reservations", [reservation.pk])
    if chosen is None:
        notify(reservation, "lost_gpus", problem, f"lacks:{now.isoformat()}")
    else:
        booking.announce(reservation)
    return True


def _missing_devices(
    reservation: Reservation, held: Sequence[ReservedDevice], now: datetime
) -> tuple[Chosen, ...] | None:
    nodes = capacity.load_nodes(max(now, reservation.starts_at))
    shape = shape_of(reservation)
    own_nodes = {device.node_id for device in held}
    matching = [node for node in suitable(nodes, shape) if not (shape.one_node and own_nodes) or node.id in own_nodes]
    missing = replace(shape, gpus=shape.gpus - len(held))
    return choose(matching, missing, max(now, reservation.starts_at).timestamp(), reservation.ends_at.timestamp())


def _on_another_node(
    reservation: Reservation, held: Sequence[ReservedDevice], now: datetime
) -> tuple[Chosen, ...] | None:
    """Give up the remaining devices, if all of them are free on another node."""
    nodes = suitable(capacity.load_nodes(max(now, reservation.starts_at)), shape_of(reservation))
    starts_at = max(now, reservation.starts_at).timestamp()
    chosen = choose(nodes, shape_of(reservation), starts_at, reservation.ends_at.timestamp())
    if chosen is not None:
        execute(_END_LOST, {"now": now, "ids": [device.pk for device in held]})
    return chosen
