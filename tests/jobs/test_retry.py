"""Retry of ended jobs as new attempts: when it is allowed, and what they keep."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from gpusched.lib.api.problems import Problem
from jobs.actions import job_actions
from jobs.models import Job, JobEvent
from jobs.submit import queue_limits
from tests.factories import make_member, make_node, make_tenant, make_token, run_cycle, submit
from tests.jobs.arrays import submit_array

pytestmark = pytest.mark.django_db


def retry(user, job_id):
    """Retry by REST. Return (status, answer)."""
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    response = Client().post(f"/api/v1/jobs/{job_id}/retry", content_type="application/json", headers=headers)
    return response.status_code, response.json()


def fail(node, exit_code=3):
    run_cycle()
    for key in node.start_all():
        node.end(key, exit_code=exit_code)


def test_retried_job_runs_as_a_new_attempt(node, user, tenant):
    job_id = submit(user, tenant)
    fail(node)
    Job.objects.update(retries_used=1)
    failed = Job.objects.get(pk=job_id)
    assert (failed.state, failed.attempt) == ("failed", 1)
    status, answer = retry(user, job_id)
    assert (status, answer["message"]) == (200, f"job {job_id} waits for another attempt")
    job = answer["job"]
    assert (job["state"], job["exit_code"], job["ended_at"], job["retries_used"]) == ("pending", None, None, 0)
    assert Job.objects.get(pk=job_id).submitted_at == failed.submitted_at
    fail(node, exit_code=0)
    after = Job.objects.get(pk=job_id)
    assert (after.state, after.attempt) == ("completed", 2)
    assert JobEvent.objects.filter(job_id=job_id, kind="retried", actor="ada").count() == 1


def test_cancelled_job_waits_again_when_retried(user, tenant, identity):
    job_id = submit(user, tenant)
    job_actions.cancel(job_id, identity)
    assert retry(user, job_id)[1]["job"]["state"] == "pending"


def test_retry_is_refused_when_the_queue_is_full(node, user, tenant, settings, monkeypatch):
    job_id = submit(user, tenant)
    fail(node)
    submit(user, tenant)
    settings.ENV = replace(settings.ENV, max_queue_size=1)
    monkeypatch.setattr(queue_limits, "_CACHE_SECONDS", 0.0)
    monkeypatch.setattr(queue_limits, "_PAUSE_PER_SECOND", 0.0)
    status, answer = retry(user, job_id)
    assert (status, answer["code"], Job.objects.get(pk=job_id).state) == (429, "queue_full", "failed")


def test_retried_job_waits_for_its_not_before(node, user, tenant, identity):
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    job_id = submit(user, tenant, not_before=later)
    job_actions.cancel(job_id, identity)
    retry(user, job_id)
    run_cycle()
    assert list(Job.objects.values_list("state", "reason")) == [("pending", "not_before")]


@pytest.mark.parametrize("elements", ["0-1", "0"])
def test_retried_array_waits_for_its_not_before(node, user, tenant, identity, elements):
    array = submit_array(user, tenant, 2, not_before=(datetime.now(UTC) + timedelta(days=1)).isoformat())
    job_actions.cancel(array, identity)
    job_actions.retry(array, identity, elements)
    run_cycle()
    assert list(Job.objects.values_list("state", "reason")) == [("pending", "not_before")]


def test_retried_element_waits_for_its_not_before(node, user, tenant, identity):
    array = submit_array(user, tenant, 2)
    fail(node)
    run_cycle()
    Job.objects.update(not_before=datetime.now(UTC) + timedelta(days=1))
    job_actions.retry(array, identity, "failed")
    run_cycle()
    assert set(Job.objects.filter(array_id=array).values_list("state", flat=True)) == {"pending"}


@pytest.mark.parametrize(("exit_code", "step"), [(0, "submit it again"), (None, "see its state")])
def test_completed_or_unfinished_job_is_not_retried(node, user, tenant, exit_code, step):
    job_id = submit(user, tenant)
    if exit_code == 0:
        fail(node, exit_code)
    status, answer = retry(user, job_id)
    assert (status, answer["code"], answer["next_step"]) == (409, "wrong_state", step)


def test_retry_checks_dependencies_again_when_the_job_never_started(node, user, tenant, identity):
    first = submit(user, tenant)
    second = submit(user, tenant, depends_on=[first])
    job_actions.cancel(first, identity)
    assert Job.objects.get(pk=second).reason == "dependency_failed"
    status, answer = retry(user, second)
    assert (status, answer["code"]) == (422, "dependency_failed")
    assert Job.objects.get(pk=second).state == "cancelled"
    retry(user, first)
    reason = retry(user, second)[1]["job"]["reason"]
    assert (reason["code"], reason["evidence"]["first"]) == ("dependency", first)
    fail(node, exit_code=0)
    fail(node, exit_code=0)
    assert set(Job.objects.values_list("state", flat=True)) == {"completed"}


def test_retried_array_waits_for_its_dependency_again(node, user, tenant, identity):
    first = submit(user, tenant)
    array = submit_array(user, tenant, 3, depends_on=[first])
    job_actions.cancel(array, identity)
    job_actions.retry(array, identity, "0-1")
    job = Job.objects.get(pk=array)
    assert (job.state, job.reason, job.open_dependencies) == ("pending", "dependency", 1)


def test_retried_element_reopens_its_array(node, user, tenant, identity):
    array = submit_array(user, tenant, 2)
    fail(node)
    run_cycle()
    assert Job.objects.get(pk=array).state == "failed"
    element = Job.objects.get(array_id=array, array_index=1)
    status, answer = retry(user, element.pk)
    assert (status, answer["job"]["state"]) == (200, "pending")
    assert Job.objects.get(pk=array).state == "running"


@pytest.mark.parametrize(("exit_code", "step"), [(0, "submit it again"), (None, "see its state")])
def test_completed_element_is_retried_only_by_its_number(node, user, tenant, identity, exit_code, step):
    array = submit_array(user, tenant, 2)
    run_cycle()
    if exit_code == 0:
        fail(node, exit_code)
    element = Job.objects.get(array_id=array, array_index=1)
    status, answer = retry(user, element.pk)
    assert (status, answer["code"], answer["next_step"]) == (409, "wrong_state", step)
    assert not JobEvent.objects.filter(kind="retried").exists()
    if exit_code == 0:
        assert job_actions.retry(array, identity, "1").endswith("1 element is to run again")


def test_retry_is_allowed_to_those_who_can_cancel(user, tenant, identity):
    """A08: others get a 404, which does not reveal the array of an element either."""
    stranger = make_member(make_tenant("other"), name="zoe")
    array = submit_array(user, tenant, 2)
    make_node(gpus=2)
    run_cycle()
    element = Job.objects.filter(array_id=array).first()
    assert element is not None
    status, answer = retry(stranger, element.pk)
    assert (status, answer["detail"]) == (404, retry(stranger, 999_999)[1]["detail"].replace("999999", str(element.pk)))
    colleague = make_member(tenant, name="bob")
    assert retry(colleague, array)[0] == 403
    job_actions.cancel(array, identity)
    with pytest.raises(Problem, match="stopping"):
        job_actions.retry(array, identity, "failed")
