"""The time limit of jobs that are submitted without one: the default of their tenant (A72)."""

import msgspec
import pytest
from django.test import Client

from gpusched.lib.api.problems import Problem
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.states import Scope
from jobs.listing import representation
from jobs.models import Job
from serving.replicas.reconcile import reconcile
from tenants.tenancy.tenants import change_quota
from tests.factories import make_node, make_tenant, make_token, make_user, run_cycle, submit
from tests.scheduling.reservations.booking import reserve
from tests.serving.test_replicas import make as make_endpoint

pytestmark = pytest.mark.django_db(transaction=True)


def call(method, path, user, body, *scopes):
    headers = {"Authorization": f"Bearer {make_token(user, *scopes)}"}
    return Client().generic(
        method, f"/api/v1{path}", msgspec.json.encode(body), content_type="application/json", headers=headers
    )


def limit_of(job_id):
    [job] = representation.select("j.id = %s", [job_id])
    return job["max_runtime_minutes"], job["max_runtime_source"]


@pytest.fixture
def limited(tenant):
    change_quota(tenant.pk, {"default_runtime_minutes": 90}, actor="test")
    return tenant


def test_job_without_a_limit_gets_the_default_of_its_tenant(user, limited):
    assert limit_of(submit(user, limited)) == (90, "tenant")


def test_limit_of_the_job_itself_precedes_the_default(user, limited):
    assert limit_of(submit(user, limited, max_runtime_minutes=200)) == (200, "request")


def test_job_has_no_limit_when_neither_it_nor_its_tenant_has_one(user, tenant):
    assert limit_of(submit(user, tenant)) == (None, None)


def test_default_applies_to_submits_of_admins_and_of_tokens_but_not_to_other_tenants(user, limited):
    other = make_tenant()
    admin = make_user(admin=True)
    assert limit_of(submit(admin, limited)) == (90, "tenant")
    assert limit_of(submit(admin, other)) == (None, None)
    answer = call("POST", "/jobs", user, {"tenant": limited.name, "command": ["x"]}, Scope.READ, Scope.WRITE)
    assert answer.json()["job"]["max_runtime_minutes"] == 90


def test_changed_default_applies_to_new_jobs_only(user, limited):
    job_id = submit(user, limited)
    change_quota(limited.pk, {"default_runtime_minutes": None}, actor="test")
    assert limit_of(job_id) == (90, "tenant")
    assert limit_of(submit(user, limited)) == (None, None)


def test_extended_job_shows_that_its_limit_was_changed(user, limited):
    job_id = submit(user, limited)
    assert call("POST", f"/jobs/{job_id}/extend", user, {"max_runtime_minutes": 80}).status_code == 200
    assert limit_of(job_id) == (80, "changed")


def test_replayed_submit_answers_with_the_limit_and_its_source_as_submitted(user, limited):
    token = make_token(user)
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "once"}
    body = {"tenant": limited.name, "command": ["x"]}
    first, second = (
        Client().post("/api/v1/jobs", body, content_type="application/json", headers=headers) for _ in range(2)
    )
    assert first.json()["job"]["max_runtime_source"] == "tenant"
    call("POST", f"/jobs/{first.json()['job_id']}/extend", user, {"max_runtime_minutes": 80})
    third = Client().post("/api/v1/jobs", body, content_type="application/json", headers=headers)
    assert first.content == second.content == third.content


def test_elements_of_arrays_gangs_and_jobs_of_a_bulk_get_the_default(user, limited):
    make_node(gpus=8)
    array_id = submit(user, limited, array=ArrayRequest(count=2))
    gang_id = submit(user, limited, gang_scheduling=True, ranks=2, gpu_count=2)
    run_cycle()
    elements = Job.objects.filter(array_id=array_id).values_list("id", flat=True)
    assert [limit_of(job_id) for job_id in (gang_id, *elements)] == [(90, "tenant")] * 3
    jobs = [{"tenant": limited.name, "command": ["x"], "name": name} for name in ("a", "b")]
    bulk = call("POST", "/jobs/bulk", user, {"jobs": jobs}).json()
    assert [limit_of(job_id) for job_id in bulk["job_ids"]] == [(90, "tenant")] * 2


def test_simulated_submit_assumes_the_default(user, limited):
    """A job without a limit would delay the blocked head; one of 90 minutes ends before the head can start."""
    make_node(gpus=2)
    submit(user, limited, gpu_count=1, max_runtime_minutes=300)
    run_cycle()
    submit(user, limited, gpu_count=2)
    run_cycle()

    def starts_now():
        body = {"tenant": limited.name, "command": ["x"], "gpu_count": 1}
        return call("POST", "/jobs/simulate", user, body).json()["starts_now"]

    assert starts_now()
    change_quota(limited.pk, {"default_runtime_minutes": None}, actor="test")
    assert not starts_now()


def test_default_lets_gpus_of_running_jobs_be_reserved(user, limited):
    """A72: a job without a limit blocks every booking of its GPU; with the default it ends before the reservation."""
    make_node(gpus=1)
    submit(user, limited, gpu_count=1)
    run_cycle()
    assert reserve(user, limited, start=120).state == "planned"


def test_gpus_of_running_jobs_cannot_be_reserved_without_a_default(user, tenant):
    make_node(gpus=1)
    job_id = submit(user, tenant, gpu_count=1)
    run_cycle()
    with pytest.raises(Problem) as refused:
        reserve(user, tenant, start=120)
    assert f"job {job_id} has no time limit" in refused.value.detail


def test_replicas_have_no_limit_whatever_the_default(user, limited):
    """A replica runs until it is scaled down."""
    make_node(gpus=1)
    make_endpoint(limited, user, min_replicas=1)
    reconcile()
    assert limit_of(Job.objects.get().pk) == (None, None)


def test_quota_has_the_default_and_refuses_a_useless_one_by_name(limited):
    admin = make_user(admin=True)
    path = f"/tenants/{limited.name}/quota"
    every = (Scope.READ, Scope.WRITE, Scope.ADMIN)
    assert call("PUT", path, admin, {"default_runtime_minutes": 60}, *every).json()["default_runtime_minutes"] == 60
    for minutes in (0, 5_256_001):
        refused = call("PUT", path, admin, {"default_runtime_minutes": minutes}, *every)
        assert refused.status_code == 400
        assert [error["field"] for error in refused.json()["errors"]] == ["default_runtime_minutes"]
    entries = call("GET", f"/audit?subject=quota {limited.name}".replace(" ", "%20"), admin, {}, *every).json()["items"]
    assert entries[0]["after"]["default_runtime_minutes"] == 60
