"""Nodes are held after faults that met different users (A39)."""

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from gpusched.protocol.states import NodeIntent
from jobs import services as jobs
from jobs.models import Job
from nodes import incidents, services
from nodes.models import Assignment, Node
from tests.factories import identity_for, make_member, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def lose(node, user, tenant, reason="node_fault"):
    """A job of the user runs on the node and is lost there."""
    job = submit(user, tenant, node_selector={"only": node.name})
    run_cycle()
    node.end(*node.start_all(), exit_code=None, reason=reason)
    jobs.cancel(job, identity_for(user))
    return job


def labelled(count=1):
    found = [make_node(gpus=1) for _ in range(count)]
    for node in found:
        Node.objects.filter(pk=node.id).update(labels={"only": node.name})
    return found


def held():
    return {node.name: node.intent_note for node in Node.objects.exclude(intent="open")}


@pytest.fixture
def other(tenant):
    return make_member(tenant)


@pytest.mark.parametrize("reason", ["node_fault", "supervisor_lost"])
def test_two_faults_that_meet_different_users_hold_the_node(reason, user, other, tenant):
    """A39"""
    node, _ = labelled(2)
    first = lose(node, user, tenant, reason)
    assert held() == {}
    second = lose(node, other, tenant, reason)
    assert held() == {node.name: f"held after 2 node faults: jobs {first}, {second}"}
    [incident] = incidents.latest(10)
    assert (incident["kind"], incident["node"]) == ("cordoned", node.name)
    waiting = submit(user, tenant, node_selector={"only": node.name})
    run_cycle()
    assert Job.objects.get(pk=waiting).state == "pending"


def test_faults_that_one_user_meets_do_not(user, tenant):
    """It may be what the job does."""
    [node] = labelled()
    for _ in range(3):
        lose(node, user, tenant)
    assert held() == {}


@pytest.mark.parametrize("reason", ["exited", "signalled", "node_rebooted", "agent_stopped", "launch_failed"])
def test_other_ends_are_no_strikes(reason, user, other, tenant):
    [node] = labelled()
    lose(node, user, tenant, reason)
    lose(node, other, tenant, reason)
    assert held() == {}


def test_faults_on_different_nodes_or_over_an_hour_apart_do_not(user, other, tenant):
    first, second = labelled(2)
    lose(first, user, tenant)
    lose(second, other, tenant)
    assert held() == {}
    hour = timedelta(hours=1)
    Assignment.objects.update(started_at=F("started_at") - hour, ended_at=F("ended_at") - hour)
    lose(first, other, tenant)
    assert held() == {}


def test_a_fault_of_all_nodes_holds_a_tenth_of_them_and_at_least_one(user, other, tenant):
    """A39: a cluster-wide fault cannot drain everything."""
    some = labelled(3)
    for node in some:
        lose(node, user, tenant)
        lose(node, other, tenant)
    assert list(held()) == [some[0].name]
    for _ in range(17):
        make_node(gpus=0)
    lose(some[1], user, tenant)
    lose(some[2], user, tenant)
    assert list(held()) == [some[0].name, some[1].name]


def test_what_an_admin_opened_again_starts_anew(user, other, tenant):
    """The way back; the faults before it count no more."""
    [node] = labelled()
    lose(node, user, tenant)
    lose(node, other, tenant)
    services.set_intent(node.name, NodeIntent.OPEN)
    lose(node, user, tenant)
    assert held() == {}
    lose(node, other, tenant)
    assert list(held()) == [node.name]


def test_the_note_of_an_admin_stays(user, other, tenant):
    [node] = labelled()
    lose(node, user, tenant)
    job = submit(other, tenant, node_selector={"only": node.name})
    run_cycle()
    keys = node.start_all()
    services.set_intent(node.name, NodeIntent.DRAINING, "moves to the new rack")
    node.end(*keys, exit_code=None, reason="node_fault")
    assert held() == {node.name: "moves to the new rack"}
    jobs.cancel(job, identity_for(other))


def test_ranks_that_their_agent_does_not_know_are_strikes_too(user, other, tenant):
    [node] = labelled()
    lose(node, user, tenant)
    submit(other, tenant, node_selector={"only": node.name})
    run_cycle()
    node.start_all()
    node.held = []
    node.sync()
    Assignment.objects.filter(state="running").update(missing_since=timezone.now() - timedelta(minutes=1))
    node.sync()
    assert list(held()) == [node.name]
