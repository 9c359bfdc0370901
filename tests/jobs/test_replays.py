"""A03: a submit repeated with its key gets the first answer, whatever has happened to the job."""

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
def test_replay_returns_the_first_answer_when_the_limit_has_changed(tenant, identity, fields):
    request = JobRequest(tenant=tenant.name, command=["x"], **fields)
    first = submit.submit(request, identity, "k1", b"{}")
    job_id = Job.objects.get().pk
    for minutes in (20, 15):
        time_limit.change(time_limit.load_for_change(job_id, identity), minutes * 60, identity, {})
    assert Job.objects.get().max_runtime_seconds == 900
    repeated = submit.submit(request, identity, "k1", b"{}")
    assert (repeated.answer, repeated.is_replay) == (first.answer, True)


def test_keys_of_two_users_are_independent(tenant, identity):
    """A08: even in the same tenant, with the same body."""
    other = identity_for(make_member(tenant))
    request = JobRequest(tenant=tenant.name, command=["x"])
    answers = [submit.submit(request, caller, "k1", b"{}") for caller in (identity, other, identity, other)]
    assert [caller.is_replay for caller in answers] == [False, False, True, True]
    assert answers[0].answer == answers[2].answer != answers[1].answer == answers[3].answer


def test_replay_is_not_delayed_when_the_submit_would_be_refused_now(tenant, identity, settings, monkeypatch):
    request = JobRequest(tenant=tenant.name, command=["x"])
    first = submit.submit(request, identity, "k1", b"{}")
    settings.ENV = replace(settings.ENV, max_queued_jobs_per_user=1)
    delays: list[float] = []
    monkeypatch.setattr(refusals, "hold_answer", delays.append)
    assert submit.submit(request, identity, "k1", b"{}").answer == first.answer
    assert delays == []
    with pytest.raises(Problem, match="at most 1 are allowed"):
        submit.submit(request, identity, "k2", b"{}")
    assert len(delays) == 1
