"""Publish the tables of this app, and Django's of users, as views for the SQL of other apps."""

from django.contrib.auth.models import User

from gpusched.lib.db.views import published
from tenants.models import (
    Budget,
    BudgetCrossing,
    Membership,
    Quota,
    Secret,
    Tenant,
    TokenBucket,
    UsageBalance,
    UsageEntry,
    UsageRefund,
)

VIEWS = {
    "tenants_people": published(User, without=("password",)),
    "tenants_all": published(Tenant),
    "tenants_quotas": published(Quota),
    "tenants_members": published(Membership),
    "tenants_buckets": published(TokenBucket),
    "tenants_secrets": published(Secret),
    "tenants_budgets": published(Budget),
    "tenants_budget_crossings": published(BudgetCrossing),
    "tenants_balances": published(UsageBalance),
    "tenants_usage": published(
        UsageEntry,
        also={"is_refunded": "EXISTS (SELECT 1 FROM tenants_usagerefund r WHERE r.entry_id = t.id)"},
    ),
    "tenants_refunds": published(UsageRefund),
}
