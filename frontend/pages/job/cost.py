"""Cost of a job so far: its ledger entries and current allocation, at the rates of each time."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from gpusched.lib.db.sql import query
from tenants.billing import rates


@dataclass(frozen=True)
class Cost:
    """`cost` None: no use has a rate. `is_partial`: some use has no rate."""

    gpu_hours: float
    cost: float | None
    is_partial: bool = False
    refunded_gpu_hours: float = 0.0


# A job, or an array with its elements. Equal periods are summed: a gang of a thousand GPUs is one row.
_JOBS = "(SELECT %(job)s::bigint UNION ALL SELECT id FROM jobs_all WHERE array_id = %(job)s)"
_USED = f"""
    SELECT gpu_model, started_at, ended_at, sum(gpus) AS gpus, is_refunded FROM (
        SELECT gpu_model, started_at, ended_at, gpus, is_refunded FROM tenants_usage WHERE job_id IN {_JOBS}
         UNION ALL
        SELECT gpu_model, started_at, statement_timestamp(), gpu_weight, false
          FROM nodes_held WHERE job_id IN {_JOBS} AND started_at IS NOT NULL) used
     GROUP BY gpu_model, started_at, ended_at, is_refunded
"""


def cost_of(job_id: int) -> Cost:
    """Sum the cost from the start of each rank until its GPUs were released, or now. Refunded use is free."""
    used = query(_USED, {"job": job_id})
    priced = rates.price_periods(sorted({row["gpu_model"] for row in used}))
    total = sum(row["gpus"] * _seconds(row["started_at"], row["ended_at"]) for row in used)
    refunded = sum(row["gpus"] * _seconds(row["started_at"], row["ended_at"]) for row in used if row["is_refunded"])
    parts = [(row, period, _overlap(row, period)) for row in used if not row["is_refunded"] for period in priced]
    charged = [(row["gpus"] * seconds, period.price) for row, period, seconds in parts if seconds]
    covered = sum(gpu_seconds for gpu_seconds, _ in charged)
    return Cost(
        gpu_hours=total / 3600,
        cost=_sum(charged) if priced else None,
        is_partial=bool(priced) and covered < (total - refunded) * 0.999,
        refunded_gpu_hours=refunded / 3600,
    )


def _sum(charged: Iterable[tuple[float, Decimal]]) -> float:
    return sum(gpu_seconds / 3600 * float(price) for gpu_seconds, price in charged)


def _overlap(row: dict[str, Any], period: rates.PricePeriod) -> float:
    if period.gpu_model != row["gpu_model"]:
        return 0.0
    ended_at = row["ended_at"] if period.ends_at is None else min(row["ended_at"], period.ends_at)
    return _seconds(max(row["started_at"], period.starts_at), ended_at)


def _seconds(begin: datetime, end: datetime) -> float:
    return max((end - begin).total_seconds(), 0.0)
