"""Reservations as the scheduler sees them: bookings for a snapshot, and the checks when its plan is committed."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from django.db import IntegrityError

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.db.sql import columns, execute, prepared, prepared_rows, query, rows
from gpusched.protocol.job_request import FieldError, JobRequest
from scheduling.engine.model import Booking, DeviceHold, RankPlacement, RunningJob
from tenants.auth.identity import Identity

# The devices that a reservation lost have ended early; one that has lost all is a booking without devices, not ended.
# Whether it has begun is a matter of time alone: `state` follows.
_BOOKINGS = """
    SELECT r.id, r.tenant_id, r.user_ids, r.is_hard, extract(epoch FROM r.starts_at)::float8,
           extract(epoch FROM r.ends_at)::float8, d.node_id, sum(d.cpu_milli)::bigint, sum(d.memory_mb)::bigint,
           array_agg(d.device_id ORDER BY d.device_id)
      FROM scheduling_reservation r
      LEFT JOIN scheduling_reserveddevice d ON d.reservation_id = r.id AND (d.is_live OR NOT r.is_hard)
       AND d.ends_at > now()
     WHERE r.state IN ('planned', 'active') AND r.ends_at > now()
       AND (%(nodes)s::bigint[] IS NULL OR r.id IN (
           SELECT reservation_id FROM scheduling_reserveddevice WHERE node_id = ANY(%(nodes)s::bigint[])))
     GROUP BY r.id, d.node_id ORDER BY r.id, d.node_id
"""
_INSIDE = """
    SELECT u.job_id, u.reservation_id, CASE WHEN r.is_hard THEN extract(epoch FROM r.ends_at)::float8 END
      FROM scheduling_reservationuse u JOIN scheduling_reservation r ON r.id = u.reservation_id
      JOIN jobs_all j ON j.id = u.job_id AND j.attempt = u.attempt
     WHERE r.state = 'active' AND r.ends_at > now() AND j.state IN ('scheduled', 'running', 'stopping')
"""

_HAS_JOBS = """
    SELECT 1 FROM scheduling_reservationuse u JOIN jobs_all j ON j.id = u.job_id AND j.attempt = u.attempt
     WHERE u.reservation_id = %s AND j.state IN ('scheduled', 'running', 'stopping') LIMIT 1
"""


def has_jobs(reservation_id: int) -> bool:
    """Return whether a job runs in a reservation."""
    return bool(rows(_HAS_JOBS, [reservation_id]))


def load_bookings(node_ids: Sequence[int] | None = None) -> tuple[Booking, ...]:
    """Return the open reservations as bookings, by id, with one rank per node. `node_ids`: only those that have devices
    of these nodes."""
    bookings: dict[int, Booking] = {}
    for row in prepared_rows(_BOOKINGS, {"nodes": None if node_ids is None else list(node_ids)}):
        reservation_id, tenant_id, user_ids, is_hard, starts_at, ends_at, node_id, cpu_milli, memory_mb, devices = row
        known = bookings.get(reservation_id)
        ranks = known.ranks if known else ()
        if node_id is not None:
            holds = tuple(DeviceHold(device_id) for device_id in devices)
            ranks = (*ranks, RankPlacement(len(ranks), node_id, cpu_milli, memory_mb, holds))
        bookings[reservation_id] = Booking(
            id=reservation_id,
            tenant_id=tenant_id,
            starts_at=starts_at,
            ends_at=ends_at,
            ranks=ranks,
            user_ids=frozenset(user_ids),
            is_hard=is_hard,
        )
    return tuple(bookings.values())


def mark_inside(running: tuple[RunningJob, ...], bookings: Sequence[Booking]) -> tuple[RunningJob, ...]:
    """Return the running jobs with the booking that each runs in. A hard one ends them at its end."""
    rows_inside = prepared_rows(_INSIDE) if bookings else []
    inside = {job_id: (booking_id, ends_at) for job_id, booking_id, ends_at in rows_inside}
    if not inside:
        return running
    return tuple(_inside(job, *inside[job.job_id]) if job.job_id in inside else job for job in running)


def _inside(job: RunningJob, booking_id: int, ends_at: float | None) -> RunningJob:
    ends = [end for end in (job.ends_by, ends_at) if end is not None]
    return replace(job, booking_id=booking_id, ends_by=min(ends, default=None))


class Start(NamedTuple):
    """An attempt that a plan starts, in a booking or (None) outside."""

    job_id: int
    attempt: int
    booking_id: int | None


_RECORD = """
    WITH used AS (
        INSERT INTO scheduling_reservationuse (reservation_id, job_id, attempt)
        SELECT r.id, t.job_id, t.attempt
          FROM unnest(%s::bigint[], %s::int[], %s::bigint[]) AS t (job_id, attempt, booking_id)
          JOIN scheduling_reservation r ON r.id = t.booking_id AND r.state IN ('planned', 'active')
        RETURNING reservation_id)
    UPDATE scheduling_reservation SET claimed_at = now()
     WHERE claimed_at IS NULL AND id IN (SELECT reservation_id FROM used)
"""
# A job in a hard reservation ends with that; another one at its time limit, after its grace period.
_RESERVED = """
    SELECT t.job_id
      FROM unnest(%s::bigint[], %s::bigint[]) AS t (job_id, device_id)
      JOIN jobs_all j ON j.id = t.job_id
      LEFT JOIN scheduling_reservationuse u ON u.job_id = j.id AND u.attempt = j.attempt
      LEFT JOIN scheduling_reservation own ON own.id = u.reservation_id AND own.is_hard
      JOIN scheduling_reserveddevice d ON d.is_live AND d.reservation_id IS DISTINCT FROM own.id
       AND int8range(d.device_id, d.device_id, '[]') && int8range(t.device_id, t.device_id, '[]')
       AND tstzrange(d.starts_at, d.ends_at) && tstzrange(now(), coalesce(own.ends_at,
               now() + make_interval(secs => j.max_runtime_seconds + j.grace_seconds)))
     LIMIT 1
"""


def record_starts(starts: Sequence[Start], holds: Sequence[tuple[int, int]]) -> None:
    """Record the starts in bookings, and raise IntegrityError if one of the `holds` (job, device) would be in the way
    of a hard reservation of others. Call it with the shared lock RESERVATIONS, after the allocation."""
    if inside := [start for start in starts if start.booking_id is not None]:
        execute(_RECORD, columns(inside, 3))
    if holds and (conflicts := prepared(_RESERVED, columns(holds, 2))):
        raise IntegrityError(f"a device for job {conflicts[0]['job_id']} was reserved under the plan")


_CROSSED = """
    SELECT r.id, r.tenant_id, d.starts_at,
           extract(epoch FROM d.starts_at - coalesce(j.started_at, now()))::float8 - j.grace_seconds AS seconds
      FROM nodes_ranks s JOIN jobs_all j ON j.id = s.job_id AND j.attempt = s.number
      JOIN nodes_allocations a ON a.assignment_id = s.id
      JOIN scheduling_reserveddevice d ON d.device_id = a.device_id AND d.is_live AND d.ends_at > now()
      JOIN scheduling_reservation r ON r.id = d.reservation_id
     WHERE s.job_id = ANY(%(jobs)s::bigint[]) AND s.state <> 'ended'
       AND NOT EXISTS (SELECT 1 FROM scheduling_reservationuse u
                         JOIN scheduling_reservation o ON o.id = u.reservation_id
                        WHERE u.job_id = j.id AND u.attempt = j.attempt AND o.is_hard AND o.state = 'active')
       AND d.starts_at < coalesce(j.started_at, now()) + make_interval(secs => %(seconds)s + j.grace_seconds)
     ORDER BY d.starts_at LIMIT 1
"""


class Crossed(NamedTuple):
    """A hard reservation that a longer job would cross. `seconds`: the longest time limit that does not."""

    reservation_id: int
    tenant_id: int
    starts_at: datetime
    seconds: float


def first_crossed(job_ids: Sequence[int], seconds: float) -> Crossed | None:
    """Return the first reservation of others on the devices of these jobs that a time limit of `seconds` would cross. A
    job in a hard reservation crosses none: it ends with that."""
    found = query(_CROSSED, {"jobs": list(job_ids), "seconds": seconds})
    return Crossed(*found[0].values()) if found else None


_USABLE = """
    SELECT r.gpus FROM scheduling_reservation r
     WHERE r.id = %s AND r.tenant_id = %s AND r.state IN ('planned', 'active')
       AND (r.user_ids = '{}' OR %s = ANY(r.user_ids))
"""


def why_not_in(request: JobRequest, tenant_id: int, identity: Identity) -> Problem | None:
    """Return why a request cannot run in the reservation that it insists on, or None."""
    if request.reservation is None:
        return None
    usable = rows(_USABLE, [request.reservation, tenant_id, identity.user_id])
    if not usable:
        message = (
            f"the tenant has no open reservation {request.reservation} that you may use; see gpusched reserve list"
        )
        return invalid([FieldError("reservation", "unknown_value", message)])
    if request.gpu_count > usable[0][0]:
        message = f"is more than the {usable[0][0]} GPUs of reservation {request.reservation}"
        return invalid([FieldError("gpu_count", "out_of_range", message)])
    return None
