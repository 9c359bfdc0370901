"""Outcomes of earlier forecasts, and the calibration that estimates learn from them."""

from gpusched.lib.db.sql import query
from scheduling.engine.whatif.calibration import Calibration, Outcome, calibration

# The calibration uses the latest outcomes, so that it adapts to a changed load.
MAX_OUTCOMES = 500


def latest(*, calibrated: bool = False) -> list[Outcome]:
    """Return the latest outcomes of plain forecasts, or of the calibrated estimates."""
    rows = query(
        """SELECT p50_seconds, p90_seconds, p50_ratio, p90_ratio, waited_seconds FROM scheduling_forecast
            WHERE waited_seconds IS NOT NULL ORDER BY made_at DESC, job_id DESC LIMIT %s""",
        [MAX_OUTCOMES],
    )
    plain = [Outcome(row["p50_seconds"], row["p90_seconds"], row["waited_seconds"]) for row in rows]
    if not calibrated:
        return plain
    ratios = [Calibration(row["p50_ratio"], row["p90_ratio"]) for row in rows]
    return [outcome.calibrated(ratio) for outcome, ratio in zip(plain, ratios, strict=True)]


def learned_calibration() -> Calibration:
    return calibration(latest())
