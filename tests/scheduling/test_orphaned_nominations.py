"""A claim without its job is dropped."""

import pytest

from gpusched.protocol.job_request import JobRequest
from jobs.actions import job_actions
from jobs.submit import submit as services
from scheduling.cycle import snapshot
from scheduling.engine.model import Policy
from scheduling.models import Claim
from tests.factories import identity_for, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def test_claim_whose_job_is_gone_is_dropped_and_not_inherited(user, tenant, monkeypatch):
    """Also when the queue is empty; a simulated job has a number that no nomination can have."""
    monkeypatch.setattr(snapshot, "policy", lambda: Policy(min_runtime_seconds=0, preemption_delay_seconds=0))
    node = make_node(gpus=4)
    submit(user, tenant, gpu_count=4, priority=100, requeue=False)
    run_cycle()
    [key] = node.start_all()
    urgent = submit(user, tenant, gpu_count=4, priority=1500)
    run_cycle()
    assert Claim.objects.filter(job_id=urgent).exists()
    job_actions.cancel(urgent, identity_for(user))
    node.end(key, exit_code=None, signal=15, reason="preempted")
    request = JobRequest(tenant=tenant.name, command=["true"], gpu_count=1)
    answer = services.simulate(request, identity_for(user))
    assert answer["starts_now"]
    assert [len(rank["gpus"]) for rank in answer["placement"]] == [1]
    run_cycle()
    assert not Claim.objects.exists()
