"""Budgets of GPU-hours: what a tenant has used of its own in the period, and what follows."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pghistory
from django.core.exceptions import ValidationError
from django.db import transaction

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import query, rows
from gpusched.lib.hooks import hook
from gpusched.lib.times import rfc3339
from gpusched.protocol import amounts
from gpusched.protocol.job_request import FieldError
from tenants.models import Budget

FIELDS = ("soft_gpu_hours", "hard_gpu_hours", "days")
# A cycle and a submit may look at what was so many seconds ago: the ledger of a month is long.
CACHE_SECONDS = 10.0

# Without what was refunded. One statement sees the ledger and what is held at one moment.
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
    """What a tenant has used of its budget. `period` in words, as sentences have it."""

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
        hard, soft = (amounts.bound(one or 0) for one in (self.hard_gpu_hours, self.soft_gpu_hours))
        if self.state == "hard_exceeded":
            return f"{used}, all of its budget of {hard}: it starts nothing more on GPUs"
        if self.state == "soft_exceeded":
            then = "" if self.hard_gpu_hours is None else f"; from {hard} on it starts nothing more"
            return f"{used}, more than its soft budget of {soft}{then}"
        return used

    @property
    def state(self) -> str:
        """within, soft_exceeded or hard_exceeded."""
        for word, bound in (("hard_exceeded", self.hard_gpu_hours), ("soft_exceeded", self.soft_gpu_hours)):
            if bound is not None and self.used_gpu_hours >= bound:
                return word
        return "within"


@dataclass
class _Known:
    key: list[tuple[Any, ...]] = field(default_factory=list)
    until: float = 0.0
    found: Mapping[int, BudgetStatus] = field(default_factory=dict)


_known = _Known()


def statuses(tenant_ids: Collection[int] | None = None, *, with_archived: bool = True) -> list[BudgetStatus]:
    """Of these tenants (None: all) that have a budget, as it is now."""
    ids = None if tenant_ids is None else list(tenant_ids)
    return [
        BudgetStatus(**row)
        for row in query(_USED.format(running=hook("running_use")), {"ids": ids, "with_archived": with_archived})
    ]


def hard() -> Mapping[int, BudgetStatus]:
    """Of all tenants with a hard budget, at most CACHE_SECONDS old; an edit counts at once."""
    key = rows("SELECT tenant_id, version FROM tenants_budget WHERE hard_gpu_hours IS NOT NULL ORDER BY tenant_id")
    if not key:
        return {}
    if key != _known.key or time.monotonic() > _known.until:
        ids = [tenant_id for tenant_id, _ in key]
        _known.found = {one.tenant_id: one for one in statuses(ids)}
        _known.key, _known.until = key, time.monotonic() + CACHE_SECONDS
    return _known.found


_recent: dict[int, tuple[int, float, BudgetStatus]] = {}


def recent(tenant_id: int) -> BudgetStatus | None:
    """Of one tenant, at most CACHE_SECONDS old: for what is asked with each key that somebody presses. An edit counts
    at once."""
    found = rows("SELECT version FROM tenants_budget WHERE tenant_id = %s", [tenant_id])
    if not found:
        return None
    [(version,)] = found
    known = _recent.get(tenant_id)
    if known is None or known[0] != version or time.monotonic() > known[1]:
        standing = next(iter(statuses([tenant_id])), None)
        if standing is None:
            return None
        known = _recent[tenant_id] = (version, time.monotonic() + CACHE_SECONDS, standing)
    return known[2]


def change(
    tenant_id: int, values: Mapping[str, Any], *, actor: str, expected_version: int | None = None, dry_run: bool = False
) -> BudgetStatus | None:
    """Replaces a budget; all empty: none any more. Gives how it stands then. 400 for what would do nothing; with
    `expected_version`, 412 if somebody else changed it. Nothing that runs is stopped."""
    with transaction.atomic(), pghistory.context(actor=actor, via="change_budget"):
        budget = Budget.objects.select_for_update().filter(tenant_id=tenant_id).first()
        version = budget.version if budget else 0
        if expected_version is not None and version != expected_version:
            raise Problem(
                412,
                "version_conflict",
                f"this budget was changed meanwhile (it is at version {version}, not {expected_version})",
                next_step="read it again and repeat the change",
            )
        _write(budget or Budget(tenant_id=tenant_id, version=0), values)
        found = next(iter(statuses([tenant_id])), None)
        if dry_run:
            transaction.set_rollback(True)
        else:
            events.changed("tenants", [tenant_id])
            wake.request_cycle()
    return found


def _write(budget: Budget, values: Mapping[str, Any]) -> None:
    if budget.version and all(getattr(budget, name) == values[name] for name in FIELDS):
        return
    before = {name: getattr(budget, name) for name in FIELDS} if budget.version else None
    for name in FIELDS:
        setattr(budget, name, values[name])
    try:
        budget.full_clean(validate_unique=False)
    except ValidationError as error:
        found = [FieldError(name, "invalid", text) for name, texts in error.message_dict.items() for text in texts]
        raise invalid(found) from error
    # A budget without bounds stays a row: who read it before must not overwrite what comes after.
    budget.version += 1
    budget.save()
    log.record("budget.change", f"budget {budget.tenant.name}", before, {name: values[name] for name in FIELDS})


def note_crossings() -> None:
    """Keeps that budgets were used up, once in a period (of rolling ones in a day); to be called about each minute."""
    found = [one for one in statuses() if one.state != "within"]
    told = [
        (one.tenant_id, bound, hours, one.version)
        for one in found
        for bound, hours in (("soft", one.soft_gpu_hours), ("hard", one.hard_gpu_hours))
        if hours is not None and one.used_gpu_hours >= hours
    ]
    for tenant_id, bound, hours, version in told:
        made = query(
            "INSERT INTO tenants_budgetcrossing (tenant_id, bound, gpu_hours, version, period)"
            " SELECT %s, %s, %s, %s, CASE WHEN days IS NULL THEN date_trunc('month', now(), 'UTC')"
            "                             ELSE date_trunc('day', now(), 'UTC') END"
            "   FROM tenants_budget WHERE tenant_id = %s ON CONFLICT DO NOTHING RETURNING id",
            [tenant_id, bound, hours, version, tenant_id],
        )
        if made:
            events.changed("tenants", [tenant_id])


def crossings(tenant_id: int, most: int = 20) -> list[dict[str, Any]]:
    """The latest, newest first."""
    found = query(
        "SELECT bound, gpu_hours, at FROM tenants_budgetcrossing WHERE tenant_id = %s ORDER BY id DESC LIMIT %s",
        [tenant_id, most],
    )
    return [{**row, "at": rfc3339(row["at"])} for row in found]
