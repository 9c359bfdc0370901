"""Limit what a tenant may reserve: GPUs within its quota and budget, and hard reservations only without frequent
no-shows."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query, rows
from gpusched.lib.times import readable
from gpusched.protocol.job_request import FieldError
from scheduling.engine.board.shapes import is_model
from scheduling.reservations.choice import Chosen
from scheduling.reservations.tables import Reservation
from tenants.auth.identity import Identity
from tenants.billing import budgets

NO_SHOW_DAYS = 30

_QUOTA = "SELECT max_gpus, max_gpus_per_user, max_gpus_by_model FROM tenants_quotas WHERE tenant_id = %s"
# The hard reservations of a tenant at the same time: when, by whom, and how many GPUs of which model.
_RESERVED = """
    SELECT greatest(r.starts_at, %(start)s), r.user_id, m.model, count(*)
      FROM scheduling_reservation r JOIN scheduling_reserveddevice d ON d.reservation_id = r.id
      LEFT JOIN nodes_devices m ON m.id = d.device_id
     WHERE r.tenant_id = %(tenant)s AND d.is_live AND d.starts_at < %(end)s AND d.ends_at > %(start)s
       AND r.id <> %(own)s
     GROUP BY r.id, m.model
"""
_AT = """
    SELECT r.user_id, m.model, count(*)
      FROM scheduling_reservation r JOIN scheduling_reserveddevice d ON d.reservation_id = r.id
      LEFT JOIN nodes_devices m ON m.id = d.device_id
     WHERE r.tenant_id = %(tenant)s AND d.is_live AND d.starts_at <= %(at)s AND d.ends_at > %(at)s AND r.id <> %(own)s
     GROUP BY r.user_id, m.model
"""
_NO_SHOWS = """
    SELECT count(*) FROM scheduling_reservation WHERE user_id = %s AND is_no_show AND ended_at > %s
"""


def require_no_shows_within_limit(user_id: int | None, identity: Identity, now: datetime | None = None) -> None:
    """Raise a 403 if the user has let too many hard reservations lapse. Admins may book in any case."""
    if user_id is None or identity.can_administer:
        return
    maximum = settings.ENV.reservation_max_no_shows
    since = (now or timezone.now()) - timedelta(days=NO_SHOW_DAYS)
    [(count,)] = rows(_NO_SHOWS, [user_id, since])
    if maximum and count >= maximum:
        raise Problem(
            403,
            "too_many_no_shows",
            f"{count} of your reservations of the last {NO_SHOW_DAYS} days were not used: you may only book soft ones",
            next_step='book it with kind "soft", or ask an admin to book it',
            errors=[FieldError("kind", "too_many_no_shows", "must be soft")],
        )


def require_budget(reservation: Reservation, now: datetime | None = None) -> None:
    """Raise a 403 if the tenant's budget is used up at the start, so that no job could start in the reservation. Old
    use leaves a rolling budget each day."""
    now = now or timezone.now()
    budget = budgets.hard_budgets().get(reservation.tenant_id)
    if budget is None or budget.state != "hard_exceeded":
        return
    renews_at = budget.renews_at or now + timedelta(days=1)
    if reservation.starts_at < renews_at:
        raise Problem(
            403,
            "budget_used_up",
            budget.sentence,
            next_step=f"reserve from {readable(renews_at)} on, or ask an admin to raise the budget",
            errors=[FieldError("gpus", "budget_used_up", budget.sentence)],
        )


def require_possible(reservation: Reservation) -> None:
    """Raise a 403 if the reservation alone exceeds a limit of its tenant: at no other time would it be accepted."""
    for limits in query(_QUOTA, [reservation.tenant_id]):
        for dimension, name in (("GPUs", "max_gpus"), ("GPUs per user", "max_gpus_per_user")):
            if limits[name] is not None and reservation.gpus > limits[name]:
                raise _exceeded(reservation, dimension, reservation.gpus, limits[name])


def require_within_quota(reservation: Reservation, chosen: Sequence[Chosen]) -> None:
    """Raise a 403 if the tenant's hard reservations would exceed its limits of GPUs at any moment of this one: jobs
    beyond them could not start."""
    quota = query(_QUOTA, [reservation.tenant_id])
    if not quota:
        return
    [limits] = quota
    params = {"tenant": reservation.tenant_id, "start": reservation.starts_at, "end": reservation.ends_at,
              "own": reservation.pk or 0}  # fmt: skip
    moments = sorted({reservation.starts_at, *(row[0] for row in rows(_RESERVED, params))})
    for at in moments:
        _require_at(reservation, chosen, limits, rows(_AT, {**params, "at": at}))


def _require_at(
    reservation: Reservation,
    chosen: Sequence[Chosen],
    limits: dict[str, object],
    reserved: Sequence[tuple[int, str, int]],
) -> None:
    models = _models_of(chosen)
    total = sum(count for _, _, count in reserved)
    own = sum(count for user_id, _, count in reserved if user_id == reservation.user_id)
    checks: list[tuple[str, object, int, int]] = [
        ("GPUs", limits["max_gpus"], len(chosen), total),
        ("GPUs per user", limits["max_gpus_per_user"], len(chosen), own),
    ]
    by_model = limits["max_gpus_by_model"]
    for word, limit in by_model.items() if isinstance(by_model, dict) else ():
        wanted = sum(count for model, count in models.items() if is_model(word, model))
        used = sum(count for _, model, count in reserved if model and is_model(word, model))
        checks.append((f"{word} GPUs", limit, wanted, used))
    for dimension, maximum, wanted, used in checks:
        if isinstance(maximum, int) and wanted and wanted + used > maximum:
            raise _exceeded(reservation, dimension, wanted, maximum, f", reserved at that time={used}")


def _exceeded(reservation: Reservation, dimension: str, wanted: int, limit: int, more: str = "") -> Problem:
    subject = f"quota exceeded for tenant {reservation.tenant.name}"
    detail = f"{subject}: {dimension} requested={wanted}, limit={limit}{more}"
    return Problem(
        403,
        "quota_exceeded",
        detail,
        next_step="reserve fewer GPUs, or ask an admin to raise the quota",
        errors=[FieldError("gpus", "quota_exceeded", detail)],
    )


def _models_of(chosen: Sequence[Chosen]) -> Counter[str]:
    ids = [device.device_id for device in chosen]
    return Counter(model for (model,) in rows("SELECT model FROM nodes_devices WHERE id = ANY(%s)", [ids]))
