"""Tenants, their members and quotas, and what they have used."""

from tenants.models.billing import MAX_DAYS, MAX_GPU_HOURS, Budget, BudgetCrossing, Rate, UsageRefund
from tenants.models.tenants import (
    MAX_GPUS,
    MAX_MODELS,
    MAX_WEIGHT,
    MIN_WEIGHT,
    ApiToken,
    LoginAttempts,
    Membership,
    OneTimePassword,
    Quota,
    Secret,
    Tenant,
    Tier,
    UsageBalance,
    UsageEntry,
    check_model_limits,
)

__all__ = [
    "MAX_DAYS",
    "MAX_GPUS",
    "MAX_GPU_HOURS",
    "MAX_MODELS",
    "MAX_WEIGHT",
    "MIN_WEIGHT",
    "ApiToken",
    "Budget",
    "BudgetCrossing",
    "LoginAttempts",
    "Membership",
    "OneTimePassword",
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
