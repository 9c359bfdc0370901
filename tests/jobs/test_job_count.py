"""Count the jobs that match the filters of a list (GET /jobs/count)."""

import pytest
from django.test import Client

from jobs.actions import job_actions
from jobs.listing import job_list
from scheduling.status import cluster
from tests.factories import make_member, make_node, make_tenant, make_token, run_cycle, submit
from tests.jobs.arrays import submit_array

pytestmark = pytest.mark.django_db


@pytest.fixture
def count(user):
    headers = {"Authorization": f"Bearer {make_token(user)}"}

    def count(**filters):
        response = Client().get("/api/v1/jobs/count", filters, headers=headers)
        return response.json() if response.status_code == 200 else response.status_code

    return count


def exactly(jobs, with_elements=None):
    return {"jobs": jobs, "is_more": False, "with_elements": jobs if with_elements is None else with_elements}


def test_count_includes_only_visible_matching_jobs(user, tenant, identity, count):
    other = make_tenant("other")
    submit(make_member(other), other)
    ids = [submit(user, tenant, name=f"train {number}") for number in range(3)]
    job_actions.hold(ids[0], identity)
    assert count() == exactly(3)
    assert (count(state="held"), count(state="held,failed"), count(name="TRAIN 1")) == (
        exactly(1),
        exactly(1),
        exactly(1),
    )
    assert (count(user="nobody"), count(submitted_after="2001-01-01"), count(ended_after="2001-01-01")) == (
        exactly(0), exactly(3), exactly(0),
    )  # fmt: skip
    assert (count(tenant="misspelt"), count(state="mad"), count(limit="1")) == (404, 400, 400)


def test_count_includes_an_array_once_and_its_elements_as_in_the_status(user, tenant, count):
    make_node(gpus=4).sync()
    array = submit_array(user, tenant, 5, gpu_count=1)
    submit(user, tenant, gpu_count=1, priority=900)
    run_cycle()
    assert count() == exactly(2, with_elements=6)
    status = cluster.cluster_status()["jobs_by_state"]
    assert status == {"scheduled": 4, "pending": 2}
    assert count(state="live,pending")["with_elements"] == 6
    assert (count(state="pending")["jobs"], count(array=array)) == (0, exactly(3))
    assert count(state="scheduled,running")["with_elements"] == status["scheduled"]


def test_count_reports_that_there_may_be_more(user, tenant, count, monkeypatch):
    for number in range(4):
        submit(user, tenant, name=f"train {number}")
    monkeypatch.setattr(job_list, "MAX_COUNTED", 3)
    assert count() == {"jobs": 3, "is_more": True, "with_elements": None}
    assert count(name="nothing like it") == {"jobs": 0, "is_more": True, "with_elements": None}
    monkeypatch.setattr(job_list, "MAX_COUNTED", 4)
    assert count() == exactly(4)


def test_elements_of_many_arrays_are_not_counted(user, tenant, count, monkeypatch):
    monkeypatch.setattr(job_list, "MAX_ARRAYS", 1)
    submit_array(user, tenant, 2)
    assert count() == exactly(1, with_elements=2)
    submit_array(user, tenant, 2)
    assert count() == {"jobs": 2, "is_more": False, "with_elements": None}
