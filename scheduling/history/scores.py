"""How the predictions of each tenant did lately: coverage, rank correlation, and loss beside the baseline's."""

from typing import NamedTuple

from gpusched.lib.db.sql import rows

# Of each tenant at most this many of its latest ends.
LATEST = 2_000
# Ranks of equal values are their mean, as in Spearman's correlation.
_SCORES = """
    WITH latest AS (
        SELECT s.* FROM tenants_all t, LATERAL (
            SELECT tenant_id, seconds, p10, p50, p90, baseline FROM scheduling_predictionscore
             WHERE tenant_id = t.id AND ended_at > now() - make_interval(secs => %(days)s * 86400)
             ORDER BY ended_at DESC LIMIT %(latest)s) s
    ), ranked AS (
        SELECT *, rank() OVER (PARTITION BY tenant_id ORDER BY p50)
                    + (count(*) OVER (PARTITION BY tenant_id, p50) - 1) / 2.0 AS predicted_rank,
               rank() OVER (PARTITION BY tenant_id ORDER BY seconds)
                    + (count(*) OVER (PARTITION BY tenant_id, seconds) - 1) / 2.0 AS actual_rank
          FROM latest
    )
    SELECT t.name, count(*), 100.0 * avg((seconds BETWEEN p10 AND p90)::int)::float8,
           corr(predicted_rank::float8, actual_rank::float8), avg(abs(ln(seconds / p50))) / 2,
           avg(abs(ln(seconds / baseline))) / 2, coalesce(bool_or(p.is_on), false)
      FROM ranked r JOIN tenants_all t ON t.id = r.tenant_id
      LEFT JOIN scheduling_tenantprediction p ON p.tenant_id = r.tenant_id GROUP BY t.name ORDER BY t.name
"""


class Score(NamedTuple):
    """The figures of a tenant's predictions. `coverage_percent`: ends from p10 to p90. `rank_correlation`: Spearman's,
    None if all values are equal. `loss`, `baseline_loss`: the pinball loss of the median of log(run time)."""

    tenant: str
    ends: int
    coverage_percent: float
    rank_correlation: float | None
    loss: float
    baseline_loss: float
    is_on: bool


def scores(days: float) -> list[Score]:
    """Return the figures of each tenant with ends in the last days, by name."""
    return [Score(*row) for row in rows(_SCORES, {"days": days, "latest": LATEST})]
