"""Deletion of old requests, results and files of serving."""

from dataclasses import replace

import pytest

from gpusched.lib.db.sql import execute
from serving import upkeep
from serving.models import InferenceRequest, Replica
from serving.requests import endings
from tests.factories import make_member, make_tenant
from tests.serving.requests import ask, make_endpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def endpoint():
    return make_endpoint(make_tenant("nlp"), make_member(make_tenant("other")))


@pytest.mark.parametrize(("hours", "kept"), [(24.0, 2), (48.0, 3), (0.0, 3)])
def test_tasks_are_deleted_after_the_time_of_the_setting(endpoint, settings, hours, kept):
    settings.ENV = replace(settings.ENV, task_retention_hours=hours)
    old, new, _ = ask(endpoint, endpoint.owner, 3)
    endings.cancel([old, new])
    execute("UPDATE serving_inferencerequest SET ended_at = ended_at - interval '25 h' WHERE id = %s", [old])
    upkeep.forget_old()
    assert InferenceRequest.objects.count() == kept


def test_deletion_of_many_tasks_goes_on_at_the_next_time(endpoint, monkeypatch):
    monkeypatch.setattr(endings, "MAX_AT_ONCE", 1)
    monkeypatch.setattr(upkeep, "FORGET_SECONDS", 0.0)
    endings.cancel(ask(endpoint, endpoint.owner, 1))
    endings.cancel(ask(endpoint, endpoint.owner, 1))
    execute("UPDATE serving_inferencerequest SET ended_at = ended_at - interval '25 h'")
    assert not upkeep.forget_old()
    assert InferenceRequest.objects.count() == 1
    monkeypatch.setattr(upkeep, "FORGET_SECONDS", 60.0)
    assert upkeep.forget_old()
    assert not InferenceRequest.objects.exists()


def test_replicas_are_deleted_a_week_after_their_end(endpoint):
    for number, ended in enumerate(("NULL", "now() - interval '6 days'", "now() - interval '8 days'")):
        Replica.objects.create(job_id=number, endpoint=endpoint)
        execute(f"UPDATE serving_replica SET ended_at = {ended} WHERE job_id = %s", [number])
    upkeep.forget_old()
    assert sorted(Replica.objects.values_list("job_id", flat=True)) == [0, 1]
