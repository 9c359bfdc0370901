"""A03: a submit that is repeated with its key is given the first answer, whatever became of the job since."""

from dataclasses import replace

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.job_request import JobRequest
from jobs.lifecycle import time_limit
from jobs.models import Job
from jobs.submit import refusals, submit
from tests.factories import identity_for, make_member

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("fields", [{"max_runtime_minutes": 10}, {}, {"array": ArrayRequest(count=2)}])
def test_the_first_answer_is_given_again_when_the_limit_was_changed_meanwhile(tenant, who, fields):
    request = JobRequest(tenant=tenant.name, command=["x"], **fields)
    first = submit.submit(request, who, "k1", b"{}")
    job_id = Job.objects.get().pk
    for minutes in (20, 15):
        time_limit.change(time_limit.load_for_change(job_id, who), minutes * 60, who, {})
    assert Job.objects.get().max_runtime_seconds == 900
    again = submit.submit(request, who, "k1", b"{}")
    assert (again.answer, again.is_replay) == (first.answer, True)


def test_the_key_of_one_person_is_nothing_to_another(tenant, who):
    """A08: also of the same tenant, with the same words."""
    other = identity_for(make_member(tenant))
    request = JobRequest(tenant=tenant.name, command=["x"])
    answers = [submit.submit(request, one, "k1", b"{}") for one in (who, other, who, other)]
    assert [one.is_replay for one in answers] == [False, False, True, True]
    assert answers[0].answer == answers[2].answer != answers[1].answer == answers[3].answer


def test_replay_of_a_submit_that_would_be_refused_now_is_not_held(tenant, who, settings, monkeypatch):
    request = JobRequest(tenant=tenant.name, command=["x"])
    first = submit.submit(request, who, "k1", b"{}")
    settings.ENV = replace(settings.ENV, max_queued_jobs_per_user=1)
    held: list[float] = []
    monkeypatch.setattr(refusals, "hold_answer", held.append)
    assert submit.submit(request, who, "k1", b"{}").answer == first.answer
    assert held == []
    with pytest.raises(Problem, match="at most 1 are allowed"):
        submit.submit(request, who, "k2", b"{}")
    assert len(held) == 1
