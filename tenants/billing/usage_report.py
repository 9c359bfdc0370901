"""Report the use of tenants and its cost in a time, by user, job, model, day or tenant, with running jobs until now."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpusched.lib.db.sql import columns, query
from gpusched.lib.hooks import hook
from tenants.billing import rates

BY = ("user", "job", "model", "day")
Key = int | str

# Use from a to b within the requested time: charged use, and current use. A single statement reads both at one moment,
# so that nothing is missed or counted twice while a job ends.
_USE = """
    held AS (
        SELECT e.tenant_id, e.user_id, e.job_id, e.gpu_model, e.gpus, greatest(e.started_at, %(start)s) AS a,
               least(e.ended_at, %(end)s) AS b, r.id IS NOT NULL AS is_refunded, false AS is_running
          FROM tenants_usageentry e LEFT JOIN tenants_usagerefund r ON r.entry_id = e.id
         WHERE e.tenant_id = ANY(%(tenants)s) AND e.ended_at > %(start)s AND e.started_at < %(end)s
         UNION ALL
        SELECT r.tenant_id, r.user_id, r.job_id, r.gpu_model, r.gpus, greatest(r.started_at, %(start)s),
               least(statement_timestamp(), %(end)s), false, true
          FROM ({running}) r
         WHERE r.tenant_id = ANY(%(tenants)s) AND r.started_at < least(statement_timestamp(), %(end)s)
           AND statement_timestamp() > %(start)s)"""
_BY_DAY = """
    cut AS (
        SELECT h.tenant_id, h.user_id, h.job_id, h.gpu_model, h.gpus, greatest(h.a, d.day) AS a,
               least(h.b, d.day + interval '1 day') AS b, h.is_refunded, h.is_running
          FROM held h CROSS JOIN LATERAL
               generate_series(date_trunc('day', h.a, 'UTC'), h.b, interval '1 day') AS d (day)
         WHERE d.day < h.b)"""
_PRICED = """
    WITH {held},
    priced AS (
        SELECT c.*, c.gpus * date_part('epoch', c.b - c.a) AS seconds, c.gpus * p.seconds AS priced_seconds,
               c.gpus * p.price_seconds / 3600 AS price
          FROM {cut} c CROSS JOIN LATERAL (
               SELECT coalesce(sum(o.seconds), 0) AS seconds, coalesce(sum(o.seconds * o.price), 0) AS price_seconds
                 FROM (SELECT date_part('epoch', least(c.b, t.ends_at) - greatest(c.a, t.starts_at)) AS seconds, t.price
                         FROM unnest(%(models)s::text[], %(starts)s::timestamptz[], %(ends)s::timestamptz[],
                                     %(prices)s::float8[]) AS t (gpu_model, starts_at, ends_at, price)
                        WHERE t.gpu_model = c.gpu_model AND t.starts_at < c.b
                          AND coalesce(t.ends_at > c.a, true)) o) p)"""
_PARTS = """,
    parts AS (
        SELECT {key} AS key, {user} AS user_id, sum(seconds) AS gpu_seconds,
               coalesce(sum(seconds) FILTER (WHERE is_running), 0) AS running_gpu_seconds,
               coalesce(sum(seconds) FILTER (WHERE is_refunded), 0) AS refunded_gpu_seconds,
               sum(seconds - priced_seconds) AS unpriced_gpu_seconds,
               coalesce(sum(price) FILTER (WHERE NOT is_refunded), 0) AS cost,
               coalesce(sum(price) FILTER (WHERE is_refunded), 0) AS refunded_cost,
               count(DISTINCT nullif(job_id, 0)) AS jobs
          FROM priced x {join} GROUP BY 1)
"""
_SUMS = ("gpu_seconds", "running_gpu_seconds", "refunded_gpu_seconds", "unpriced_gpu_seconds", "cost", "refunded_cost")
_PAGE = f"""
    SELECT NULL AS key, NULL AS name, NULL AS "user",
           {", ".join(f"coalesce(sum({name}), 0) AS {name}" for name in _SUMS)},
           (SELECT count(DISTINCT nullif(job_id, 0)) FROM held) AS jobs,
           least(statement_timestamp(), %(end)s) AS end_at FROM parts
     UNION ALL
    (SELECT p.key, j.name, u.username, {", ".join(f"p.{name}" for name in _SUMS)}, p.jobs, NULL
       FROM parts p LEFT JOIN ({{job_names}}) j ON {{is_its_job}} LEFT JOIN auth_user u ON u.id = p.user_id
      WHERE %(after)s::{{type}} IS NULL OR p.key > %(after)s::{{type}} ORDER BY p.key LIMIT %(limit)s)
"""


@dataclass(frozen=True)
class Report:
    """A page of a usage report. `rows`: ordered by key. `end_at`: the end of the counted time. `total`: over all rows,
    including other pages."""

    end_at: datetime
    total: dict[str, Any]
    rows: list[dict[str, Any]]


def report(
    tenant_ids: Sequence[int],
    start: datetime,
    end: datetime,
    by: str,
    *,
    after: Key | None = None,
    limit: int | None = None,
) -> Report:
    """Return the use of tenants. GPU-seconds are wall time x GPUs, from the start of a rank to its end. `by`: one of
    BY, or tenant. `after`: the last key of the previous page. `limit` None: all rows."""
    parameters = {"tenants": list(tenant_ids), "start": start, "end": end, "after": after, "limit": limit}
    total, *rows = query(_sql(by), {**parameters, **_prices(tenant_ids, start, end)})
    return Report(total["end_at"], _represent(total), [_represent(row) for row in rows])


_DAILY = """
    SELECT day, key, sum(gpu_seconds) AS gpu_seconds, sum(cost) AS cost
      FROM (SELECT to_char(x.a AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day, {key} AS key, seconds AS gpu_seconds,
                   CASE WHEN is_refunded THEN 0 ELSE price END AS cost FROM priced x {join}) p
     GROUP BY 1, 2 ORDER BY 1, 2
"""


def daily(tenant_ids: Sequence[int], start: datetime, end: datetime, by: str) -> list[dict[str, Any]]:
    """Return the use by day (UTC) and key: `day key gpu_seconds cost`, the cost without refunds."""
    key, _, join = _KEYS[by]
    sql = _PRICED.format(held=f"{_use()}, {_BY_DAY}", cut="cut") + _DAILY.format(key=key, join=join)
    rows = query(sql, {"tenants": list(tenant_ids), "start": start, "end": end, **_prices(tenant_ids, start, end)})
    return [{**row, "cost": round(row["cost"], 4)} for row in rows]


_KEYS = {
    "user": ("coalesce(u.username, 'user ' || x.user_id)", "text", "LEFT JOIN auth_user u ON u.id = x.user_id"),
    "job": ("x.job_id", "bigint", ""),
    "model": ("x.gpu_model", "text", ""),
    "day": ("to_char(x.a AT TIME ZONE 'UTC', 'YYYY-MM-DD')", "text", ""),
    "tenant": ("t.name", "text", "JOIN tenants_tenant t ON t.id = x.tenant_id"),
}


def _sql(by: str) -> str:
    key, kind, join = _KEYS[by]
    is_its_job = "j.id = p.key" if by == "job" else "false"  # keys are of several types
    cte = f"{_use()}, {_BY_DAY}" if by == "day" else _use()
    priced = _PRICED.format(held=cte, cut="cut" if by == "day" else "held")
    parts = _PARTS.format(key=key, join=join, user="min(x.user_id)" if by == "job" else "NULL::bigint")
    return priced + parts + _PAGE.format(is_its_job=is_its_job, job_names=hook("job_names"), type=kind)


def _use() -> str:
    return _USE.format(running=hook("running_use"))


def _prices(tenant_ids: Sequence[int], start: datetime, end: datetime) -> dict[str, Sequence[Any]]:
    """Return the rates of all models that the tenants may have used, as columns."""
    models = query(
        "SELECT DISTINCT gpu_model FROM tenants_usageentry"
        f" WHERE tenant_id = ANY(%s) AND ended_at > %s AND started_at < %s UNION {hook('gpu_models')}",
        [list(tenant_ids), start, end],
    )
    prices = [
        (p.gpu_model, p.starts_at, p.ends_at, float(p.price))
        for p in rates.price_periods(row["gpu_model"] for row in models)
    ]
    return dict(zip(("models", "starts", "ends", "prices"), columns(prices, 4), strict=True))


def _represent(row: dict[str, Any]) -> dict[str, Any]:
    seconds = {name: round(row[name], 3) for name in _SUMS if name.endswith("seconds")}
    money = {name: round(row[name], 4) for name in ("cost", "refunded_cost")}
    represented = {**seconds, "gpu_hours": round(row["gpu_seconds"] / 3600, 4), **money, "jobs": row["jobs"]}
    if row["key"] is None:
        return represented
    return {"key": row["key"], "name": row["name"] or "", "user": row["user"] or "", **represented}
