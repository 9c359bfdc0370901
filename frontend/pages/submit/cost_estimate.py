"""What a job that is about to be submitted will cost at most, and what its tenant's budget has left for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpusched.lib.db.sql import query
from tenants.billing import rates
from tenants.billing.budgets import BudgetStatus, recent


@dataclass(frozen=True)
class CostEstimate:
    """Of `gpus` GPUs at once: `gpu_hours` at most, None without a time limit. `least`, `most`: money for that, by the
    models that would do."""

    gpus: int
    gpu_hours: float | None
    least: float | None
    most: float | None
    budget: BudgetStatus | None

    @property
    def left(self) -> float | None:
        """GPU-hours until the budget is used up; None: there is none."""
        if self.budget is None:
            return None
        limit = self.budget.hard_gpu_hours or self.budget.soft_gpu_hours
        return None if limit is None else max(limit - self.budget.used_gpu_hours, 0.0)

    @property
    def is_beyond(self) -> bool:
        """Whether the budget does not last for it."""
        return self.left is not None and self.gpu_hours is not None and self.gpu_hours > self.left


def estimate_cost(fields: Mapping[str, Any], tenants: Mapping[str, int]) -> CostEstimate | None:
    """None for a job without GPUs, or for a tenant that is none of `tenants`."""
    gpus, minutes = fields.get("gpu_count", 0), fields.get("max_runtime_minutes")
    tenant = tenants.get(fields.get("tenant", ""))
    if not gpus or tenant is None or not 0 < gpus <= 1_000_000:
        return None
    array = fields.get("array") or {"count": 1}
    hours = gpus * array["count"] * minutes / 60 if minutes and minutes > 0 else None
    gpus *= min(array["count"], array.get("max_parallel") or array["count"])
    prices = _prices(str(fields.get("gpu_model", "")))
    budget = recent(tenant)
    if hours is None or not prices:
        return CostEstimate(gpus, hours, None, None, budget)
    return CostEstimate(gpus, hours, hours * min(prices), hours * max(prices), budget)


def _prices(wanted: str) -> list[float]:
    """Of a GPU-hour now, of each model of the fleet that would do."""
    models = [row["model"] for row in query("SELECT DISTINCT model FROM nodes_devices")]
    words = [word.strip() for word in wanted.split("|") if word.strip()]
    fitting = [model for model in models if not words or any(rates.matches_model(word, model) for word in words)]
    now = datetime.now(UTC)
    return [
        float(piece.price)
        for piece in rates.price_periods(fitting)
        if piece.starts_at <= now and (piece.ends_at is None or piece.ends_at > now)
    ]
