"""Health of devices (A34, A35): who is on them, what admins want of them, the way back, and the history."""

import re

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.lib.bus import wake
from gpusched.lib.db.sql import rows
from gpusched.protocol.agent_messages import Reading, Xid
from gpusched.protocol.states import NodeIntent
from jobs.models import Job
from nodes.health import cordon, device_health, incidents
from nodes.models import Device, Incident, Node
from tests.factories import make_node, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)
ALICE = "pid 4242 of alice (python)"


def read(node, occupancy, occupant="", **fields):
    node.sync(
        readings=[
            Reading(uuid=device.uuid, occupancy=occupancy, occupant=occupant, temperature_celsius=40, **fields)
            for device in node.devices
        ]
    )


def found():
    return [(row.health, row.health_note) for row in Device.objects.order_by("id")]


def state(job):
    run_cycle()
    return Job.objects.get(pk=job).state


class TestOccupied:
    @pytest.mark.parametrize("occupancy", ["foreign", "dirty"])
    def test_occupied_device_is_out_of_service_until_it_is_clear(self, occupancy, user, tenant):
        """A34, A35"""
        node = make_node(gpus=1)
        read(node, occupancy, ALICE)
        assert found() == [(occupancy, ALICE)]
        job = submit(user, tenant)
        assert state(job) == "pending"
        read(node, "clear")
        assert found() == [("ok", "")]
        assert state(job) == "scheduled"

    def test_unknown_occupancy_changes_nothing(self):
        """A19: also words of an agent that is newer than this server, and readings of an older one (A57)."""
        node = make_node(gpus=1)
        read(node, None)
        read(node, "haunted", "a ghost")
        assert found() == [("ok", "")]
        read(node, "foreign", ALICE)
        read(node, None)
        read(node, "haunted")
        assert found() == [("foreign", ALICE)]

    def test_occupant_is_updated_when_it_changes(self, monkeypatch):
        node = make_node(gpus=2)
        woken = []
        monkeypatch.setattr(wake, "request_cycle", lambda: woken.append(1))
        read(node, "foreign", ALICE)
        read(node, "foreign", "pid 7 of bob (sh)")
        assert found() == [("foreign", "pid 7 of bob (sh)")] * 2
        read(node, "dirty", "pid 8 of bob (sh)")
        read(node, "clear")
        assert len(woken) == 3

    def test_held_device_stays_held_and_a_heartbeat_does_not_mark_it_idle(self, user, tenant):
        """A33: whatever the readings are, the job continues and no other job gets the device."""
        node = make_node(gpus=1)
        job = submit(user, tenant)
        run_cycle()
        node.start_all()
        for occupancy in ("foreign", "clear", "dirty", "clear", None):
            read(node, occupancy)
            assert Device.objects.get().held_whole == 1
        other = submit(user, tenant)
        assert state(other) == "pending"
        assert Job.objects.get(pk=job).state == "running"

    def test_ordinary_readings_do_not_write_devices(self):
        node = make_node(gpus=8)
        read(node, "clear")
        previous = rows("SELECT id, xmin::text FROM nodes_device")
        read(node, "clear")
        assert rows("SELECT id, xmin::text FROM nodes_device") == previous

    def test_lost_device_is_lost_whatever_its_occupancy(self):
        node = make_node(gpus=1)
        read(node, "foreign", ALICE)
        read(node, None, lost=True)
        assert found() == [("lost", "")]

    def test_hot_device_is_hot_again_after_occupation_if_it_still_is(self):
        node = make_node(gpus=1)
        uuid = node.devices[0].uuid
        for occupancy in ("clear", "foreign", "clear"):
            node.sync(readings=[Reading(uuid=uuid, occupancy=occupancy, temperature_celsius=95)])
            assert found()[0][0] == ("foreign" if occupancy == "foreign" else "hot")


class TestQuarantine:
    @pytest.mark.parametrize("occupancy", ["clear", "foreign", "dirty", None])
    def test_quarantined_device_stays_quarantined_whatever_its_readings(self, occupancy, user, tenant):
        node = make_node(gpus=1)
        device_health.quarantine(Device.objects.get().pk, "fan rattles", "root")
        read(node, occupancy, ALICE)
        read(node, None, lost=True)
        node.sync(facts=node.facts())
        assert found() == [("quarantined", "fan rattles (by root)")]
        assert state(submit(user, tenant)) == "pending"

    def test_quarantine_does_not_stop_running_jobs(self, user, tenant):
        node = make_node(gpus=1)
        job = submit(user, tenant)
        run_cycle()
        node.start_all()
        device_health.quarantine(Device.objects.get().pk, "", "root")
        read(node, "clear")
        assert state(job) == "running"

    def test_quarantine_outlasts_the_loss_and_return_of_a_device(self):
        node = make_node(gpus=1)
        device_health.quarantine(Device.objects.get().pk, "", "root")
        node.sync(facts=type(node)(name="other", gpus=0).facts())
        node.sync(facts=node.facts())
        assert found()[0][0] == "quarantined"

    @pytest.mark.parametrize(
        ("occupancy", "fields", "after"),
        [
            ("clear", {}, ("ok", "")),
            (None, {}, ("ok", "")),
            ("foreign", {}, ("foreign", ALICE)),
            ("dirty", {}, ("dirty", ALICE)),
            (None, {"lost": True}, ("lost", "")),
        ],
    )
    def test_clear_restores_the_health_of_the_readings(self, occupancy, fields, after):
        """At once: no job may slip in before the next reading."""
        node = make_node(gpus=1)
        device = Device.objects.get().pk
        device_health.quarantine(device, "", "root")
        read(node, occupancy, ALICE if occupancy != "clear" else "", **fields)
        device_health.clear(device)
        assert found() == [after]

    def test_clear_works_when_the_agent_no_longer_reports_the_device(self):
        """An agent of an older version took over: it says nothing of processes."""
        node = make_node(gpus=1)
        read(node, "foreign", ALICE)
        read(node, None)
        device_health.clear(Device.objects.get().pk)
        assert found() == [("ok", "")]

    def test_device_in_service_cannot_be_cleared(self):
        make_node(gpus=1)
        with pytest.raises(Problem, match="is in service"):
            device_health.clear(Device.objects.get().pk)

    def test_quarantine_and_clear_over_rest(self, client):
        node = make_node(gpus=1)
        client.force_login(make_user(admin=True))
        device = Device.objects.get().pk
        answer = client.post(f"/api/v1/gpus/{device}/quarantine", {"note": "fan"}, content_type="application/json")
        assert (answer.status_code, answer.json()["health"]) == (200, "quarantined")
        assert answer.json()["message"] == f"GPU 0 of {node.name} takes no new jobs until it is cleared; " + (
            "what runs there may end"
        )
        [gpu] = client.get("/api/v1/gpus").json()["items"]
        assert gpu["health"] == "quarantined" and gpu["health_note"].startswith("fan (by ")
        answer = client.post(f"/api/v1/gpus/{device}/clear", content_type="application/json")
        assert (answer.status_code, answer.json()["health"]) == (200, "ok")
        assert client.post(f"/api/v1/gpus/{device}/clear", content_type="application/json").status_code == 409
        assert client.post("/api/v1/gpus/999999/clear", content_type="application/json").status_code == 404
        nul = client.post(f"/api/v1/gpus/{device}/quarantine", {"note": "a\0"}, content_type="application/json")
        assert nul.status_code == 400


class TestXids:
    @pytest.mark.parametrize("code", [48, 63, 64, 74, 79, 94, 95, 119])
    def test_hardware_xid_degrades_the_device_until_it_is_cleared(self, code, user, tenant):
        node = make_node(gpus=1)
        read(node, "clear", xids=[Xid(code=code, seconds_ago=0)])
        read(node, "clear")
        [(now, note)] = found()
        assert now == "degraded" and note.startswith(f"Xid {code}: ")
        job = submit(user, tenant)
        assert state(job) == "pending"
        device_health.clear(Device.objects.get().pk)
        read(node, "clear", xids=[Xid(code=code, seconds_ago=30)])
        assert found() == [("ok", "")]
        assert state(job) == "scheduled"
        read(node, "clear", xids=[Xid(code=code, seconds_ago=0)])
        assert [row["kind"] for row in incidents.latest(10)] == ["degraded", "degraded"]

    @pytest.mark.parametrize("code", [13, 31, 43, 45, 1, 999])
    def test_other_xids_do_not_degrade_the_device(self, code):
        read(make_node(gpus=1), "clear", xids=[Xid(code=code, seconds_ago=0)])
        assert found() == [("ok", "")]

    def test_quarantine_stays_and_impossibly_old_xids_are_ignored(self):
        node = make_node(gpus=2)
        device_health.quarantine(Device.objects.order_by("id")[0].pk, "", "root")
        read(node, "clear", xids=[Xid(code=79, seconds_ago=2**62)])
        assert [row for row, _ in found()] == ["quarantined", "ok"]
        read(node, "clear", xids=[Xid(code=79, seconds_ago=1)])
        assert [row for row, _ in found()] == ["quarantined", "degraded"]


class TestIncidents:
    def test_each_health_change_is_an_incident_with_cause_and_end(self):
        node = make_node(gpus=1)
        read(node, "foreign", ALICE)
        read(node, "clear")
        device_health.quarantine(Device.objects.get().pk, "fan", "root")
        history = incidents.latest(10)
        assert [(row["kind"], row["cause"], row["until"] is None) for row in history] == [
            ("quarantined", "fan (by root)", True),
            ("foreign", ALICE, False),
        ]
        assert (history[0]["node"], history[0]["gpu"]) == (node.name, 0)
        assert [row["kind"] for row in incidents.latest(10, is_open=True)] == ["quarantined"]

    def test_repeated_reports_of_a_change_are_a_single_incident(self):
        node = make_node(gpus=1)
        for _ in range(3):
            read(node, "foreign", ALICE)
            node.sync(readings=[Reading(uuid=node.devices[0].uuid, temperature_celsius=95)])
        assert Incident.objects.count() == 1

    def test_heat_and_loss_are_incidents(self):
        node = make_node(gpus=1)
        node.sync(readings=[Reading(uuid=node.devices[0].uuid, temperature_celsius=95)])
        read(node, None, lost=True)
        read(node, None)
        assert [(row["kind"], row["until"] is None) for row in incidents.latest(10)] == [
            ("lost", False),
            ("hot", False),
        ]

    def test_closed_and_lost_nodes_are_incidents_with_an_end(self):
        node = make_node(gpus=0)
        cordon.set_intent(node.name, NodeIntent.CORDONED, "new disk")
        cordon.set_intent(node.name, NodeIntent.OPEN)
        Node.objects.update(state="lost")
        lost, cordoned = incidents.latest(10)
        assert (lost["kind"], cordoned["kind"], cordoned["cause"]) == ("node_lost", "cordoned", "new disk")
        assert re.fullmatch(r"silent since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", lost["cause"])
        node.sync()
        assert incidents.latest(10, is_open=True) == []

    def test_incidents_over_rest(self, client):
        read(make_node(gpus=2), "foreign", ALICE)
        client.force_login(make_user(admin=True))
        assert len(client.get("/api/v1/incidents?open=true").json()["items"]) == 2
        assert len(client.get("/api/v1/incidents?limit=1").json()["items"]) == 1
        assert client.get("/api/v1/incidents?open=maybe").status_code == 400
        assert client.get("/api/v1/incidents?limit=0").status_code == 400
