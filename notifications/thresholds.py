"""Write notices of budgets of which 50, 80 or 100 % are used, once per period."""

from gpusched.lib.db.sql import query
from gpusched.protocol import amounts
from notifications.models import Kind
from notifications.outbox import enqueue
from tenants.billing import budgets
from tenants.billing.budgets import BudgetStatus

PERCENTS = (50, 80, 100)
_INTERESTED = """
    SELECT DISTINCT t.tenant_id FROM notifications_route r
      CROSS JOIN LATERAL (SELECT r.tenant_id UNION ALL
                          SELECT m.tenant_id FROM tenants_members m WHERE m.user_id = r.user_id) t
     WHERE r.is_enabled AND 'budget' = ANY(r.kinds) AND t.tenant_id IS NOT NULL
"""


def note_thresholds() -> int:
    """Write a notice for the highest threshold that a budget has passed, of the budgets that a route asks for. Return
    how many."""
    tenants = [row["tenant_id"] for row in query(_INTERESTED)]
    statuses = budgets.statuses(tenants, with_archived=False) if tenants else []
    return sum(_note(status) for status in statuses)


def _note(status: BudgetStatus) -> int:
    hours = status.hard_gpu_hours if status.hard_gpu_hours is not None else status.soft_gpu_hours
    if not hours:
        return 0
    percent = status.used_gpu_hours / hours * 100
    passed = [threshold for threshold in PERCENTS if percent >= threshold]
    if not passed:
        return 0
    # A rolling period has no start: at most one notice a day, as for the crossings that the page shows.
    period = f"{status.since:%Y-%m-%d}"
    bound = "hard" if status.hard_gpu_hours is not None else "soft"
    used = f"{amounts.measured(status.used_gpu_hours)} of {amounts.exact(hours)} GPU-hours"
    effect = "; it starts nothing more on GPUs" if percent >= 100 and bound == "hard" else ""
    # Rounded down: a budget of which 99.6 % are used still starts jobs.
    text = f"Tenant {status.tenant} has used {int(percent)} % of its {bound} budget: {used} ({status.period}){effect}."
    data = {
        "tenant": status.tenant, "percent": passed[-1], "bound": bound, "used_gpu_hours": status.used_gpu_hours,
        "budget_gpu_hours": hours, "title": f"{passed[-1]} % of the budget of {status.tenant} is used", "text": text,
    }  # fmt: skip
    key = f"budget:{status.tenant_id}:{status.version}:{period}:{passed[-1]}"
    return enqueue(Kind.BUDGET, tenant_id=status.tenant_id, data=data, key=key)
