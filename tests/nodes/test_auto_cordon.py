"""Nodes are held after faults that met different users (A39)."""

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone
from msgspec import structs

from gpusched.protocol.agent_messages import Ended, Hint, Reading, Xid
from gpusched.protocol.states import NodeIntent
from jobs.actions import job_actions
from jobs.models import Job
from nodes import redaction
from nodes.health import auto_cordon, cordon, incidents
from nodes.models import Assignment, Device, Incident, Node
from scheduling.worker import tasks
from tests.factories import identity_for, make_member, make_node, now, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def lose(node, user, tenant, reason="node_fault"):
    """A job of the user runs on the node and is lost there."""
    job = submit(user, tenant, node_selector={"only": node.name})
    run_cycle()
    node.end(*node.start_all(), exit_code=None, reason=reason)
    job_actions.cancel(job, identity_for(user))
    return job


def labelled(count=1):
    nodes = [make_node(gpus=1) for _ in range(count)]
    for node in nodes:
        Node.objects.filter(pk=node.id).update(admin_labels={"only": node.name})
    return nodes


def cordon_notes():
    return {node.name: node.intent_note for node in Node.objects.exclude(intent="open")}


@pytest.fixture
def other(tenant):
    return make_member(tenant)


@pytest.mark.parametrize("reason", ["node_fault", "supervisor_lost"])
def test_faults_that_hit_two_users_cordon_the_node(reason, user, other, tenant):
    """A39"""
    node, _ = labelled(2)
    first = lose(node, user, tenant, reason)
    assert cordon_notes() == {}
    second = lose(node, other, tenant, reason)
    assert cordon_notes() == {node.name: f"held after 2 node faults: jobs {first}, {second}"}
    [incident] = incidents.latest(10)
    assert (incident["kind"], incident["node"]) == ("cordoned", node.name)
    waiting = submit(user, tenant, node_selector={"only": node.name})
    run_cycle()
    assert Job.objects.get(pk=waiting).state == "pending"


def test_faults_that_hit_a_single_user_do_not_cordon_the_node(user, tenant):
    """The job itself may cause them."""
    [node] = labelled()
    for _ in range(3):
        lose(node, user, tenant)
    assert cordon_notes() == {}


@pytest.mark.parametrize("reason", ["exited", "signalled", "node_rebooted", "agent_stopped", "launch_failed"])
def test_other_ends_do_not_count_as_faults(reason, user, other, tenant):
    [node] = labelled()
    lose(node, user, tenant, reason)
    lose(node, other, tenant, reason)
    assert cordon_notes() == {}


def test_faults_on_different_nodes_or_an_hour_apart_do_not_cordon(user, other, tenant):
    first, second = labelled(2)
    lose(first, user, tenant)
    lose(second, other, tenant)
    assert cordon_notes() == {}
    hour = timedelta(hours=1)
    Assignment.objects.update(started_at=F("started_at") - hour, ended_at=F("ended_at") - hour)
    lose(first, other, tenant)
    assert cordon_notes() == {}


def test_cluster_wide_fault_cordons_at_most_a_tenth_of_the_nodes_and_at_least_one(user, other, tenant):
    """A39: a cluster-wide fault cannot drain everything."""
    some = labelled(3)
    for node in some:
        lose(node, user, tenant)
        lose(node, other, tenant)
    assert list(cordon_notes()) == [some[0].name]
    for _ in range(17):
        make_node(gpus=0)
    lose(some[1], user, tenant)
    lose(some[2], user, tenant)
    assert list(cordon_notes()) == [some[0].name, some[1].name]


def run_on_gpu(node, user, tenant):
    """(job, key, device) of a job that runs on a GPU of the node."""
    job = submit(user, tenant, gpu_count=1, node_selector={"only": node.name})
    run_cycle()
    [key] = node.start_all()
    return job, key, Device.objects.get(held_whole=1)


@pytest.mark.parametrize("reading", [{"lost": True}, {"xids": [Xid(code=79, seconds_ago=0)]}])
def test_jobs_that_fail_on_lost_gpus_do_not_count_against_the_node(reading, user, other, tenant):
    """A38, A39: each lost GPU is out of service, and the other GPUs of the node go on."""
    node = make_node(gpus=3)
    Node.objects.filter(pk=node.id).update(admin_labels={"only": node.name})
    for member in (user, other):
        job, key, device = run_on_gpu(node, member, tenant)
        node.held = []
        ended = Ended(key=key, at=now(), reason="exited", exit_code=1)
        node.sync(ended, readings=[Reading(uuid=device.uuid, **reading)])
        assert Assignment.objects.get(job_id=job).reason == "node_fault"
        job_actions.cancel(job, identity_for(member))
    assert cordon_notes() == {}
    assert Device.objects.filter(health="ok").count() == 1


def test_jobs_stopped_on_lost_gpus_do_not_count_against_the_node(user, other, tenant):
    """A38, A39"""
    node = make_node(gpus=3)
    Node.objects.filter(pk=node.id).update(admin_labels={"only": node.name})
    for member in (user, other):
        job, key, device = run_on_gpu(node, member, tenant)
        node.sync(readings=[Reading(uuid=device.uuid, lost=True)])
        Incident.objects.update(since=F("since") - timedelta(seconds=11))
        run_cycle()
        assert Job.objects.get(pk=job).state == "stopping"
        node.end(key, exit_code=None, signal=9, reason="node_fault")
        assert Assignment.objects.get(job_id=job).reason == "node_fault"
        job_actions.cancel(job, identity_for(member))
    assert cordon_notes() == {}


def test_faults_count_anew_after_an_admin_opens_the_node(user, other, tenant):
    """The way back; the faults before it count no more."""
    [node] = labelled()
    lose(node, user, tenant)
    lose(node, other, tenant)
    cordon.set_intent(node.name, NodeIntent.OPEN)
    lose(node, user, tenant)
    assert cordon_notes() == {}
    lose(node, other, tenant)
    assert list(cordon_notes()) == [node.name]


def test_note_of_an_admin_stays(user, other, tenant):
    [node] = labelled()
    lose(node, user, tenant)
    job = submit(other, tenant, node_selector={"only": node.name})
    run_cycle()
    keys = node.start_all()
    cordon.set_intent(node.name, NodeIntent.DRAINING, "moves to the new rack")
    node.end(*keys, exit_code=None, reason="node_fault")
    assert cordon_notes() == {node.name: "moves to the new rack"}
    job_actions.cancel(job, identity_for(other))


def test_ranks_unknown_to_their_agent_count_as_faults(user, other, tenant):
    [node] = labelled()
    lose(node, user, tenant)
    submit(other, tenant, node_selector={"only": node.name})
    run_cycle()
    node.start_all()
    node.held = []
    node.sync()
    Assignment.objects.filter(state="running").update(missing_since=timezone.now() - timedelta(minutes=1))
    node.sync()
    assert list(cordon_notes()) == [node.name]


class TestTheWayBack:
    """A39: a held node is tried again by itself, each time later."""

    @pytest.fixture
    def node(self, user, other, tenant):
        [node] = labelled()
        self.strike(node, user, other, tenant)
        return node

    def strike(self, node, user, other, tenant):
        lose(node, user, tenant)
        lose(node, other, tenant)
        assert list(cordon_notes()) == [node.name]

    def pass_minutes(self, minutes):
        ago = timedelta(minutes=minutes)
        Incident.objects.update(since=F("since") - ago, until=F("until") - ago)
        Assignment.objects.update(started_at=F("started_at") - ago, ended_at=F("ended_at") - ago)

    def test_cordoned_node_opens_after_ten_minutes(self, node):
        self.pass_minutes(9)
        assert (tasks.mend(), list(cordon_notes())) == (0, [node.name])
        self.pass_minutes(2)
        assert (tasks.mend(), cordon_notes()) == (1, {})

    def test_each_cordon_lasts_twice_as_long_up_to_a_day(self, node):
        for minutes in (10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440):
            self.pass_minutes(minutes - 1)
            assert auto_cordon.uncordon_due() == 0
            self.pass_minutes(2)
            assert auto_cordon.uncordon_due() == 1
            cordon.set_intent(node.name, NodeIntent.CORDONED, f"{redaction.AUTO_CORDON_NOTE}2 node faults")

    def test_cordon_time_starts_anew_after_a_week_without_one(self, node, user, other, tenant):
        self.pass_minutes(11)
        tasks.mend()
        self.pass_minutes(8 * 24 * 60)
        self.strike(node, user, other, tenant)
        self.pass_minutes(11)
        assert tasks.mend() == 1

    @pytest.mark.parametrize("health", ["degraded", "lost"])
    def test_cordoned_node_stays_closed_with_an_unhealthy_device(self, node, health):
        Device.objects.update(health=health)
        self.pass_minutes(2000)
        assert (tasks.mend(), list(cordon_notes())) == (0, [node.name])
        Device.objects.update(health="ok")
        assert tasks.mend() == 1

    def test_lost_nodes_and_admin_cordons_stay_closed(self, node):
        Node.objects.update(state="lost")
        self.pass_minutes(2000)
        assert tasks.mend() == 0
        node.sync()
        cordon.set_intent(node.name, NodeIntent.CORDONED, "new disk")
        self.pass_minutes(2000)
        assert (tasks.mend(), cordon_notes()) == (0, {node.name: "new disk"})


@pytest.mark.parametrize(("check", "became"), [("read_only_disk", "read-only"), ("full_disk", "full")])
def test_node_with_an_unusable_disk_is_cordoned_until_it_can_be_written(user, tenant, check, became):
    """A job that is placed there cannot start, and one that ends there may not be reported."""
    [node] = labelled()
    hint = Hint(check=check, level="fail", says="the disk of /var cannot be written")
    node.sync(facts=structs.replace(node.facts(), hints=[hint]))
    assert cordon_notes() == {node.name: f"held after its disk became {became}"}
    waiting = submit(user, tenant, node_selector={"only": node.name})
    run_cycle()
    assert Job.objects.get(pk=waiting).state == "pending"
    Incident.objects.update(since=F("since") - timedelta(days=2))
    auto_cordon.uncordon_due()
    assert list(cordon_notes()) == [node.name]
    node.sync(facts=node.facts())
    auto_cordon.uncordon_due()
    assert cordon_notes() == {}
