"""A03: a submit that is repeated with its key is given the first answer, whatever became of the job since."""

import pytest

from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.jobs import JobRequest
from jobs import services, timelimits
from jobs.models import Job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("fields", [{"max_runtime_minutes": 10}, {}, {"array": ArrayRequest(count=2)}])
def test_the_first_answer_is_given_again_when_the_limit_was_changed_meanwhile(tenant, who, fields):
    request = JobRequest(tenant=tenant.name, command=["x"], **fields)
    first = services.submit(request, who, "k1", b"{}")
    job_id = Job.objects.get().pk
    for minutes in (20, 15):
        timelimits.change(timelimits.limited(job_id, who), minutes * 60, who, {})
    assert Job.objects.get().max_runtime_seconds == 900
    again = services.submit(request, who, "k1", b"{}")
    assert (again.answer, again.is_replay) == (first.answer, True)
