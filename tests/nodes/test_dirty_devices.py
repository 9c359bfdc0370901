"""Devices that stay dirty (A34): quarantined in the end, with their cause and their way back."""

from datetime import timedelta

import pytest
from django.db.models import F

from gpusched import env
from gpusched.protocol.agent_messages import Reading
from nodes.health import device_health, incidents
from nodes.models import Device, Incident
from scheduling.worker import tasks
from tests.factories import make_node, run_cycle, submit
from tests.nodes.test_health import ALICE, found, read, state

pytestmark = pytest.mark.django_db(transaction=True)


class TestLeftAtTheEnd:
    """A34: a device that its agent did not find free after the end is never offered in between."""

    def test_device_is_dirty_from_its_release_until_a_later_reading(self, user, tenant):
        node = make_node(gpus=1)
        submit(user, tenant)
        run_cycle()
        [key] = node.start_all()
        waiting = submit(user, tenant)
        previous = [Reading(uuid=node.devices[0].uuid, occupancy="clear")]
        node.end(key, left={node.devices[0].uuid: ALICE, "GPU-of-another": ALICE}, readings=previous)
        assert found() == [("dirty", ALICE)]
        assert state(waiting) == "pending"
        read(node, "clear")
        assert state(waiting) == "scheduled"

    def test_repeated_end_does_not_affect_the_next_holder(self, user, tenant):
        node = make_node(gpus=1)
        submit(user, tenant)
        run_cycle()
        [key] = node.start_all()
        node.end(key)
        submit(user, tenant)
        run_cycle()
        node.start_all()
        node.end(key, left={node.devices[0].uuid: ALICE})
        assert found() == [("ok", "")]


class TestDirtForLong:
    """A34: what cannot be ended takes its device out of service, until an admin has seen to it."""

    def pass_minutes(self, minutes):
        Incident.objects.update(since=F("since") - timedelta(minutes=minutes))

    def test_device_that_stays_dirty_is_quarantined_and_cleared_by_an_admin(self, user, tenant):
        node = make_node(gpus=2)
        read(node, "dirty", ALICE)
        self.pass_minutes(9)
        assert tasks.mend() == 0
        self.pass_minutes(2)
        assert tasks.mend() == 2
        assert found() == [("quarantined", f"dirty for 10 min: {ALICE}")] * 2
        assert [incident["kind"] for incident in incidents.latest(10, is_open=True)] == ["quarantined"] * 2
        read(node, "clear")
        job = submit(user, tenant)
        assert state(job) == "pending"
        device_health.clear(Device.objects.order_by("id")[0].pk)
        assert found()[0] == ("ok", "")
        assert state(job) == "scheduled"

    @pytest.mark.parametrize("occupancy", ["foreign", "clear"])
    def test_other_health_states_are_not_quarantined(self, occupancy):
        """A foreign process is not judged by its user; a device that becomes free by itself is clean."""
        node = make_node(gpus=1)
        read(node, "dirty", ALICE)
        self.pass_minutes(60)
        read(node, occupancy, ALICE)
        assert tasks.mend() == 0
        self.pass_minutes(60)
        assert tasks.mend() == 0

    def test_cleared_device_that_is_still_dirty_gets_its_full_time_again(self):
        node = make_node(gpus=1)
        read(node, "dirty", ALICE)
        self.pass_minutes(11)
        tasks.mend()
        read(node, "dirty", ALICE)
        device_health.clear(Device.objects.get().pk)
        assert found() == [("dirty", ALICE)]
        assert tasks.mend() == 0

    def test_quarantine_of_dirty_devices_can_be_switched_off(self, settings):
        settings.ENV = env.Env(dirty_minutes=0)
        read(make_node(gpus=1), "dirty", ALICE)
        self.pass_minutes(1000)
        assert tasks.mend() == 0
