"""Predictions as people see them: REST, with the runs they come from, and nothing of other tenants."""

from dataclasses import replace

import pytest
from django.test import Client

from gpusched.protocol.states import Role
from scheduling.history import learning
from tenants.tenancy.tenants import set_member
from tests.factories import make_member, make_node, make_tenant, make_token, run_cycle, submit
from tests.scheduling.history import ran

pytestmark = pytest.mark.django_db(transaction=True)
TRAIN = ["python", "/home/me/train.py", "--lr", "0.3"]


def get(user, path):
    return Client().get(f"/api/v1{path}", HTTP_AUTHORIZATION=f"Bearer {make_token(user)}").json()


def simulated(user, tenant, command=TRAIN, **fields):
    answer = Client().post(
        "/api/v1/jobs/simulate",
        {"tenant": tenant.name, "command": command, "gpu_count": 1, **fields},
        content_type="application/json",
        HTTP_AUTHORIZATION=f"Bearer {make_token(user)}",
    )
    assert answer.status_code == 200, answer.content
    return answer.json()["predicted"]


@pytest.fixture
def history(user, tenant):
    make_node()
    ran(user, tenant, [7200 + 60 * (number % 5) for number in range(14)], command=["python", "train.py", "--lr", "1"])
    learning.learn()


def test_job_and_simulation_show_the_prediction_with_its_source(user, tenant, history):
    job_id = submit(user, tenant, command=TRAIN, gpu_count=8)
    shown = get(user, f"/jobs/{job_id}")["predicted"]
    assert shown["n"] == 14 and shown["is_used"] is False
    assert 10 <= shown["p10"] < shown["p50"] < shown["p90"]
    assert simulated(user, tenant, gpu_count=1)["p50"] == pytest.approx(7320, rel=0.02)
    source = simulated(user, tenant)["source"]
    assert source.startswith("median of your last 14 runs of train.py: 1.9\u20132.")
    assert source.endswith(" h")
    assert get(user, f"/jobs/{job_id}/explain")["predicted"] == shown


def test_source_names_the_owner_to_other_members(user, tenant, history):
    job_id = submit(user, tenant, command=TRAIN)
    shown = get(make_member(tenant), f"/jobs/{job_id}")["predicted"]
    assert shown["source"].startswith(f"median of {user.username}'s last 14 runs of train.py")


def test_new_member_sees_the_runs_of_the_tenant_without_names(user, tenant, history):
    newcomer = make_member(tenant)
    source = simulated(newcomer, tenant)["source"]
    assert source.startswith("median of the tenant's last 5 runs with 1 GPU: ")
    assert user.username not in source


def test_history_of_another_tenant_is_never_shown(history):
    """A70, A38: neither as a sentence nor as a number, though it may order the queue."""
    other = make_tenant()
    member = make_member(other)
    assert simulated(member, other) is None
    job_id = submit(member, other, command=TRAIN)
    assert get(member, f"/jobs/{job_id}")["predicted"] is None


def test_runs_of_the_same_user_in_another_tenant_are_not_shown(user, tenant, history):
    """A member of two tenants: colleagues in one must not learn about the runs in the other."""
    other = make_tenant()
    set_member(other, user, Role.MEMBER)
    job_id = submit(user, other, command=TRAIN)
    assert get(make_member(other), f"/jobs/{job_id}")["predicted"] is None
    ran(user, other, [60, 60, 60], command=TRAIN)
    learning.learn()
    assert get(user, f"/jobs/{job_id}")["predicted"]["n"] == 3


def test_running_job_is_predicted_by_the_survivors_and_an_ended_one_is_not(user, tenant, history):
    node = make_node()
    job_id = submit(user, tenant, command=TRAIN)
    run_cycle()
    node.start_all()
    assert get(user, f"/jobs/{job_id}")["predicted"]["p50"] > 7000
    [ended] = ran(user, tenant, [60])
    assert get(user, f"/jobs/{ended}")["predicted"] is None


def test_prediction_ends_at_the_time_limit(user, tenant, history):
    shown = simulated(user, tenant, max_runtime_minutes=10)
    assert (shown["p50"], shown["p90"]) == (600, 600)


def test_one_run_is_no_prediction(user, tenant):
    ran(user, tenant, [60])
    learning.learn()
    assert simulated(user, tenant) is None


def test_setting_hides_predictions(user, tenant, history, settings):
    """A70."""
    settings.ENV = replace(settings.ENV, predictions=False)
    job_id = submit(user, tenant, command=TRAIN)
    assert get(user, f"/jobs/{job_id}")["predicted"] is None
    assert simulated(user, tenant) is None
