"""Limits through the whole server: submitted, waited for with a sentence, freed."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpusched.lib.api.problems import Problem
from gpusched.protocol.job_request import JobRequest
from jobs.listing import representation
from jobs.models import Job
from jobs.submit import submit as job_services
from scheduling import policy
from tenants.auth.identity import identity_of_token
from tenants.tenancy import tenants
from tests.factories import identity_for, make_member, make_node, make_tenant, make_token, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def state(job_id):
    return Job.objects.get(pk=job_id).state


def reason(job_id):
    [shown] = representation.select("j.id = %s", [job_id])
    return shown["reason"]


def test_user_at_the_limit_per_user_waits_and_others_do_not(user, tenant):
    tenants.change_quota(tenant.pk, {"max_gpus_per_user": 1}, actor="test")
    node = make_node(gpus=4)
    first, second, of_another = submit(user, tenant), submit(user, tenant), submit(make_member(tenant), tenant)
    run_cycle()
    assert [state(job) for job in (first, second, of_another)] == ["scheduled", "pending", "scheduled"]
    assert reason(second)["sentence"] == (
        "quota exceeded for its owner in tenant nlp: GPUs requested=1, limit per user=1, in use=1"
    )
    keys = node.start_all()
    node.end(next(key for key in keys if key.startswith(f"{first}.")))
    run_cycle()
    assert state(second) == "scheduled"


def test_limit_per_model_is_shown_and_other_models_continue(user, tenant):
    tenants.change_quota(tenant.pk, {"max_gpus_by_model": {"H100": 1}}, actor="test")
    make_node(gpus=2, model="NVIDIA H100 80GB HBM3")
    make_node(gpus=2)
    first, second = (submit(user, tenant, gpu_model="H100") for _ in range(2))
    anywhere = submit(user, tenant, gpu_count=2)
    run_cycle()
    assert [state(job) for job in (first, second, anywhere)] == ["scheduled", "pending", "scheduled"]
    assert reason(second)["sentence"] == "quota exceeded for tenant nlp: H100 GPUs requested=1, limit=1, in use=1"


@pytest.mark.parametrize(
    ("quota", "fields", "sentence"),
    [
        ({"max_gpus": 4}, {"gpu_count": 8}, "GPUs requested=8, limit=4, in use=2"),
        ({"max_gpus_per_user": 1}, {"gpu_count": 2}, "GPUs per user requested=2, limit=1, in use=1"),
        (
            {"max_gpus_by_model": {"A100": 3}}, {"gpu_count": 5, "gpu_model": "A100"},
            "A100 GPUs requested=5, limit=3, in use=2",
        ),
        ({"max_cpu_cores": 9}, {"cpu_cores": 9.5}, "CPU cores requested=9.5, limit=9, in use=2"),
    ],
)  # fmt: skip
def test_request_above_a_limit_is_rejected_at_submit(user, tenant, quota, fields, sentence):
    """A04: in the words of the contract."""
    make_node(gpus=8)
    other = make_tenant()
    for who, of in ((user, tenant), (make_member(tenant), tenant), (make_member(other), other)):
        submit(who, of)
    run_cycle()
    tenants.change_quota(tenant.pk, quota, actor="test")
    with pytest.raises(Problem) as refused:
        submit(user, tenant, **fields)
    assert (refused.value.status, refused.value.code) == (403, "quota_exceeded")
    assert refused.value.detail == f"quota exceeded for tenant nlp: {sentence}"
    assert [job.code for job in refused.value.errors] == ["quota_exceeded"]


def test_limits_per_model_that_leave_no_gpu_together_reject_a_submit(user, tenant):
    """A60: neither of them alone does, as a GPU of the other model would do."""
    make_node(gpus=2)
    make_node(gpus=2, model="NVIDIA H100 PCIe")
    submit(user, tenant)
    run_cycle()
    tenants.change_quota(tenant.pk, {"max_gpus_by_model": {"A100": 0, "H100": 0}}, actor="test")
    with pytest.raises(Problem) as refused:
        submit(user, tenant)
    assert (refused.value.status, refused.value.code) == (403, "quota_exceeded")
    assert refused.value.detail == (
        "quota exceeded for tenant nlp: GPUs under its limits per model (A100: 0, H100: 0) requested=1, limit=0, in use=1"
    )


@pytest.mark.parametrize("by", ["token", "page"])
def test_acknowledged_edit_counts_for_the_next_submit(user, tenant, by):
    """A04: whichever process made the edit, without a notification; without edits there are no more queries."""
    make_node(gpus=8)
    header = f"Bearer {make_token(user)}"

    def post():
        who = identity_of_token(header) if by == "token" else identity_for(user)
        assert who is not None
        job_services.submit(JobRequest(tenant=tenant.name, command=["x"], gpu_count=6), who)

    post()
    with CaptureQueriesContext(connection) as answer:
        post()
    assert not [job for job in answer if "nodes_device" in job["sql"] or "tenants_usagebalance" in job["sql"]]
    tenants.change_quota(tenant.pk, {"max_gpus": 3}, actor="test")
    with pytest.raises(Problem, match="GPUs requested=6, limit=3, in use=0"):
        post()


def test_online_jobs_keep_to_their_capacity_and_larger_ones_are_rejected(user, tenant):
    policy.change({"online_percent": 50}, actor="root")
    make_node(gpus=4)
    jobs = [submit(user, tenant, workload_class="online") for _ in range(3)]
    run_cycle()
    assert [state(job) for job in jobs] == ["scheduled", "scheduled", "pending"]
    assert "GPUs of the cluster's online part requested=1, limit=2, in use=2" in reason(jobs[2])["sentence"]
    with pytest.raises(Problem) as refused:
        submit(user, tenant, workload_class="online", gpu_count=3)
    assert refused.value.status == 422
    assert "the largest possible is 2 GPUs, the cluster's online part" in refused.value.detail


def test_online_capacity_follows_the_nodes(user, tenant):
    """A05: another node, and the online part is larger in the next cycle."""
    policy.change({"online_percent": 50}, actor="root")
    make_node(gpus=2)
    jobs = [submit(user, tenant, workload_class="online") for _ in range(2)]
    run_cycle()
    assert [state(job) for job in jobs] == ["scheduled", "pending"]
    make_node(gpus=2)
    run_cycle()
    assert state(jobs[1]) == "scheduled"
