"""Numbers of a user, a tenant and a node, and the undo of a time limit."""

from datetime import timedelta

import pytest
from django.utils import timezone

from frontend.live import feed
from frontend.pages.job.view import undo_of
from frontend.pages.my_work import rows as my_work_rows
from frontend.pages.node import timeline
from frontend.pages.tenants import details
from gpusched.lib.db.sql import execute
from jobs.models import Job
from tenants.models import UsageEntry
from tenants.models.billing import Budget
from tests.factories import identity_for, make_member, make_node, make_tenant, run_cycle, submit

pytestmark = pytest.mark.django_db


def start(agent, user, tenant, **fields):
    job_id = submit(user, tenant, **fields)
    run_cycle()
    agent.start_all()
    return job_id


def test_quota_separates_own_use_from_tenant_use(ours, anna):
    agent = make_node(gpus=4)
    start(agent, anna, ours)
    start(agent, make_member(ours, name="bob"), ours, gpu_count=2)
    row = feed.rows("mine", (ours.pk,), anna.pk)["tenant:ours"]
    assert (row["own_gpus"], row["gpus_held"]) == (1, 3)


def test_tenant_topic_shows_budget_use(ours, anna):
    Budget.objects.create(tenant=ours, days=7, soft_gpu_hours=1, hard_gpu_hours=100)
    end = timezone.now()
    UsageEntry.objects.create(
        tenant=ours, user_id=anna.pk, job_id=1, attempt=1, rank=0, device_id=1, node="n1", gpu_model="A100", gpus=1.0,
        started_at=end - timedelta(hours=3), ended_at=end, cause="exited",
    )  # fmt: skip
    payload = feed.rows("tenant:ours", None)["budget"]
    assert (payload["used_gpu_hours"], payload["hard_gpu_hours"], payload["state"]) == (3.0, 100, "soft_exceeded")


def test_tenant_topic_counts_preemptions_of_last_day(ours, anna):
    agent = make_node(gpus=2)
    for hours in (1, 25):
        job_id = start(agent, anna, ours)
        execute(
            "UPDATE jobs_attempt SET reason = 'preempted', ended_at = now() - make_interval(hours => %s)"
            " WHERE job_id = %s",
            [hours, job_id],
        )
    assert feed.rows("tenant:ours", None)["preempted"] == {"received_in_a_day": 1}


def test_time_limit_undo_belongs_to_its_attempt(anna):
    tenant = make_tenant()
    user = make_member(tenant)
    job_id = start(make_node(gpus=1), user, tenant, max_runtime_minutes=120)
    execute(
        "INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, data) VALUES"
        " (%s, now(), 'limit_changed', 1, %s, '{\"from_seconds\": 3600, \"to_seconds\": 7200}')",
        [job_id, user.username],
    )
    job = Job.objects.values("id", "attempt", "max_runtime_seconds").get(pk=job_id)
    identity = identity_for(user)
    assert undo_of(job, identity) == {"minutes": 60, "seen": 7200}
    assert undo_of({**job, "attempt": 2}, identity) == {}
    assert undo_of({**job, "max_runtime_seconds": 7201}, identity) == {}


def test_my_work_lists_only_latest_ended_jobs(ours, anna):
    jobs = [submit(anna, ours) for _ in range(my_work_rows.RECENT + 1)]
    execute("UPDATE jobs_job SET state = 'completed', reason = 'exited', ended_at = now()")
    assert [job["id"] for job in my_work_rows.jobs(anna.pk)["recent"]] == jobs[:0:-1]


def test_remaining_quota_is_never_negative():
    quota = {"max_gpus": 2, "max_gpus_per_user": 3, "max_cpu_cores": None, "max_concurrent_jobs": 9}
    payload = my_work_rows.remaining(quota, {"gpus": 4, "cpu_cores": 1, "jobs": 1}, 1)
    assert [(row["resource"], row["remaining"]) for row in payload] == [
        ("GPUs of the tenant", 0), ("GPUs of your own", 2), ("jobs at once", 8),
    ]  # fmt: skip


def test_preemption_balance_hides_other_tenants(ours, anna):
    other = make_tenant("secret")
    rows = [
        {"from_id": gives, "from_tenant": "x", "for_id": takes, "for_tenant": "secret", "attempts": count}
        for gives, takes, count in ((ours.pk, other.pk, 3), (ours.pk, ours.pk, 5), (other.pk, ours.pk, 1))
    ]
    assert details.balance(rows, ours.pk) == {"received": 3, "given": 1}
    identity = identity_for(anna)
    assert [row["other_tenant"] for row in details.preempted_by(rows, ours.pk, identity)] == ["another tenant"]
    assert [row["other_tenant"] for row in details.preempted_for(rows, ours.pk, identity)] == ["another tenant"]
    assert [row["other_tenant"] for row in details.preempted_for(rows, other.pk, identity)] == ["tenant x"]


def test_node_timeline_merges_short_jobs_and_extends_running_ones(ours, anna):
    agent = make_node(gpus=1)
    job_id = start(agent, anna, ours)
    execute("UPDATE jobs_attempt SET scheduled_at = now() - interval '6 hours'")
    execute("UPDATE nodes_assignment SET started_at = now() - interval '6 hours'")
    [node] = feed.rows("nodes", None).values()
    now = timezone.now()
    window = timeline.Window(now - timedelta(hours=24), now)
    [lane] = timeline.device_lanes(agent.name, node["devices"], [], window, None)
    [span] = lane["spans"]
    assert (span["job_id"], span["left"][:4], span["width"][:4], span["is_live"]) == (job_id, "75.0", "25.0", True)
    short = {"label": "a job", "is_bad": False, "is_live": False, "jobs": 1, "job_id": 1}
    spans = [{**short, "begin": at / 1000, "end": at / 1000 + 0.0005} for at in (1, 2, 3, 500)]
    assert [(bar["label"], bar["jobs"]) for bar in timeline._merged(spans)] == [("3 short jobs", 3), ("a job", 1)]
