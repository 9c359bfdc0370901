"""Maximum cost of a job before submission, and the remaining budget of its tenant."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpusched.lib.db.sql import query
from tenants.billing import rates
from tenants.billing.budgets import BudgetStatus, recent


@dataclass(frozen=True)
class CostEstimate:
    """Maximum use of `gpus` GPUs at once: `gpu_hours`, None without a time limit. `default_minutes`: the time limit if
    it is the tenant's default, else None. `minimum`, `maximum`: its cost over the models that match."""

    gpus: int
    gpu_hours: float | None
    minimum: float | None
    maximum: float | None
    budget: BudgetStatus | None
    default_minutes: int | None = None

    @property
    def remaining(self) -> float | None:
        """Return the GPU-hours until the budget is used up, or None without one."""
        if self.budget is None:
            return None
        limit = self.budget.hard_gpu_hours or self.budget.soft_gpu_hours
        return None if limit is None else max(limit - self.budget.used_gpu_hours, 0.0)

    @property
    def exceeds_budget(self) -> bool:
        """Return whether the job can exceed the budget."""
        return self.remaining is not None and self.gpu_hours is not None and self.gpu_hours > self.remaining


def estimate_cost(
    fields: Mapping[str, Any], tenants: Mapping[str, int], default_minutes: Mapping[int, int]
) -> CostEstimate | None:
    """Estimate the cost; None for a job without GPUs or a tenant outside `tenants`. `default_minutes`: the time limits
    of tenants for jobs without one."""
    gpus, minutes = fields.get("gpu_count", 0), fields.get("max_runtime_minutes")
    tenant = tenants.get(fields.get("tenant", ""))
    if not gpus or tenant is None or not 0 < gpus <= 1_000_000:
        return None
    default = default_minutes.get(tenant) if minutes is None else None
    minutes = default if minutes is None else minutes
    array = fields.get("array") or {"count": 1}
    hours = gpus * array["count"] * minutes / 60 if minutes and minutes > 0 else None
    gpus *= min(array["count"], array.get("max_parallel") or array["count"])
    prices = _prices(str(fields.get("gpu_model", "")))
    budget = recent(tenant)
    if hours is None or not prices:
        return CostEstimate(gpus, hours, None, None, budget, default)
    return CostEstimate(gpus, hours, hours * min(prices), hours * max(prices), budget, default)


def _prices(expression: str) -> list[float]:
    """Return the current price of a GPU-hour for each matching model of the fleet."""
    models = [row["model"] for row in query("SELECT DISTINCT model FROM nodes_devices")]
    names = [name.strip() for name in expression.split("|") if name.strip()]
    fitting = [model for model in models if not names or any(rates.matches_model(name, model) for name in names)]
    now = datetime.now(UTC)
    return [
        float(period.price)
        for period in rates.price_periods(fitting)
        if period.starts_at <= now and (period.ends_at is None or period.ends_at > now)
    ]
