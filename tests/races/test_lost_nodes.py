"""Nodes that report at the moment at which a cycle loses them, with two real connections."""

import threading
from datetime import timedelta

import pytest
from django.db import connections, transaction
from django.utils import timezone

from gpusched.lib.db.sql import execute, query
from gpusched.protocol.agent_messages import Stop
from jobs.models import Job
from nodes.models import ListenerLease, Node
from nodes.ranks import recovery
from tests.factories import FakeAgent, make_member, make_node, make_tenant, run_cycle, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def sync_while_the_node_is_lost(node: FakeAgent) -> None:
    """Let a message of the node wait for the transaction that marks it lost."""

    def message() -> None:
        try:
            node.sync()
        finally:
            connections.close_all()

    thread = threading.Thread(target=message)
    with transaction.atomic():
        assert recovery.mark_silent_nodes_lost() == [node.id]
        thread.start()
        wait_for(lambda: query("SELECT 1 FROM pg_locks WHERE NOT granted"), 30, "the message to wait for the loss")
    thread.join(30)


def test_node_stays_lost_while_it_runs_what_a_cycle_ended_at_the_moment_of_its_message():
    """A34: its GPU must not go to another job before the process is gone."""
    tenant = make_tenant()
    node = make_node(gpus=1)
    job_id = submit(make_member(tenant), tenant)
    run_cycle()
    [key] = node.start_all()
    now = timezone.now()
    ListenerLease.objects.create(id=1, since=now - timedelta(hours=1), seen_at=now + timedelta(seconds=5))
    execute("UPDATE nodes_node SET last_seen_at = now() - interval '1 min'")
    sync_while_the_node_is_lost(node)
    assert Job.objects.get(pk=job_id).state == "pending"
    assert Node.objects.get().state == "lost"
    [order] = node.sync().assignments
    assert (order.key, isinstance(order, Stop), Node.objects.get().state) == (key, True, "lost")
    node.end(key, exit_code=None, reason="superseded")
    assert Node.objects.get().state == "online"
