"""Calibration of estimates by the outcomes of earlier ones."""

from random import Random

import pytest

from scheduling.engine.whatif.calibration import MIN_OUTCOMES, Calibration, Outcome, calibration, coverage_percent
from scheduling.engine.whatif.estimate import Estimate


def outcomes(count: int, seed: int, scale: float) -> list[Outcome]:
    """Return jobs that wait `scale` times as long as the median of their forecasts, within a factor of three."""
    rng = Random(seed)
    forecasts = [rng.uniform(60, 6000) for _ in range(count)]
    return [Outcome(each, 2 * each, each * scale * 3 ** rng.uniform(-1, 1)) for each in forecasts]


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_calibration_covers_later_outcomes_whatever_the_forecasts_are_off_by(scale: float) -> None:
    """A62: fitted on some outcomes, checked on others."""
    learnt = calibration(outcomes(400, 1, scale))
    by_p50, by_p90 = coverage_percent([outcome.calibrated(learnt) for outcome in outcomes(400, 2, scale)])
    assert 40 <= by_p50 <= 60
    assert 85 <= by_p90 <= 95
    plain_p50, _ = coverage_percent(outcomes(400, 2, scale))
    assert scale == 1.0 or not 40 <= plain_p50 <= 60


def test_calibration_is_neutral_with_few_outcomes() -> None:
    assert calibration(outcomes(MIN_OUTCOMES - 1, 1, 9.0)) == Calibration()
    assert calibration(outcomes(MIN_OUTCOMES, 1, 9.0)) != Calibration()


def test_calibration_ignores_forecasts_of_no_wait() -> None:
    assert calibration([Outcome(0.0, 0.0, 5.0)] * 50) == Calibration()


def test_applied_calibration_stretches_the_range_and_keeps_its_order() -> None:
    result = Calibration(3.0, 0.5).applied(Estimate(110.0, 120.0), 100.0)
    assert (result.p50_at, result.p90_at) == (130.0, 130.0)
    unknown = Estimate(None, None, after=300.0)
    assert Calibration(3.0, 0.5).applied(unknown, 100.0) == unknown


def test_coverage_refuses_no_outcomes() -> None:
    with pytest.raises(ValueError, match="at least one outcome"):
        coverage_percent([])
