"""Replicas whose jobs wait: requeued or retried they are cold again, and without need for them they end."""

import pytest

from gpusched.lib.db.sql import execute
from jobs.actions import job_actions
from jobs.models import Job
from serving import upkeep
from serving.models import Endpoint, Replica
from serving.replicas.reconcile import reconcile
from tests.factories import identity_for, run_cycle
from tests.serving.requests import ask
from tests.serving.test_replicas import live, make, make_warm, node, run_idle_replica  # noqa: F401 fixtures

pytestmark = pytest.mark.django_db


def test_replica_whose_job_is_retried_serves_again_and_stops_when_idle(tenant, user, node):  # noqa: F811
    """Without this, the job would hold its GPU without end."""
    job_id = run_idle_replica(tenant, user, node, idle_seconds=60)
    job_actions.cancel(job_id, identity_for(user))
    node.end(*node.held, reason="cancelled", exit_code=None)
    reconcile()
    assert live() == []
    job_actions.retry(job_id, identity_for(user))
    reconcile()
    assert live() == [job_id]
    run_cycle()
    node.start_all()
    make_warm(job_id, 100)
    reconcile()
    assert (live(), Job.objects.get(pk=job_id).state) == ([], "stopping")


def test_replica_that_runs_again_before_a_tick_is_not_warm(tenant, user, node):  # noqa: F811
    """It loads its model again, which may take longer than a warm replica may be silent."""
    job_id = run_idle_replica(tenant, user, node)
    job_actions.requeue(job_id, identity_for(user))
    node.end(*node.held, reason="requeued", exit_code=None)
    run_cycle()
    node.start_all()
    assert Job.objects.get(pk=job_id).state == "running"
    reconcile()
    replica = Replica.objects.get()
    assert (replica.warm_at, replica.dispatcher, live()) == (None, None, [job_id])


@pytest.mark.parametrize("state", ["pending", "running"])
def test_cold_start_of_a_requeued_replica_is_that_of_its_latest_attempt(tenant, user, node, state):  # noqa: F811
    job_id = run_idle_replica(tenant, user, node)
    execute("UPDATE serving_replica SET created_at = created_at - interval '3 days'")
    job_actions.requeue(job_id, identity_for(user))
    node.end(*node.held, reason="requeued", exit_code=None)
    if state == "running":
        run_cycle()
        node.start_all()
    assert Job.objects.get(pk=job_id).state == state
    reconcile()
    make_warm(job_id)
    upkeep.forget_old()
    seconds = Endpoint.objects.get().cold_start_seconds
    assert seconds is not None and 0 <= seconds < 60


def test_replica_that_waits_for_gpus_ends_with_the_need_for_it(tenant, user):
    endpoint = make(tenant, user, idle_seconds=60)
    [number] = ask(endpoint, user)
    reconcile()
    [job_id] = live()
    execute("UPDATE serving_replica SET created_at = now() - interval '61 s'")
    execute("UPDATE serving_prewarming SET active_at = now() - interval '61 s'")
    reconcile()
    assert live() == [job_id], "a request waits for it"
    execute("UPDATE serving_inferencerequest SET state = 'expired', ended_at = now() WHERE id = %s", [number])
    execute("UPDATE serving_prewarming SET active_at = now() - interval '59 s', seen_at = now()")
    reconcile()
    assert live() == [job_id], "another request may come"
    execute("UPDATE serving_prewarming SET active_at = now() - interval '61 s'")
    reconcile()
    assert (live(), Job.objects.get(pk=job_id).state) == ([], "cancelled")
