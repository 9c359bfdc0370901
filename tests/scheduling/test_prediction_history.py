"""Predictions in the control plane: learned from ends in order, kept in tables, switched per tenant, used in cycles."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from gpusched.protocol.job_request import JobRequest
from jobs.models import Attempt, Job, JobEvent
from jobs.submit.submit import simulate
from nodes.models import Device, Sample
from scheduling.cycle.snapshot import load
from scheduling.history import learning
from scheduling.history.scores import scores as scores_of
from scheduling.models import LearningProgress, PredictionScore, RangeTracker, RunHistory, TenantPrediction
from tests.factories import identity_for, make_member, make_node, make_tenant, make_token, run_cycle, submit
from tests.scheduling.history import ran

pytestmark = pytest.mark.django_db(transaction=True)


def stored():
    return (
        sorted(RunHistory.objects.values_list("key", "ends", "count", "median", "weight")),
        sorted(RangeTracker.objects.values_list("tenant_id", "group", "low", "high")),
        sorted(PredictionScore.objects.values_list("attempt_id", "seconds", "p50", "baseline")),
    )


def test_ends_are_learned_once_whatever_how_often_it_runs(user, tenant):
    ran(user, tenant, [600] * 5 + [900] * 5)
    assert learning.learn() == 10
    first = stored()
    assert learning.learn() == 0
    assert stored() == first
    assert PredictionScore.objects.count() == 9
    own = RunHistory.objects.get(key=f"t{tenant.pk}/u{user.pk}")
    assert (own.count, len(own.ends)) == (10, 10)


def test_learning_that_is_killed_between_batches_continues_without_loss_or_double(user, tenant, monkeypatch):
    ran(user, tenant, [600 + 10 * number for number in range(12)])
    learning.learn()
    expected = stored()
    RunHistory.objects.all().delete()
    RangeTracker.objects.all().delete()
    PredictionScore.objects.all().delete()
    first = JobEvent.objects.order_by("id")[0].id
    LearningProgress.objects.update(event_id=first - 1, version=0)
    monkeypatch.setattr(learning, "BATCH_EVENTS", 7)
    store_scores, calls = learning._store_scores, []

    def killed(results):
        store_scores(results)
        calls.append(results)
        if len(calls) % 2 == 0:
            raise KeyboardInterrupt  # after the writes of the batch, before its commit

    monkeypatch.setattr(learning, "_store_scores", killed)
    for _ in range(40):
        try:
            learning.learn()
        except KeyboardInterrupt:
            continue
        break
    assert len(calls) > 4
    assert stored() == expected


def test_stopped_and_failed_early_are_censored(user, tenant):
    ran(user, tenant, [3600] * 6)
    ran(user, tenant, [60], reason="exited", exit_code=1)
    ran(user, tenant, [5000], reason="preempted", exit_code=None)
    learning.learn()
    ends = RunHistory.objects.get(key=f"t{tenant.pk}/u{user.pk}").ends
    assert [is_observed for _, _, is_observed, _ in ends] == [True] * 6 + [False] * 2
    assert PredictionScore.objects.count() == 5


def test_run_of_no_length_stops_neither_learning_nor_the_figures(user, tenant):
    """Its start and end are equal if a clock was set back between them."""
    ran(user, tenant, [600] * 30 + [0])
    assert learning.learn() == 31
    assert TenantPrediction.objects.get(tenant=tenant).ends == 30
    [figures] = scores_of(30)
    assert figures.ends == 30


def test_template_groups_runs_and_separates_users_and_commands(user, tenant):
    ran(user, tenant, [600], command=["python", "train.py", "--seed", "1"])
    ran(user, tenant, [600], command=["python", "train.py", "--seed", "2"])
    ran(user, tenant, [60], command=["python", "eval.py"])
    ran(make_member(tenant), tenant, [60], command=["python", "train.py", "--seed", "3"])
    learning.learn()
    counts = [row.count for row in RunHistory.objects.filter(key__regex=r"^t\d+/u\d+/[0-9a-f]{18}$")]
    assert sorted(counts) == [1, 1, 2]


def on(tenant, is_on=True):
    TenantPrediction.objects.update_or_create(
        tenant=tenant,
        defaults={"is_on": is_on, "changed_at": timezone.now(), "ends": 30, "loss": 0.1, "baseline_loss": 0.2},
    )
    LearningProgress.objects.update(version=LearningProgress.objects.get().version + 1)


def predicted(job_id):
    snapshot, _ = load()
    [job] = [job for job in snapshot.jobs if job.id == job_id]
    return job.predicted_seconds


def test_waiting_job_gets_its_prediction_only_if_its_tenant_uses_them(user, tenant):
    """A70."""
    ran(user, tenant, [600] * 5)
    learning.learn()
    job_id = submit(user, tenant, command=["python", "train.py"], gpu_count=8)
    assert predicted(job_id) is None
    on(tenant)
    assert predicted(job_id) == pytest.approx(600, rel=0.1)
    on(tenant, is_on=False)
    on(make_tenant())
    assert predicted(job_id) is None


def test_prediction_follows_new_ends_and_stays_below_the_time_limit(user, tenant):
    ran(user, tenant, [600] * 3)
    learning.learn()
    on(tenant)
    job_id = submit(user, tenant, command=["python", "train.py"])
    limited = submit(user, tenant, command=["python", "train.py"], max_runtime_minutes=5)
    assert (predicted(job_id), predicted(limited)) == (pytest.approx(600, rel=0.1), 300)
    ran(user, tenant, [6000] * 9)
    learning.learn()
    assert predicted(job_id) == pytest.approx(6000, rel=0.15)


def test_own_expectation_of_the_submitter_takes_precedence(user, tenant):
    ran(user, tenant, [600] * 5)
    learning.learn()
    on(tenant)
    assert predicted(submit(user, tenant, command=["python", "train.py"], predicted_runtime_minutes=3)) == 180


def test_setting_switches_everything_off(user, tenant, settings):
    """A70: nothing is learned, and the snapshot is the one without predictions."""
    ran(user, tenant, [600] * 5)
    learning.learn()
    on(tenant)
    submit(user, tenant, command=["python", "train.py"])
    with_predictions, _ = load()
    settings.ENV = replace(settings.ENV, predictions=False)
    ran(user, tenant, [600])
    assert learning.learn() == 0
    off, _ = load()
    assert [job.predicted_seconds for job in with_predictions.jobs] != [None]
    assert [job.predicted_seconds for job in off.jobs] == [None]
    assert [entry.predicted_end_at for entry in off.running] == [None] * len(off.running)


def test_running_job_gets_a_predicted_end_until_it_outlives_its_prediction(user, tenant):
    ran(user, tenant, [600] * 8)
    learning.learn()
    on(tenant)
    node = make_node(gpus=2)
    job_id = submit(user, tenant, command=["python", "train.py"])
    run_cycle()
    node.start_all()
    submit(user, tenant, command=["python", "train.py"], gpu_count=2)
    [entry] = load()[0].running
    assert entry.job_id == job_id
    assert entry.predicted_end_at == pytest.approx(entry.started_at + 600, rel=0.1, abs=120)
    early = timezone.now() - timedelta(hours=5)
    Job.objects.filter(id=job_id).update(started_at=early)
    Attempt.objects.filter(job_id=job_id).update(started_at=early)
    [entry] = load()[0].running
    assert entry.predicted_end_at is None


def scores(tenant, count, prediction, baseline=1000.0, days_ago=1.0, first=1):
    at = timezone.now() - timedelta(days=days_ago)
    PredictionScore.objects.bulk_create(
        PredictionScore(
            attempt_id=first + number, tenant=tenant, ended_at=at, seconds=600, p10=1, p50=prediction, p90=1e6,
            baseline=baseline,
        )
        for number in range(count)
    )  # fmt: skip


def switched(tenant):
    learning.learn()
    return list(TenantPrediction.objects.filter(tenant=tenant).values_list("is_on", flat=True))


def test_predictions_switch_on_when_they_beat_the_median_of_the_user_and_off_when_they_stop(tenant):
    other = make_tenant()
    scores(tenant, 29, prediction=620.0)
    assert switched(tenant) == []
    scores(tenant, 1, prediction=620.0, first=100)
    scores(other, 40, prediction=1000.0, first=1000)
    assert (switched(tenant), switched(other)) == ([True], [False])
    PredictionScore.objects.filter(tenant=tenant).update(p50=2000.0)
    scores(tenant, 1, prediction=2000.0, first=200)
    assert switched(tenant) == [False]
    version = LearningProgress.objects.get().version
    assert switched(tenant) == [False]
    assert LearningProgress.objects.get().version == version


def test_figures_of_predictions_are_measured_and_printed(tenant, capsys):
    """Nine of ten ends lie in the range; the order of the predictions is that of the ends but for one."""
    at = timezone.now() - timedelta(days=1)
    PredictionScore.objects.bulk_create(
        PredictionScore(
            attempt_id=number, tenant=tenant, ended_at=at, seconds=100.0 * number, p10=90.0 * number, baseline=500.0,
            p50=100.0 * number, p90=(110.0 if number < 10 else 95.0) * number,
        )
        for number in range(1, 11)
    )  # fmt: skip
    [score] = scores_of(30.0)
    assert (score.tenant, score.ends, score.coverage_percent, score.is_on) == ("nlp", 10, 90.0, False)
    assert score.rank_correlation == pytest.approx(1.0)
    assert (score.loss, score.baseline_loss > 0.1) == (0.0, True)
    PredictionScore.objects.filter(attempt_id__in=[1, 2]).update(p50=150.0)
    assert 0.99 < (scores_of(30.0)[0].rank_correlation or 0.0) < 1.0
    call_command("predictions", "score", "--json")
    assert json.loads(capsys.readouterr().out)["tenants"][0]["coverage_percent"] == 90.0
    call_command("predictions", "score", "--tenant", "nlp")
    assert "90.0 %" in capsys.readouterr().out
    with pytest.raises(CommandError, match="at most 30"):
        call_command("predictions", "score", "--days", "31")


def test_metrics_show_predictions_to_those_who_see_the_tenant(user, tenant):
    scores(tenant, 40, prediction=620.0)
    learning.learn()
    series = Client().get("/metrics", HTTP_AUTHORIZATION=f"Bearer {make_token(user)}").content.decode()
    assert 'gpu_scheduler_prediction_coverage_percent{tenant="nlp"} 100.0' in series
    assert 'gpu_scheduler_prediction_used{tenant="nlp"} 1.0' in series
    assert 'gpu_scheduler_prediction_pinball_loss{of="user_median",tenant="nlp"}' in series
    assert 'tenant="nlp"' not in Client().get("/metrics").content.decode()


def peaks(job_ids, gpu_mb, host_mb, exit_class=None):
    """Give the attempts of these jobs a GPU with samples and a host peak."""
    device = Device.objects.all()[0]
    for attempt in Attempt.objects.filter(job_id__in=job_ids):
        attempt.placement = [{"rank": 0, "devices": [{"uuid": device.uuid}]}]
        attempt.outcomes = {"0": {"peak_memory_mb": host_mb, "peak_memory_of": "rank"}}
        attempt.evidence = {"class": exit_class} if exit_class else {}
        attempt.save()
        assert attempt.ended_at is not None
        at = attempt.ended_at - timedelta(seconds=5)
        Sample.objects.create(device=device, at=at, cell="busy", seconds=15, memory_used_mb=gpu_mb)


def advised(user, tenant, **fields):
    request = JobRequest(tenant=tenant.name, command=["python", "train.py", "--lr", "2"], gpu_count=1, **fields)
    return {item["field"]: item for item in simulate(request, identity_for(user))["advice"]}


def test_memory_is_advised_from_the_peaks_of_earlier_runs(user, tenant):
    make_node()
    peaks(ran(user, tenant, [600] * 3, command=["python", "train.py", "--lr", "1"]), 20_000, 5_000)
    learning.learn()
    items = advised(user, tenant)
    assert items["gpu_memory_mb"]["value"] == 22_016
    assert items["gpu_memory_mb"]["sentence"] == (
        "your last 3 runs of train.py used at most 20,000 MiB of each GPU: request gpu_memory_mb 22016"
    )
    assert items["memory_mb"]["value"] == 5_632
    assert advised(user, tenant, gpu_memory_mb=24_000, memory_mb=6_000) == {}
    assert advised(user, tenant, gpu_memory_mb=60_000, memory_mb=6_000).keys() == {"gpu_memory_mb"}
    assert advised(make_member(tenant), tenant) == {}


def test_run_that_ran_out_of_memory_raises_the_advice(user, tenant):
    make_node()
    peaks(ran(user, tenant, [600], command=["python", "train.py", "--lr", "1"]), 20_000, 5_000)
    failed = ran(user, tenant, [600], command=["python", "train.py", "--lr", "1"], exit_code=1)
    peaks(failed, 40_000, 5_000, exit_class="cuda_oom")
    learning.learn()
    item = advised(user, tenant)["gpu_memory_mb"]
    assert item["value"] == 66_048
    assert "1 of them ran out of it" in item["sentence"]


def test_advice_is_at_most_what_a_suitable_gpu_has(user, tenant):
    make_node()
    failed = ran(user, tenant, [600], command=["python", "train.py", "--lr", "1"], exit_code=1)
    peaks(failed, 81_000, 5_000, exit_class="cuda_oom")
    learning.learn()
    item = advised(user, tenant)["gpu_memory_mb"]
    assert item["value"] == 81_920
    assert item["sentence"].endswith("ran out of it: request gpu_memory_mb 81920; no suitable GPU has more")
    assert "gpu_memory_mb" not in advised(user, tenant, gpu_memory_mb=81_920)


def test_scores_count_for_thirty_days(tenant):
    scores(tenant, 40, prediction=620.0, days_ago=31.0)
    assert switched(tenant) == []
    assert not PredictionScore.objects.exists()
