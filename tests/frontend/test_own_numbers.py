"""Numbers of a person and of a tenant in the feed, and the way back from a time limit."""

from datetime import timedelta

import pytest
from django.utils import timezone

from frontend import feed
from frontend.limitundo import undo_of
from gpusched.lib.sql import execute
from jobs.models import Job
from tenants.models import UsageEntry
from tenants.money import Budget
from tests.factories import identity_for, make_member, make_node, make_tenant, run_cycle, submit

pytestmark = pytest.mark.django_db


def start(agent, user, tenant, **fields):
    job_id = submit(user, tenant, **fields)
    run_cycle()
    agent.start_all()
    return job_id


def test_what_colleagues_hold_is_the_tenants_and_not_ones_own(ours, anna):
    agent = make_node(gpus=4)
    start(agent, anna, ours)
    start(agent, make_member(ours, name="bob"), ours, gpu_count=2)
    row = feed.rows("mine", (ours.pk,), anna.pk)["tenant:ours"]
    assert (row["own_gpus"], row["gpus_held"]) == (1, 3)


def test_a_budget_says_what_is_used_of_it(ours, anna):
    Budget.objects.create(tenant=ours, days=7, soft_gpu_hours=1, hard_gpu_hours=100)
    end = timezone.now()
    UsageEntry.objects.create(
        tenant=ours, user_id=anna.pk, job_id=1, attempt=1, rank=0, device_id=1, node="n1", gpu_model="A100", gpus=1.0,
        started_at=end - timedelta(hours=3), ended_at=end, cause="exited",
    )  # fmt: skip
    told = feed.rows("tenant:ours", None)["budget"]
    assert (told["used_gpu_hours"], told["hard_gpu_hours"], told["state"]) == (3.0, 100, "soft_exceeded")


def test_preemptions_of_the_last_day_are_counted(ours, anna):
    agent = make_node(gpus=2)
    for hours in (1, 25):
        job_id = start(agent, anna, ours)
        execute(
            "UPDATE jobs_attempt SET reason = 'preempted', ended_at = now() - make_interval(hours => %s)"
            " WHERE job_id = %s",
            [hours, job_id],
        )
    assert feed.rows("tenant:ours", None)["preempted"] == {"received_in_a_day": 1}


def test_the_way_back_from_a_limit_is_of_the_attempt_that_it_was_set_for(anna):
    tenant = make_tenant()
    user = make_member(tenant)
    job_id = start(make_node(gpus=1), user, tenant, max_runtime_minutes=120)
    execute(
        "INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, data) VALUES"
        " (%s, now(), 'limit_changed', 1, %s, '{\"from_seconds\": 3600, \"to_seconds\": 7200}')",
        [job_id, user.username],
    )
    job = Job.objects.values("id", "attempt", "max_runtime_seconds").get(pk=job_id)
    who = identity_for(user)
    assert undo_of(job, who) == {"minutes": 60, "seen": 7200}
    assert undo_of({**job, "attempt": 2}, who) == {}
    assert undo_of({**job, "max_runtime_seconds": 7201}, who) == {}
