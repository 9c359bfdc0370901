"""The life of reservations: they begin, are released if no job uses them, warn their jobs, and end.

The engine compares times itself, so a job starts in a reservation at its start, whenever this review runs."""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from gpusched.lib.bus import wake
from gpusched.lib.db import locks
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import database_now, query, retry_atomic, rows
from gpusched.lib.times import readable
from gpusched.protocol.reasons import EndReason, Notice
from jobs.lifecycle import notices, states
from nodes.held_idle import HeldIdlePolicy
from scheduling.reservations import changes, idle_charge, replacement
from scheduling.reservations.owner_notices import notify
from scheduling.reservations.tables import OPEN_STATES, Reservation, ReservationState

_ANY_OPEN = """
    SELECT EXISTS (SELECT 1 FROM scheduling_reservation WHERE state IN ('planned', 'active'))
        OR EXISTS (SELECT 1 FROM scheduling_reserveddevice WHERE NOT is_settled)
"""


def review(idle: HeldIdlePolicy, now: datetime | None = None) -> None:
    """Take every step that is due. `now`: the database's time if it is not passed in."""
    [(is_needed,)] = rows(_ANY_OPEN)
    if is_needed:
        retry_atomic(lambda: _review(idle, now))


def _review(idle: HeldIdlePolicy, at: datetime | None) -> None:
    locks.acquire_in_transaction(Lock.RESERVATIONS)
    now = at or database_now()
    _cancel_of_archived_tenants(now)
    _begin(now)
    replacement.replace_lost(now)
    _release_unclaimed(now)
    _reclaim_idle(idle, now)
    _warn_jobs(now)
    _stop_jobs(_ENDING, now, "the end of reservation")
    _stop_jobs(_IN_THE_WAY, now, "the start of reservation")
    _expire(now)
    idle_charge.settle(now)


def _open(**conditions: Any) -> QuerySet[Reservation]:
    return Reservation.objects.select_related("tenant").filter(**conditions).order_by("pk")


def _cancel_of_archived_tenants(now: datetime) -> None:
    for reservation in _open(state__in=OPEN_STATES, tenant__archived_at__isnull=False):
        changes.end(reservation, ReservationState.CANCELLED, now, "its tenant was archived")


def _begin(now: datetime) -> None:
    for reservation in _open(state=ReservationState.PLANNED, starts_at__lte=now, ends_at__gt=now):
        reservation.state = ReservationState.ACTIVE
        reservation.save(update_fields=["state"])
        notify(reservation, "starting", f"has begun and lasts until {readable(reservation.ends_at)}", "starting")
        wake.request_cycle()


def _release_unclaimed(now: datetime) -> None:
    """Release hard reservations in which no job has started. It counts as a no-show unless the reservation itself lacks
    devices. Leases begin without a job; `_reclaim_idle` is for them. Only time in which the server ran counts: without
    it no job can be submitted."""
    minutes = settings.ENV.reservation_claim_minutes
    due = now - timedelta(minutes=minutes)
    if rows("SELECT 1 FROM nodes_listener WHERE since > %s", [due]):
        return
    unclaimed = {"is_hard": True, "is_lease": False, "claimed_at": None}
    for reservation in _open(state=ReservationState.ACTIVE, starts_at__lte=due, **unclaimed):
        reservation.is_no_show = not reservation.problem
        text = f"no job started in it within {minutes:g} minutes"
        changes.end(reservation, ReservationState.RELEASED, now, text)
        notify(reservation, "released", f"was released: {text}", "released")


# Active hard reservations without a job: since when. Retention deletes earlier attempts of a job before its use.
_IDLE = """
    SELECT r.id, greatest(r.starts_at, max(a.ended_at)) AS since
      FROM scheduling_reservation r
      LEFT JOIN scheduling_reservationuse u ON u.reservation_id = r.id
      LEFT JOIN jobs_attempts a ON a.job_id = u.job_id AND a.number = u.attempt
     WHERE r.state = 'active' AND r.is_hard AND (r.is_lease OR r.claimed_at IS NOT NULL)
     GROUP BY r.id HAVING count(a.number) = count(a.ended_at)
"""


def _reclaim_idle(rule: HeldIdlePolicy, now: datetime) -> None:
    """Notify the owners of idle reservations, and release idle leases under the policy `enforce`, by the rule for held
    but idle GPUs. Under `off` none counts as idle, which voids a release that was announced."""
    since = {} if rule.policy == "off" else {row["id"]: row["since"] for row in query(_IDLE)}
    for reservation in _open(state=ReservationState.ACTIVE, is_hard=True):
        idle_since = since.get(reservation.pk)
        if idle_since is None or now - idle_since < timedelta(minutes=rule.minutes):
            _note_idle(reservation, None)
        elif not (reservation.is_lease and rule.policy == "enforce"):
            if reservation.idle_noticed_at is None:
                _notify_idle(reservation, idle_since, now, "")
            _note_idle(reservation, idle_since)
        elif reservation.idle_noticed_at is None or reservation.idle_noticed_at <= idle_since:
            _note_idle(reservation, now)
            release_at = now + timedelta(minutes=rule.grace_minutes)
            then = f"; it is released at {readable(release_at)} unless a job starts"
            _notify_idle(reservation, idle_since, now, then)
        elif now - reservation.idle_noticed_at >= timedelta(minutes=rule.grace_minutes):
            text = f"it was idle since {readable(idle_since)}"
            changes.end(reservation, ReservationState.RELEASED, now, text)
            notify(reservation, "released", f"was released: {text}", "released")


def _note_idle(reservation: Reservation, at: datetime | None) -> None:
    """Store when the owner was warned of a release, or since when the reservation is idle if none is announced: a
    policy that becomes `enforce` must not release it without a warning."""
    if reservation.idle_noticed_at != at:
        reservation.idle_noticed_at = at
        reservation.save(update_fields=["idle_noticed_at"])


def _notify_idle(reservation: Reservation, since: datetime, now: datetime, then: str) -> None:
    text = f"has been idle since {readable(since)}{then}"
    notify(reservation, "idle", text, f"idle:{now.isoformat()}")


# Jobs of active hard reservations: attempts that run there now, and started after the latest warning.
_JOBS_INSIDE = """
    SELECT j.id, j.attempt, j.requeue
      FROM scheduling_reservationuse u JOIN jobs_all j ON j.id = u.job_id AND j.attempt = u.attempt
     WHERE u.reservation_id = %s AND j.state = 'running' AND j.started_at > coalesce(%s, '-infinity'::timestamptz)
     ORDER BY j.id
"""


def _warn_jobs(now: datetime) -> None:
    """Warn the jobs in reservations that end soon, in the place of a reason and as an event."""
    due = now + timedelta(minutes=settings.ENV.reservation_notice_minutes)
    for reservation in _open(state=ReservationState.ACTIVE, is_hard=True, ends_at__lte=due):
        running = rows(_JOBS_INSIDE, [reservation.pk, reservation.noticed_at])
        evidence = {"reservation": reservation.pk, "at": reservation.ends_at.isoformat(timespec="seconds")}
        then = {True: "returns to the queue", False: "ends as preempted"}
        entries = [
            (job_id, attempt, "reservation_ends", {**evidence, "then": then[requeue]})
            for job_id, attempt, requeue in running
        ]
        notices.set_notice(entries, Notice.RESERVATION_ENDS, now)
        if running:
            reservation.noticed_at = now
            reservation.save(update_fields=["noticed_at"])


# So early that their grace periods are over at the end.
_ENDING = """
    SELECT j.id, j.requeue, r.id AS reservation_id
      FROM scheduling_reservation r JOIN scheduling_reservationuse u ON u.reservation_id = r.id
      JOIN jobs_all j ON j.id = u.job_id AND j.attempt = u.attempt
     WHERE r.state = 'active' AND r.is_hard AND j.state IN ('scheduled', 'running')
       AND r.ends_at <= %(now)s + make_interval(secs => j.grace_seconds) ORDER BY j.id
"""
# Jobs end at their time limits before a reservation of their devices. But one that started late, or whose agent was
# silent, may run a little longer.
_IN_THE_WAY = """
    SELECT DISTINCT j.id, j.requeue, d.reservation_id
      FROM scheduling_reserveddevice d JOIN nodes_allocations l ON l.device_id = d.device_id
      JOIN nodes_ranks s ON s.id = l.assignment_id JOIN jobs_all j ON j.id = s.job_id
      LEFT JOIN scheduling_reservationuse u ON u.job_id = j.id AND u.attempt = s.number
     WHERE d.is_live AND d.reservation_id IS DISTINCT FROM u.reservation_id AND j.state IN ('scheduled', 'running')
       AND d.starts_at <= %(now)s + make_interval(secs => j.grace_seconds) AND d.ends_at > %(now)s ORDER BY j.id
"""


def _stop_jobs(sql: str, now: datetime, cause: str) -> None:
    """Stop jobs; they return to the queue unless they may not."""
    due = query(sql, {"now": now})
    if not due:
        return
    states.lock_jobs([row["id"] for row in due])
    for row in due:
        reason = EndReason.REQUEUED if row["requeue"] else EndReason.PREEMPTED
        states.stop([row["id"]], reason, _stop_evidence(row, cause), "scheduler")


def _stop_evidence(row: dict[str, Any], cause: str) -> dict[str, Any]:
    by = f"{cause} {row['reservation_id']}"
    return {"by": by} if row["requeue"] else {"by": by, "why": "cannot wait", "rule": "reservation"}


def _expire(now: datetime) -> None:
    for reservation in _open(state__in=OPEN_STATES, ends_at__lte=now):
        changes.end(reservation, ReservationState.EXPIRED, reservation.ends_at, reservation.problem)
