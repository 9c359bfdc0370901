"""Nodes that fall silent, come back, join again, and hardware that changes."""

from datetime import timedelta

import pytest
from django.utils import timezone

from gpusched.protocol.agent_messages import Join, Reading, Stop
from jobs.listing import representation
from jobs.models import Attempt, Job, JobEvent
from nodes.agents.hub import renew_lease
from nodes.health import cordon
from nodes.inventory import join
from nodes.models import Allocation, Device, ListenerLease, Node
from tests.factories import FakeAgent, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def pass_time(seconds):
    """Simulate silence of all nodes while the server listens."""
    now = timezone.now()
    Node.objects.update(last_seen_at=now - timedelta(seconds=seconds))
    ListenerLease.objects.update_or_create(id=1, defaults={"since": now - timedelta(hours=1), "seen_at": now})


class TestLost:
    """A37"""

    def test_silent_node_is_lost_and_its_job_requeues_elsewhere(self, user, tenant):
        first = make_node(gpus=1)
        job_id = submit(user, tenant, gpu_count=1)
        run_cycle()
        [key] = first.start_all()
        pass_time(16)
        second = make_node(gpus=1)

        run_cycle()
        assert Node.objects.get(pk=first.id).state == "lost"
        job = Job.objects.get(pk=job_id)
        assert (job.state, job.attempt) == ("scheduled", 2)
        assert second.start_all() == [f"{job_id}.2.0"]

    def test_dead_node_is_lost_after_the_clock_was_set_back(self, user, tenant):
        """By more than the server has run, as when a machine boots with a wrong clock."""
        node = make_node(gpus=1)
        job_id = submit(user, tenant, requeue=False)
        run_cycle()
        node.start_all()
        an_hour_ahead = timezone.now() + timedelta(hours=1)
        Node.objects.update(last_seen_at=an_hour_ahead)
        ListenerLease.objects.update_or_create(id=1, defaults={"since": an_hour_ahead, "seen_at": an_hour_ahead})
        renew_lease()
        assert ListenerLease.objects.get().since <= timezone.now()
        run_cycle()
        assert Node.objects.get().state == "online", "it has had no time to report since then"
        ListenerLease.objects.update(since=timezone.now() - timedelta(seconds=16))
        run_cycle()
        assert Node.objects.get().state == "lost"
        assert Job.objects.filter(pk=job_id, ended_at__lte=timezone.now()).exists()

    def test_no_node_is_lost_when_the_clock_is_set_back(self, user, tenant):
        """Its latest message is of the future until it reports again."""
        make_node(gpus=1)
        now = timezone.now()
        ahead = now + timedelta(seconds=60)
        Node.objects.update(last_seen_at=ahead)
        since = now - timedelta(days=1)
        ListenerLease.objects.update_or_create(id=1, defaults={"since": since, "seen_at": ahead})
        for _ in range(2):
            run_cycle()
            assert Node.objects.get().state == "online"
            renew_lease()

    def test_renewals_of_several_processes_keep_the_lease(self):
        """One reads the clock, and waits for another that reads it later."""
        now = timezone.now()
        since = now - timedelta(days=1)
        seen_at = now + timedelta(seconds=1)
        ListenerLease.objects.update_or_create(id=1, defaults={"since": since, "seen_at": seen_at})
        renew_lease()
        assert ListenerLease.objects.get().since == since

    def test_job_without_requeue_fails_when_its_node_is_lost(self, user, tenant):
        node = make_node()
        job_id = submit(user, tenant, requeue=False)
        run_cycle()
        node.start_all()
        pass_time(16)
        run_cycle()
        job = Job.objects.get(pk=job_id)
        assert (job.state, job.reason) == ("failed", "node_lost")

    def test_job_does_not_end_before_it_was_placed(self, user, tenant):
        """A node may have stopped before the job came; the server does not know that yet."""
        make_node()
        job_id = submit(user, tenant, requeue=False)
        run_cycle()
        pass_time(16)
        run_cycle()
        placed_at = Attempt.objects.get(job_id=job_id).scheduled_at
        assert Job.objects.get(pk=job_id).ended_at == placed_at
        assert JobEvent.objects.get(job_id=job_id, kind="ended").at == placed_at

    def test_returning_node_stops_its_stale_attempt_before_it_is_in_service(self, user, tenant):
        node = make_node(gpus=1)
        job_id = submit(user, tenant, gpu_count=1)
        run_cycle()
        [key] = node.start_all()
        pass_time(16)
        run_cycle()
        assert Job.objects.get(pk=job_id).state == "pending"

        answer = node.sync()
        assert [(order.key, type(order)) for order in answer.assignments] == [(key, Stop)]
        assert Node.objects.get(pk=node.id).state == "lost", "the stale process still lives there"
        run_cycle()
        assert Job.objects.get(pk=job_id).state == "pending"

        node.end(key, exit_code=None, signal=15, reason="superseded")
        assert Node.objects.get(pk=node.id).state == "online"
        run_cycle()
        assert Job.objects.get(pk=job_id).state == "scheduled"
        assert Job.objects.get(pk=job_id).attempt == 2

    def test_14_seconds_of_silence_are_not_a_loss(self, user, tenant):
        node = make_node()
        pass_time(14)
        run_cycle()
        assert Node.objects.get(pk=node.id).state == "online"

    def test_control_plane_outage_loses_no_node(self, user, tenant):
        """A32: after ten minutes without anybody listening, every node has been silent, and none is dead."""
        node = make_node()
        job_id = submit(user, tenant)
        run_cycle()
        node.start_all()
        pass_time(600)
        long_ago = timezone.now() - timedelta(seconds=600)
        ListenerLease.objects.update(since=long_ago, seen_at=long_ago)

        run_cycle()
        renew_lease()
        run_cycle()
        assert Node.objects.get(pk=node.id).state == "online"
        assert Job.objects.get(pk=job_id).state == "running"


class TestJoin:
    """A33"""

    def test_joining_twice_leaves_inventory_and_allocations_unchanged(self, user, tenant):
        node = make_node(gpus=4)
        submit(user, tenant, gpu_count=2)
        run_cycle()
        node.start_all()
        previous = list(Device.objects.order_by("id").values())

        rejoined = join.join_node(Join(name=node.name, node_key=node.key, facts=node.facts()), 2.0)

        assert rejoined.node_id == node.id
        assert list(Device.objects.order_by("id").values()) == previous
        assert Allocation.objects.count() == 2

    def test_joining_again_revokes_the_old_credential(self):
        node = make_node()
        rejoined = join.join_node(Join(name=node.name, node_key=node.key, facts=node.facts()), 2.0)
        assert join.authenticate(f"Bearer {node.credential}") is None
        assert join.authenticate(f"Bearer {rejoined.credential}") == node.id

    def test_name_of_a_living_node_cannot_be_taken(self):
        from gpusched.lib.api.problems import Problem

        node = make_node()
        with pytest.raises(Problem, match="another machine"):
            join.join_node(Join(name=node.name, node_key="another-key", facts=node.facts()), 2.0)

    @pytest.mark.parametrize("state", ["joined", "lost"])
    def test_name_of_a_joined_but_unreported_node_cannot_be_taken(self, state):
        """Its agent may start later than GPUSCHED_NODE_LOST_SECONDS after `gpusched-agent join`."""
        from gpusched.lib.api.problems import Problem

        first = FakeAgent()
        Node.objects.update(state=state)
        with pytest.raises(Problem, match="has joined and not yet reported") as caught:
            join.join_node(Join(name=first.name, node_key="another-key", facts=first.facts()), 2.0)
        assert caught.value.code == "name_taken"
        assert join.authenticate(f"Bearer {first.credential}") == first.id

    def test_name_of_a_lost_node_without_jobs_can_be_taken(self):
        node = make_node()
        Node.objects.update(state="lost")
        rejoined = join.join_node(Join(name=node.name, node_key="another-key", facts=node.facts()), 2.0)
        assert rejoined.node_id == node.id
        assert join.authenticate(f"Bearer {node.credential}") is None

    def test_heartbeat_neither_frees_nor_allocates_devices(self, user, tenant):
        node = make_node(gpus=2)
        submit(user, tenant, gpu_count=1)
        run_cycle()
        node.start_all()
        idle = [Reading(uuid=d.uuid, utilisation_percent=0, memory_used_mb=0) for d in node.devices]
        node.sync(readings=idle)
        assert sorted(Device.objects.values_list("held_whole", flat=True)) == [0, 1]


class TestReadings:
    def test_unknown_health_stays_unknown(self):
        node = make_node(gpus=1)
        node.sync(readings=[Reading(uuid=node.devices[0].uuid, temperature_celsius=41)])
        reading = Device.objects.get().reading
        assert (reading.temperature_celsius, reading.utilisation_percent, reading.power_watts) == (41, None, None)

    def test_lost_device_is_out_of_service_and_comes_back(self, user, tenant):
        node = make_node(gpus=1)
        node.sync(readings=[Reading(uuid=node.devices[0].uuid, lost=True)])
        assert Device.objects.get().health == "lost"
        job_id = submit(user, tenant, gpu_count=1)
        run_cycle()
        job = Job.objects.get(pk=job_id)
        assert (job.state, job.reason) == ("pending", "health")
        node.sync(readings=[Reading(uuid=node.devices[0].uuid, temperature_celsius=40)])
        run_cycle()
        assert Job.objects.get(pk=job_id).state == "scheduled"

    def test_node_cannot_report_readings_of_another_nodes_devices(self):
        node, other = make_node(gpus=1), make_node(gpus=1)
        node.sync(readings=[Reading(uuid=other.devices[0].uuid, lost=True)])
        assert not Device.objects.filter(health="lost").exists()

    def test_device_that_is_no_longer_listed_is_lost(self):
        node = make_node(gpus=2)
        node.devices.pop()
        node.sync(facts=node.facts())
        assert sorted(Device.objects.values_list("health", flat=True)) == ["lost", "ok"]


def test_rank_missing_from_its_agent_ends_as_a_node_fault(user, tenant):
    node = make_node()
    job_id = submit(user, tenant)
    run_cycle()
    node.start_all()
    node.held = []
    node.sync()
    assert Job.objects.get(pk=job_id).state == "running"
    from nodes.models import Assignment

    Assignment.objects.update(missing_since=timezone.now() - timedelta(seconds=20))
    node.sync()
    assert Job.objects.get(pk=job_id).state == "pending"


def test_next_step_for_a_lost_node_is_to_restore_it(user, tenant):
    node = make_node()
    Node.objects.filter(pk=node.id).update(state="lost")
    job_id = submit(user, tenant)
    run_cycle()
    reason = representation.select("j.id = %s", [job_id])[0]["reason"]
    assert (reason["code"], reason["evidence"]) == ("maintenance", {"nodes": 1, "lost": 1})
    assert reason["next_step"] == "bring a lost node back: start it and its agent, or wait"


def test_cordoned_nodes_get_no_new_jobs(user, tenant):
    from gpusched.protocol.states import NodeIntent

    node = make_node()
    cordon.set_intent(node.name, NodeIntent.CORDONED)
    job_id = submit(user, tenant)
    run_cycle()
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.reason) == ("pending", "maintenance")
    cordon.set_intent(node.name, NodeIntent.OPEN)
    run_cycle()
    assert Job.objects.get(pk=job_id).state == "scheduled"
