"""Record forecasts for newly pending jobs, and their outcomes."""

from datetime import UTC, datetime

from gpusched.lib.db.sql import execute, query
from scheduling.models import Forecast
from scheduling.whatif import current, outcomes
from scheduling.whatif.outcomes import MAX_OUTCOMES

# Only recently submitted jobs: older ones that are still pending are a biased sample.
_NEW_SECONDS = 120.0
_MAX_NEW = 50


def note() -> int:
    """Record outcomes of forecasts whose jobs have started, and forecasts of new pending jobs. Return how many."""
    return _settle() + _forecast()


def _settle() -> int:
    settled = execute(
        """UPDATE scheduling_forecast f
              SET waited_seconds = greatest(extract(epoch FROM a.started_at - f.made_at)::float8, 0)
             FROM (SELECT job_id, min(started_at) AS started_at FROM jobs_attempts
                    WHERE job_id IN (SELECT job_id FROM scheduling_forecast WHERE waited_seconds IS NULL)
                    GROUP BY job_id) a
            WHERE a.job_id = f.job_id AND a.started_at IS NOT NULL AND f.waited_seconds IS NULL"""
    )
    # A job that ended without starting has no outcome.
    execute(
        """DELETE FROM scheduling_forecast f USING jobs_all j
            WHERE j.id = f.job_id AND f.waited_seconds IS NULL AND j.ended_at IS NOT NULL"""
    )
    execute(
        """DELETE FROM scheduling_forecast WHERE waited_seconds IS NOT NULL AND job_id NOT IN (
               SELECT job_id FROM scheduling_forecast WHERE waited_seconds IS NOT NULL
                ORDER BY made_at DESC, job_id DESC LIMIT %s)""",
        [MAX_OUTCOMES],
    )
    return settled


def _forecast() -> int:
    new = query(
        """SELECT j.id FROM jobs_all j LEFT JOIN scheduling_forecast f ON f.job_id = j.id
            WHERE j.state = 'pending' AND f.job_id IS NULL AND j.submitted_at > now() - make_interval(secs => %s)
            ORDER BY j.id LIMIT %s""",
        [_NEW_SECONDS, _MAX_NEW],
    )
    if not new:
        return 0
    plain = current.plain_estimates()
    if plain is None:
        return 0
    estimates, now = plain
    learned = outcomes.learned_calibration()
    forecasts = [
        Forecast(
            job_id=row["id"],
            made_at=datetime.fromtimestamp(now, UTC),
            p50_seconds=estimate.p50_at - now,
            p90_seconds=estimate.p90_at - now,
            p50_ratio=learned.p50_ratio,
            p90_ratio=learned.p90_ratio,
        )
        for row in new
        if (estimate := estimates.get(row["id"])) is not None
        and estimate.p50_at is not None
        and estimate.p90_at is not None
        and estimate.p90_at > now
    ]
    Forecast.objects.bulk_create(forecasts, ignore_conflicts=True)
    return len(forecasts)
