"""Replicas after the clock of the database was set back."""

import pytest

from gpusched.lib.db.sql import execute
from serving.replicas.reconcile import reconcile
from tests.serving.requests import ask
from tests.serving.test_replicas import live, make, node, run_idle_replica  # noqa: F401 fixtures

pytestmark = pytest.mark.django_db


def test_failed_replica_is_replaced_after_the_clock_was_set_back(tenant, user, node):  # noqa: F811
    """Otherwise the endpoint has no replica until the clock shows the time of the failure again."""
    ask(make(tenant, user), user)
    reconcile()
    [first] = live()
    execute("UPDATE jobs_job SET state = 'failed', ended_at = now() WHERE id = %s", [first])
    reconcile()
    execute("UPDATE serving_replica SET ended_at = ended_at + interval '1 hour'")
    reconcile()
    assert len(live()) == 1


def test_idle_replica_ends_after_the_clock_was_set_back(tenant, user, node):  # noqa: F811
    run_idle_replica(tenant, user, node, idle_seconds=20)
    execute("UPDATE serving_replica SET busy_at = now() + interval '1 hour', warm_at = now() + interval '1 hour'")
    reconcile()
    execute("UPDATE serving_replica SET busy_at = busy_at - interval '30 s', warm_at = warm_at - interval '30 s'")
    reconcile()
    assert live() == []
