"""Predictions with noise have the errors that traces are compared with, and one seed gives one set of them."""

from scheduling.simulator.traces.jobs import TraceJob
from scheduling.simulator.traces.predictions import with_predictions

JOBS = [TraceJob(id, str(id), 0.0, 1, 1000.0, predicted_seconds=5.0) for id in range(1, 20_001)]


def test_noise_has_the_defined_error_distribution() -> None:
    """10 % of the jobs within 10 %, 50 % within 50 %, 70 % within 100 %, 90 % within 1000 %."""
    errors = [abs((job.predicted_seconds or 0) / 1000.0 - 1.0) for job in with_predictions(JOBS, "noisy", 1)]
    for within, part in ((0.1, 0.1), (0.5, 0.5), (1.0, 0.7), (10.0, 0.9)):
        assert abs(sum(error <= within for error in errors) / len(errors) - part) < 0.015
    assert max(errors) > 50


def test_noise_is_too_short_as_well_as_too_long() -> None:
    ratios = with_predictions(JOBS, "noisy", 1)
    assert 0.3 < sum((job.predicted_seconds or 0) < 1000 for job in ratios) / len(ratios) < 0.4
    assert min(job.predicted_seconds or 0 for job in ratios) >= 1.0


def test_noise_is_deterministic_per_seed() -> None:
    assert with_predictions(JOBS, "noisy", 1) == with_predictions(JOBS, "noisy", 1)
    assert with_predictions(JOBS, "noisy", 1) != with_predictions(JOBS, "noisy", 2)


def test_other_kinds_are_none_the_truth_and_the_trace() -> None:
    assert {job.predicted_seconds for job in with_predictions(JOBS, "none", 1)} == {None}
    assert {job.predicted_seconds for job in with_predictions(JOBS, "oracle", 1)} == {1000.0}
    assert {job.predicted_seconds for job in with_predictions(JOBS, "given", 1)} == {5.0}
