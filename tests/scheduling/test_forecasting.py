"""Forecasts are recorded, settled once their jobs start, and calibrate the estimates that follow."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from jobs.actions import job_actions
from jobs.models import Attempt
from scheduling.models import Forecast
from scheduling.whatif import current, forecasting, outcomes
from tests.factories import identity_for, make_node, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)
COVERAGE = "gpu_scheduler_estimate_coverage_percent"


def full(user, tenant):
    node = make_node(gpus=8)
    submit(user, tenant, gpu_count=8, max_runtime_minutes=60)
    run_cycle()
    node.start_all()
    return node


def test_forecast_of_a_new_pending_job_is_recorded_once_and_settled_at_its_start(user, tenant):
    """A62"""
    full(user, tenant)
    waiting = submit(user, tenant, gpu_count=1, max_runtime_minutes=60)
    run_cycle()
    assert forecasting.note() == 1
    assert forecasting.note() == 0
    row = Forecast.objects.get(job_id=waiting)
    assert 0 < row.p50_seconds < row.p90_seconds <= 3600
    assert outcomes.latest() == []
    started_at = row.made_at + timedelta(seconds=77)
    Attempt.objects.create(job_id=waiting, number=1, scheduled_at=row.made_at, started_at=started_at)
    assert forecasting.note() == 1
    assert [forecast.waited_seconds for forecast in outcomes.latest()] == [77.0]


def test_forecast_of_a_job_that_ends_before_it_starts_is_deleted(user, tenant):
    full(user, tenant)
    waiting = submit(user, tenant, gpu_count=1, max_runtime_minutes=60)
    run_cycle()
    assert forecasting.note() == 1
    job_actions.cancel(waiting, identity_for(user))
    forecasting.note()
    assert not Forecast.objects.exists()


def recorded(user, tenant, count, ratio):
    """Jobs that waited `ratio` times as long as the median of their forecasts."""
    for number in range(count):
        job_id = submit(user, tenant, gpu_count=1, max_runtime_minutes=60)
        Forecast.objects.create(
            job_id=job_id,
            made_at=timezone.now() - timedelta(days=1, seconds=number),
            p50_seconds=100.0,
            p90_seconds=200.0,
            p90_ratio=0.1,
            waited_seconds=100.0 * ratio,
        )


def test_estimates_follow_the_outcomes_of_earlier_ones(user, tenant):
    """A62"""
    full(user, tenant)
    recorded(user, tenant, 20, 0.5)
    waiting = submit(user, tenant, gpu_count=1, max_runtime_minutes=60)
    run_cycle()
    plain = current.plain_estimates()
    outlook = current.outlook(waiting)
    assert plain is not None and outlook is not None and outlook.estimate is not None
    forecast, now = plain[0][waiting], plain[1]
    assert forecast.p50_at is not None and outlook.estimate.p50_at is not None
    assert (outlook.estimate.p50_at - now) / (forecast.p50_at - now) == pytest.approx(0.5, abs=0.05)


def scraped():
    headers = {"Authorization": f"Bearer {make_token(make_user('root', admin=True))}"}
    return Client().get("/metrics", headers=headers).content.decode()


def test_metric_has_the_coverage_of_both_bounds_once_enough_jobs_have_started(user, tenant):
    """A62"""
    recorded(user, tenant, 19, 1.0)
    assert f"{COVERAGE}{{" not in scraped()


def test_metric_shows_the_coverage_of_the_displayed_estimates(user, tenant):
    """A62: of the estimates as they were shown, not as the calibration of today would have made them."""
    recorded(user, tenant, 20, 0.9)
    Forecast.objects.filter(pk__in=Forecast.objects.values("pk")[:5]).update(p50_ratio=0.5)
    text = scraped()
    assert f'{COVERAGE}{{bound="p50"}} 75.0' in text
    assert f'{COVERAGE}{{bound="p90"}} 75.0' in text
