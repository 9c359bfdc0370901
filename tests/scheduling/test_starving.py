"""The engine learns from the database how long running jobs had waited: a forecast requeues them with their age."""

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.models import Job
from scheduling.cycle import snapshot
from tests.factories import make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def test_past_wait_of_a_running_job_reaches_the_engine(user, tenant):
    """A12: since its submission, or since it might start where that was later."""
    node = make_node(gpus=8)
    old, later = submit(user, tenant, gpu_count=2), submit(user, tenant, gpu_count=2)
    day = timedelta(days=1)
    Job.objects.filter(pk__in=(old, later)).update(submitted_at=timezone.now() - 12 * day)
    Job.objects.filter(pk=later).update(eligible_at=timezone.now() - day)
    run_cycle()
    node.start_all()
    submit(user, tenant, gpu_count=8)
    waited = {job.job_id: job.waited_seconds / 86400 for job in snapshot.load()[0].running}
    assert waited == pytest.approx({old: 12, later: 1}, abs=0.01)
