"""Switches predictions on and off per tenant: on while they beat the median of the user's last runs over 30 days."""

from gpusched.lib.db.sql import execute

# With fewer ends there is no evidence: predictions stay as they are.
MIN_ENDS = 30
# To be switched on, predictions must be better by this part; so a tenant does not switch at each end.
MARGIN = 0.02
# The pinball loss of the median of log(run time): half of the mean distance on that scale.
_UPDATE = """
    INSERT INTO scheduling_tenantprediction AS t (tenant_id, is_on, changed_at, ends, loss, baseline_loss)
    SELECT tenant_id, loss < baseline_loss * (1 - %(margin)s), now(), ends, loss, baseline_loss
      FROM (SELECT tenant_id, count(*) AS ends, avg(abs(ln(seconds / p50))) / 2 AS loss,
                   avg(abs(ln(seconds / baseline))) / 2 AS baseline_loss
              FROM scheduling_predictionscore GROUP BY tenant_id) s
     WHERE ends >= %(ends)s
        ON CONFLICT (tenant_id) DO UPDATE
           SET is_on = CASE WHEN t.is_on THEN excluded.loss < excluded.baseline_loss ELSE excluded.is_on END,
               changed_at = CASE WHEN t.is_on = CASE WHEN t.is_on THEN excluded.loss < excluded.baseline_loss
                                                     ELSE excluded.is_on END
                                 THEN t.changed_at ELSE now() END,
               ends = excluded.ends, loss = excluded.loss, baseline_loss = excluded.baseline_loss
         WHERE (t.ends, t.loss, t.baseline_loss) IS DISTINCT FROM (excluded.ends, excluded.loss, excluded.baseline_loss)
"""


def update_tenants() -> int:
    """Compare the scores of each tenant, and switch its predictions. Return the number of tenants whose figures
    changed. Scores older than 30 days are deleted before."""
    return execute(_UPDATE, {"margin": MARGIN, "ends": MIN_ENDS})
