"""Calibration of estimates by the outcomes of earlier ones: a conformal adjustment, without assumed distributions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from scheduling.engine.whatif.estimate import Estimate

# With fewer outcomes a 90th percentile is hardly one of them, so the forecasts stay as they are.
MIN_OUTCOMES = 20


@dataclass(frozen=True, slots=True)
class Calibration:
    """The ratios of real to forecast waiting time, at the median and at the 90th percentile."""

    p50_ratio: float = 1.0
    p90_ratio: float = 1.0

    def applied(self, estimate: Estimate, now: float) -> Estimate:
        """Return the estimate with both ends of its range stretched; one without a range stays as it is."""
        if estimate.p50_at is None or estimate.p90_at is None:
            return estimate
        p50_at = now + (estimate.p50_at - now) * self.p50_ratio
        p90_at = now + (estimate.p90_at - now) * self.p90_ratio
        return replace(estimate, p50_at=p50_at, p90_at=max(p50_at, p90_at))


@dataclass(frozen=True, slots=True)
class Outcome:
    """An earlier forecast, and how long the job then waited, all in seconds from the forecast on."""

    p50_seconds: float
    p90_seconds: float
    waited_seconds: float

    def calibrated(self, used: Calibration) -> "Outcome":
        """Return the outcome of the estimate that this calibration made of the forecast."""
        p50_seconds = self.p50_seconds * used.p50_ratio
        return Outcome(p50_seconds, max(self.p90_seconds * used.p90_ratio, p50_seconds), self.waited_seconds)


def calibration(outcomes: Sequence[Outcome]) -> Calibration:
    """Return the ratios that would have covered 50 % and 90 % of these outcomes. Forecasts of no wait do not count."""
    if len(outcomes) < MIN_OUTCOMES:
        return Calibration()
    soon = [outcome.waited_seconds / outcome.p50_seconds for outcome in outcomes if outcome.p50_seconds > 0]
    late = [outcome.waited_seconds / outcome.p90_seconds for outcome in outcomes if outcome.p90_seconds > 0]
    return Calibration(_quantile(soon, 0.5), _quantile(late, 0.9))


def coverage_percent(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return how many percent of the jobs started at or before p50 and p90. Raises ValueError without outcomes."""
    if not outcomes:
        raise ValueError("coverage needs at least one outcome")
    by_p50 = sum(outcome.waited_seconds <= outcome.p50_seconds for outcome in outcomes)
    by_p90 = sum(outcome.waited_seconds <= outcome.p90_seconds for outcome in outcomes)
    return 100.0 * by_p50 / len(outcomes), 100.0 * by_p90 / len(outcomes)


def _quantile(ratios: Sequence[float], part: float) -> float:
    """Return the conformal quantile: one more outcome is at most this with at least the probability `part`."""
    if len(ratios) < MIN_OUTCOMES:
        return 1.0
    ordered = sorted(ratios)
    return ordered[min(ceil((len(ordered) + 1) * part), len(ordered)) - 1]
