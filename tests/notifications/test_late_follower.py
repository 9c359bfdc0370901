"""Notices of ends that the sender reads late: it was down, and the job was retried meanwhile."""

import pytest
from django.contrib.auth.models import User

from gpusched.protocol.arrays import ArrayRequest
from jobs.actions import job_actions
from notifications.models import Notice
from notifications.sending.sender import Sender
from tenants.models import Tenant
from tests.factories import identity_for, make_member, make_node, run_cycle, submit
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import webhook, work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def kim(tenant: Tenant, receiver: Receiver) -> User:
    user = make_member(tenant, name="kim")
    webhook(user, receiver.url)
    return user


def noticed() -> list[tuple[str, str]]:
    return [(notice.kind, notice.data["state"]) for notice in Notice.objects.order_by("id")]


def test_failure_is_reported_although_the_job_was_retried_and_cancelled_since(
    sender: Sender, tenant: Tenant, kim: User
):
    agent = make_node(gpus=1)
    job_id = submit(kim, tenant)
    run_cycle()
    agent.end(*agent.start_all(), exit_code=3)
    job_actions.retry(job_id, identity_for(kim))
    job_actions.cancel(job_id, identity_for(kim))
    work(sender)
    assert noticed() == [("job_failed", "failed"), ("job_ended", "cancelled")]


@pytest.mark.parametrize("end", ["completed", "cancelled", "failed"])
def test_end_of_an_array_is_reported_as_it_was_although_elements_were_retried_since(
    sender: Sender, tenant: Tenant, kim: User, end: str
):
    agent = make_node(gpus=2)
    array_id = submit(kim, tenant, array=ArrayRequest(count=2, max_parallel=1))
    run_cycle()
    agent.end(*agent.start_all(), exit_code=int(end == "failed"))
    if end == "cancelled":
        job_actions.cancel(array_id, identity_for(kim), "1")
    run_cycle()
    agent.end(*agent.start_all())
    run_cycle()
    job_actions.retry(array_id, identity_for(kim), "0")
    work(sender)
    assert noticed() == [("job_failed" if end == "failed" else "job_ended", end)]
