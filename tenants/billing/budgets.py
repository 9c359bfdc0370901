"""Budgets of GPU-hours: their use in the present period, and their effects."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pghistory
from django.core.exceptions import ValidationError
from django.db import transaction

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import execute, prepared_rows, query, rows
from gpusched.lib.hooks import hook
from gpusched.lib.times import rfc3339
from gpusched.protocol import amounts
from gpusched.protocol.job_request import FieldError
from tenants.models import Budget, Tenant

FIELDS = ("soft_gpu_hours", "hard_gpu_hours", "days")
# Cycles and submits may read values this old: the ledger of a month is long.
_CACHE_SECONDS = 10.0

# Without refunds. A single statement reads the ledger and current use at one moment.
_USED = """
    WITH b AS (
        SELECT b.*, p.since, CASE WHEN days IS NULL THEN p.since + interval '1 month' END AS renews_at
          FROM tenants_budget b CROSS JOIN LATERAL (
               SELECT CASE WHEN days IS NULL THEN date_trunc('month', statement_timestamp(), 'UTC')
                           ELSE statement_timestamp() - make_interval(days => days) END AS since) p
         WHERE %(ids)s::bigint[] IS NULL OR tenant_id = ANY(%(ids)s))
    SELECT t.id AS tenant_id, t.name AS tenant, b.soft_gpu_hours, b.hard_gpu_hours, b.days, b.version, b.since,
           b.renews_at,
           (coalesce(l.gpu_seconds, 0) + coalesce(n.gpu_seconds, 0)) / 3600 AS used_gpu_hours
      FROM b JOIN tenants_tenant t ON t.id = b.tenant_id AND (%(with_archived)s OR t.archived_at IS NULL)
      LEFT JOIN LATERAL (
           SELECT sum(e.gpus * date_part('epoch', e.ended_at - greatest(e.started_at, b.since))) AS gpu_seconds
             FROM tenants_usageentry e
            WHERE e.tenant_id = b.tenant_id AND e.ended_at > b.since
              AND NOT EXISTS (SELECT 1 FROM tenants_usagerefund r WHERE r.entry_id = e.id)) l ON true
      LEFT JOIN (
           SELECT r.tenant_id, b.since,
                  sum(r.gpus * date_part('epoch', statement_timestamp() - greatest(r.started_at, b.since)))
                      AS gpu_seconds
             FROM ({running}) r JOIN b USING (tenant_id) GROUP BY r.tenant_id, b.since) n ON n.tenant_id = b.tenant_id
     ORDER BY t.id
"""


@dataclass(frozen=True)
class BudgetStatus:
    """The budget of a tenant and its use. `period`: for sentences."""

    tenant_id: int
    tenant: str
    soft_gpu_hours: float | None
    hard_gpu_hours: float | None
    days: int | None
    version: int
    since: datetime
    renews_at: datetime | None
    used_gpu_hours: float

    @property
    def period(self) -> str:
        return "this month" if self.days is None else "the last day" if self.days == 1 else f"the last {self.days} days"

    @property
    def sentence(self) -> str:
        used = f"tenant {self.tenant} has used {amounts.measured(self.used_gpu_hours)} GPU-hours in {self.period}"
        hard, soft = (amounts.exact(hours or 0) for hours in (self.hard_gpu_hours, self.soft_gpu_hours))
        if self.state == "hard_exceeded":
            return f"{used}, all of its budget of {hard}: it starts nothing more on GPUs"
        if self.state == "soft_exceeded":
            then = "" if self.hard_gpu_hours is None else f"; from {hard} on it starts nothing more"
            return f"{used}, more than its soft budget of {soft}{then}"
        return used

    @property
    def state(self) -> str:
        """Return within, soft_exceeded or hard_exceeded."""
        for word, bound in (("hard_exceeded", self.hard_gpu_hours), ("soft_exceeded", self.soft_gpu_hours)):
            if bound is not None and self.used_gpu_hours >= bound:
                return word
        return "within"


# By the versions of all hard budgets, and by tenant and version: edits count at once.
_hard_budgets: Cache[tuple[tuple[int, int], ...], Mapping[int, BudgetStatus]] = Cache(seconds=_CACHE_SECONDS)
_recent: Cache[tuple[int, int], BudgetStatus | None] = Cache(seconds=_CACHE_SECONDS, max_entries=1000)


def statuses(tenant_ids: Collection[int] | None = None, *, with_archived: bool = True) -> list[BudgetStatus]:
    """Return the present budgets of these tenants (None: all), of those that have one."""
    ids = None if tenant_ids is None else list(tenant_ids)
    return [
        BudgetStatus(**row)
        for row in query(_USED.format(running=hook("running_use")), {"ids": ids, "with_archived": with_archived})
    ]


def hard_budgets() -> Mapping[int, BudgetStatus]:
    """Return all hard budgets by tenant, at most _CACHE_SECONDS old. Edits count at once."""
    key = prepared_rows(
        "SELECT tenant_id, version FROM tenants_budget WHERE hard_gpu_hours IS NOT NULL ORDER BY tenant_id"
    )
    if not key:
        return {}
    ids = [tenant_id for tenant_id, _ in key]
    return _hard_budgets.get(tuple(key), lambda: {status.tenant_id: status for status in statuses(ids)})


def recent(tenant_id: int) -> BudgetStatus | None:
    """Return the budget of a tenant, at most _CACHE_SECONDS old, for requests on each keystroke. Edits count
    at once."""
    versions = rows("SELECT version FROM tenants_budget WHERE tenant_id = %s", [tenant_id])
    if not versions:
        return None
    [(version,)] = versions
    return _recent.get((tenant_id, version), lambda: next(iter(statuses([tenant_id])), None))


def change(
    tenant_id: int, values: Mapping[str, Any], *, actor: str, expected_version: int | None = None, dry_run: bool = False
) -> BudgetStatus | None:
    """Replace a budget; all fields empty: remove it. Return its new status. 400 for an edit without effect; 412 if the
    budget is not at `expected_version`. Running jobs continue."""
    with transaction.atomic(), pghistory.context(actor=actor, via="change_budget"):
        # A tenant without a budget has no row of it to lock.
        Tenant.objects.select_for_update(no_key=True).get(pk=tenant_id)
        budget = Budget.objects.filter(tenant_id=tenant_id).first()
        version = budget.version if budget else 0
        if expected_version is not None and version != expected_version:
            raise Problem(
                412,
                "version_conflict",
                f"this budget was changed meanwhile (it is at version {version}, not {expected_version})",
                next_step="read it again and repeat the edit",
            )
        _write(budget or Budget(tenant_id=tenant_id, version=0), values)
        status = next(iter(statuses([tenant_id])), None)
        if dry_run:
            transaction.set_rollback(True)
        else:
            events.changed("tenants", [tenant_id])
            wake.request_cycle()
    return status


def _write(budget: Budget, values: Mapping[str, Any]) -> None:
    if budget.version and all(getattr(budget, name) == values[name] for name in FIELDS):
        return
    previous = {name: getattr(budget, name) for name in FIELDS} if budget.version else None
    for name in FIELDS:
        setattr(budget, name, values[name])
    try:
        budget.full_clean(validate_unique=False)
    except ValidationError as error:
        errors = [FieldError(name, "invalid", text) for name, texts in error.message_dict.items() for text in texts]
        raise invalid(errors) from error
    # Keep the row of a budget without bounds, and with it the version that protects against lost updates.
    budget.version += 1
    budget.save()
    log.record("budget.change", f"budget {budget.tenant.name}", previous, {name: values[name] for name in FIELDS})


def note_crossings() -> None:
    """Record exceeded budgets, once per period (rolling ones: once per day). Call it about every minute."""
    exceeded = [status for status in statuses() if status.state != "within"]
    crossed = [
        (status, bound, hours)
        for status in exceeded
        for bound, hours in (("soft", status.soft_gpu_hours), ("hard", status.hard_gpu_hours))
        if hours is not None and status.used_gpu_hours >= hours
    ]
    for status, bound, hours in crossed:
        # The month of the use: by now the next one may have begun.
        month = status.since if status.days is None else None
        created = execute(
            "INSERT INTO tenants_budgetcrossing (tenant_id, bound, gpu_hours, version, period)"
            " VALUES (%s, %s, %s, %s, coalesce(%s, date_trunc('day', now(), 'UTC'))) ON CONFLICT DO NOTHING",
            [status.tenant_id, bound, hours, status.version, month],
        )
        if created:
            events.changed("tenants", [status.tenant_id])


def crossings(tenant_id: int, limit: int = 20) -> list[dict[str, Any]]:
    """Return the latest crossings, newest first."""
    rows = query(
        "SELECT bound, gpu_hours, at FROM tenants_budgetcrossing WHERE tenant_id = %s ORDER BY id DESC LIMIT %s",
        [tenant_id, limit],
    )
    return [{**row, "at": rfc3339(row["at"])} for row in rows]
