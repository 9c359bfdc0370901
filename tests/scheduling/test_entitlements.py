"""The engine's tenants: limits, use as the policy counts it, and remaining preemptions."""

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.models import Attempt, Job
from scheduling.cycle import tenants
from scheduling.engine.model import Policy
from tenants.models import UsageEntry
from tests.factories import make_member, make_node, make_tenant, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)
COSTLY = Policy(name="cost_aware", cost_by_model=(("H100", 3.0),), window_seconds=600)


@pytest.fixture(autouse=True)
def without_memory(monkeypatch):
    monkeypatch.setattr(tenants._histories, "seconds", 0.0)


def engine_tenant(tenant, policy=Policy()):
    [found] = [one for one in tenants.load_tenants(policy) if one.id == tenant.pk]
    return found


def used(tenant, *, hours, ago, model="NVIDIA A100", gpus=1.0):
    """A row of the ledger that ended `ago` seconds ago."""
    ended_at = timezone.now() - timedelta(seconds=ago)
    UsageEntry.objects.create(
        tenant=tenant, job_id=UsageEntry.objects.count() + 1, attempt=1, rank=0, device_id=1, node="n", gpu_model=model,
        gpus=gpus, started_at=ended_at - timedelta(hours=hours), ended_at=ended_at, cause="exited",
    )  # fmt: skip


def preempted(user, tenant, ago):
    job = Job.objects.get(pk=submit(user, tenant))
    at = timezone.now() - timedelta(seconds=ago)
    Attempt.objects.create(job=job, number=1, scheduled_at=at, ended_at=at, reason="preempted")


def test_limits_and_switches_match_their_settings():
    quota = {"max_gpus_per_user": 2, "max_gpus_by_model": {"H100": 1, "A100": 4}, "max_cpu_cores": 3}
    tenant = engine_tenant(make_tenant(quota=quota, allow_preemption=False, can_preempt_others=False))
    assert (tenant.max_gpus_per_user, tenant.max_gpus_by_model) == (2, (("A100", 4), ("H100", 1)))
    assert (tenant.max_cpu_milli, tenant.allow_preemption, tenant.can_preempt_others) == (3000, False, False)
    assert tenant.preemptions_left is None


def test_preemptions_of_the_last_hour_use_up_the_budget():
    """A14: and the earlier ones, other tenants' and other ends do not."""
    tenant, other = make_tenant(preemption_budget_per_hour=3), make_tenant(preemption_budget_per_hour=1)
    user = make_member(tenant)
    assert engine_tenant(tenant).preemptions_left == 3
    preempted(user, tenant, ago=3500)
    preempted(user, tenant, ago=3700)
    assert (engine_tenant(tenant).preemptions_left, engine_tenant(other).preemptions_left) == (2, 1)


def test_stopping_job_counts_as_a_preemption():
    make_node(gpus=1)
    tenant = make_tenant(preemption_budget_per_hour=1)
    job = submit(make_member(tenant), tenant)
    run_cycle()
    Job.objects.filter(pk=job).update(state="stopping", stop_reason="preempted")
    assert engine_tenant(tenant).preemptions_left == 0


def test_budget_lowered_below_its_use_leaves_nothing():
    tenant = make_tenant(preemption_budget_per_hour=1)
    user = make_member(tenant)
    preempted(user, tenant, ago=10)
    preempted(user, tenant, ago=10)
    assert engine_tenant(tenant).preemptions_left == 0


def test_window_counts_cost_by_model_within_its_time():
    tenant = make_tenant()
    used(tenant, hours=1, ago=300)  # 300 of its 3600 seconds lie in the window of 600
    used(tenant, hours=1, ago=300, model="NVIDIA H100 PCIe", gpus=2)
    used(tenant, hours=1, ago=900)
    assert engine_tenant(tenant, COSTLY).window_cost == pytest.approx((300 + 3 * 2 * 300) / 3600, rel=0.01)


def test_running_jobs_count_in_the_window():
    node = make_node(gpus=2, model="NVIDIA H100 PCIe")
    tenant = make_tenant()
    submit(make_member(tenant), tenant, gpu_count=2)
    run_cycle()
    node.start_all()
    from nodes.models import Assignment

    Assignment.objects.update(started_at=timezone.now() - timedelta(seconds=100))
    assert engine_tenant(tenant, COSTLY).window_cost == pytest.approx(3 * 2 * 100 / 3600, rel=0.05)


def test_history_is_the_undecayed_use_of_a_month():
    tenant = make_tenant()
    used(tenant, hours=1, ago=20 * 86400)
    used(tenant, hours=1, ago=40 * 86400)
    assert engine_tenant(tenant, Policy(dynamic_share_bound=0.2)).history_gpu_seconds == pytest.approx(3600, rel=0.001)


def test_values_unused_by_the_policy_are_not_read():
    tenant = make_tenant()
    used(tenant, hours=1, ago=10)
    tenants = engine_tenant(tenant)
    assert (tenants.window_cost, tenants.history_gpu_seconds) == (0.0, 0.0)
