"""Tenants, their members and quotas, and what they have used."""

from tenants.models.billing import (
    MOST_DAYS,
    MOST_GPU_HOURS,
    Budget,
    BudgetCrossing,
    Rate,
    UsageRefund,
)
from tenants.models.tenants import (
    LEAST_WEIGHT,
    MOST_GPUS,
    MOST_MODELS,
    MOST_WEIGHT,
    ApiToken,
    Membership,
    Quota,
    Secret,
    Tenant,
    Tier,
    UsageBalance,
    UsageEntry,
    check_model_limits,
)

__all__ = [
    "LEAST_WEIGHT",
    "MOST_DAYS",
    "MOST_GPUS",
    "MOST_GPU_HOURS",
    "MOST_MODELS",
    "MOST_WEIGHT",
    "ApiToken",
    "Budget",
    "BudgetCrossing",
    "Membership",
    "Quota",
    "Rate",
    "Secret",
    "Tenant",
    "Tier",
    "UsageBalance",
    "UsageEntry",
    "UsageRefund",
    "check_model_limits",
]
