"""Which job holds the reservation is known to the next cycle, whichever worker runs it (A12)."""

import pytest

from gpusched.protocol.states import JobState
from jobs.models import Job
from scheduling.cycle import snapshot
from tests.factories import make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def test_promised_job_keeps_its_promise_over_cycles(user, tenant):
    """A12: until it starts; then no job holds a promise."""
    node = make_node(gpus=8)
    submit(user, tenant, gpu_count=4, max_runtime_minutes=60)
    run_cycle()
    [key] = node.start_all()
    large = submit(user, tenant, gpu_count=8)
    small = submit(user, tenant, gpu_count=2)
    run_cycle()
    assert snapshot.load()[0].reserved_job_id == large
    assert Job.objects.get(pk=small).reason == "reserved"
    run_cycle()
    assert snapshot.load()[0].reserved_job_id == large
    node.end(key)
    run_cycle()
    assert Job.objects.get(pk=large).state == JobState.SCHEDULED
    assert snapshot.load()[0].reserved_job_id in (None, small)
