"""Replicas above a lowered maximum: they answer what they have, and stop."""

import pytest

from gpusched.lib.db.sql import execute
from jobs.models import Job
from serving.replicas.reconcile import reconcile
from tests.factories import run_cycle
from tests.serving.requests import ask, claim
from tests.serving.test_replicas import live, make, make_warm, node  # noqa: F401 fixtures

pytestmark = pytest.mark.django_db


def test_busy_replica_above_a_lowered_maximum_stops_once_its_batch_has_ended(tenant, user, node):  # noqa: F811
    endpoint = make(tenant, user, min_replicas=2, max_replicas=2)
    reconcile()
    kept, drained = sorted(live())
    run_cycle()
    node.start_all()
    for job_id, number in zip((kept, drained), ask(endpoint, user, 2), strict=True):
        make_warm(job_id)
        claim([number], replica=job_id)
    execute("UPDATE serving_endpoint SET min_replicas = 0, max_replicas = 1")
    reconcile()
    reconcile()
    assert live() == [kept]
    assert Job.objects.get(pk=drained).state == "running"
    execute("UPDATE serving_inferencerequest SET state = 'completed', ended_at = now()")
    reconcile()
    states = dict(Job.objects.values_list("pk", "state"))
    assert states == {kept: "running", drained: "stopping"}
