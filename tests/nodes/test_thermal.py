"""Heat (A19): hysteresis, what is not told changes nothing, and typical busy GPUs are never hot."""

import csv
import gzip
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.lib.bus import wake
from gpusched.lib.db.sql import rows
from gpusched.protocol.agent_messages import Reading
from jobs.models import Job
from nodes.health.thermal import COOL_SECONDS, ThermalState, next_state
from nodes.models import Device, Incident
from scheduling import policy
from scheduling.cycle import free_nodes
from scheduling.cycle.eras import current_era
from tests.factories import make_node, run_cycle, submit

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
HW_THERMAL, HW_SLOWDOWN, POWER_CAP = 0x40, 0x08, 0x04
HOT = ThermalState(is_hot=True)


def after(*looks, start=ThermalState(), each=1.0):
    """The heat after these (°C, throttle reasons), one per second or `each`."""
    heat = start
    for number, (celsius, reasons) in enumerate(looks):
        heat = next_state(heat, celsius, reasons, number * each, 85)
    return heat


@pytest.mark.parametrize(("celsius", "is_hot"), [(84, False), (85, True), (90, True)])
def test_device_is_hot_from_the_threshold_on(celsius, is_hot):
    """A19"""
    assert after((celsius, 0)).is_hot is is_hot


@pytest.mark.parametrize("celsius", range(66, 81))
def test_busy_device_between_66_and_80_degrees_is_not_hot(celsius):
    """A19"""
    assert after((celsius, POWER_CAP)) == ThermalState()


def test_hot_device_between_the_thresholds_stays_hot():
    """A19: it does not flap."""
    assert after(*[(76, 0), (84, 0)] * 200, start=HOT).is_hot


def test_hot_device_is_well_after_a_minute_10_degrees_below():
    """A19"""
    assert after(*[(75, 0)] * 60, start=HOT).is_hot
    assert after(*[(75, 0)] * 61, start=HOT) == ThermalState()


def test_warm_reading_restarts_the_minute():
    assert after(*[(75, 0)] * 50, (76, 0), *[(75, 0)] * 60, start=HOT).is_hot


@pytest.mark.parametrize(("is_slowed", "reasons", "result"), [(False, 0, ThermalState()), (True, None, HOT)])
def test_minute_begins_anew_after_the_clock_was_set_back(is_slowed, reasons, result):
    an_hour_ahead = ThermalState(True, is_slowed, 3600.0)
    assert after(*[(75, reasons)] * 60, start=an_hour_ahead) == ThermalState(True, is_slowed, 0.0)
    assert after(*[(75, reasons)] * 61, start=an_hour_ahead) == result


@pytest.mark.parametrize("bit", [HW_THERMAL, HW_SLOWDOWN])
def test_hardware_slowdown_is_heat_at_any_temperature(bit):
    assert after((60, bit)) == ThermalState(is_hot=True, is_slowed=True)
    assert after((None, bit)) == ThermalState(is_hot=True, is_slowed=True)
    assert after((60, bit), (60, 0)) == ThermalState(is_hot=True, is_slowed=False, cool_since=1.0)


def test_other_throttle_reasons_are_not_heat():
    """Idle, power cap and the like: all bits but the two."""
    assert after((60, 0xFFFF & ~(HW_THERMAL | HW_SLOWDOWN))) == ThermalState()


heats = st.builds(ThermalState, st.booleans(), st.booleans(), st.none() | st.floats(0, 1e6)).map(
    lambda heat: heat if heat.is_hot else ThermalState()
)


@settings(max_examples=200, deadline=None, database=None)
@given(heats, st.floats(0, 1e9))
def test_reading_without_values_changes_nothing(previous, now):
    """A19: unknown neither blocks nor frees."""
    previous = previous._replace(is_slowed=False)
    assert next_state(previous, None, None, now, 85) == previous


@pytest.mark.parametrize("celsius", [None, 60, 90])
def test_unreported_slowdown_blocks_for_a_minute_only(celsius):
    """A19: unknown never blocks. Heat itself, which only makes a device the last choice, waits for its minute."""
    slowed = after((celsius, HW_THERMAL), *[(celsius, None)] * 60)
    assert (slowed.is_hot, slowed.is_slowed) == (True, True)
    assert after((celsius, HW_THERMAL), *[(celsius, None)] * 61) == HOT
    second = after((celsius, HW_THERMAL), *[(celsius, None)] * 59, (celsius, HW_THERMAL), *[(celsius, None)] * 59)
    assert second.is_slowed


def test_gpu_without_a_temperature_is_hot_until_a_minute_after_its_slowdown():
    """A19"""
    assert after((None, HW_THERMAL), *[(None, 0)] * 60).is_hot
    assert after((None, HW_THERMAL), *[(None, 0)] * 61) == ThermalState()
    assert after((None, HW_THERMAL), *[(None, 0)] * 30, (None, HW_THERMAL), *[(None, 0)] * 60).is_hot
    assert after((None, HW_THERMAL), *[(None, 0)] * 30, (90, 0), *[(None, 0)] * 1000).is_hot


def test_typical_busy_gpus_are_never_hot():
    """A19: the temperatures that were measured on two clusters of A100."""
    path = TRACES / "acme_util" / "acme_cdfs.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with gzip.open(path, "rt") as file:
        measured = [float(row["value"]) for row in csv.DictReader(file) if row["series"].startswith("gpu_temp")]
    assert len(measured) > 1000
    assert not any(next_state(ThermalState(), round(celsius), 0, 0.0, 85).is_hot for celsius in measured)


# --- through the intake -----------------------------------------------------------------------------------------------


def read(node, celsius, reasons=0, **fields):
    uuids = [device.uuid for device in node.devices]
    node.sync(
        readings=[Reading(uuid=u, temperature_celsius=celsius, throttle_reasons=reasons, **fields) for u in uuids]
    )


def health():
    return [(device.health, device.is_slowed) for device in Device.objects.order_by("id")]


@pytest.mark.django_db(transaction=True)
class TestIntake:
    def test_hot_device_gets_work_last_and_stays_in_service(self, user, tenant):
        hot, cool = make_node(gpus=1), make_node(gpus=2)
        read(hot, 90)
        assert health() == [("hot", False), ("ok", False), ("ok", False)]
        first, second, third = (submit(user, tenant) for _ in range(3))
        run_cycle()
        placed = {job: Job.objects.get(pk=job).attempts.get().placement[0]["node"] for job in (first, second, third)}
        assert placed == {first: cool.name, second: cool.name, third: hot.name}

    def test_throttled_device_gets_no_new_work_and_keeps_its_jobs(self, user, tenant):
        node = make_node(gpus=1)
        running = submit(user, tenant)
        run_cycle()
        node.start_all()
        read(node, 88, HW_THERMAL)
        assert health() == [("hot", True)]
        other = make_node(gpus=1)
        read(other, 88, HW_THERMAL)
        waiting = submit(user, tenant)
        run_cycle()
        assert Job.objects.get(pk=running).state == "running"
        assert Job.objects.get(pk=waiting).state == "pending"
        read(other, 80, 0)
        run_cycle()
        assert Job.objects.get(pk=waiting).state == "scheduled"

    def test_recovery_after_a_minute_is_announced_to_pages_and_queue(self, monkeypatch):
        node = make_node(gpus=2)
        woken = []
        monkeypatch.setattr(wake, "request_cycle", lambda: woken.append(1))
        read(node, 90)
        read(node, 70)
        assert (health(), len(woken)) == ([("hot", False)] * 2, 1)
        Device.objects.update(cool_since=timezone.now() - timedelta(seconds=COOL_SECONDS))
        read(node, 70)
        assert (health(), len(woken)) == ([("ok", False)] * 2, 2)

    def test_cause_of_heat_is_stored_with_device_and_incident(self):
        node = make_node(gpus=1)
        notes = []
        for celsius, reasons in ((91, 0), (93, 0), (93, 0x40), (80, 0)):
            read(node, celsius, reasons)
            notes.append(Device.objects.get().health_note)
        slowed = "slowed down by its own hardware at 93 °C"
        assert notes == [
            "91 °C, hot from 85 °C",
            "91 °C, hot from 85 °C",
            slowed,
            "was slowed down by its own hardware",
        ]
        assert [device.cause for device in Incident.objects.all()] == ["91 °C, hot from 85 °C"]
        Device.objects.update(cool_since=timezone.now() - timedelta(minutes=2))
        read(node, 60)
        assert (Device.objects.get().health, Device.objects.get().health_note) == ("ok", "")

    def test_threshold_follows_the_admin_setting(self):
        policy.change({"thermal_threshold_celsius": 70}, actor="root")
        read(make_node(gpus=1), 71)
        assert health() == [("hot", False)]

    @pytest.mark.parametrize("worse", ["degraded", "dirty", "foreign", "quarantined", "lost"])
    def test_heat_does_not_override_worse_health(self, worse):
        node = make_node(gpus=1)
        Device.objects.update(health=worse)
        read(node, 95, HW_THERMAL, lost=worse == "lost")
        assert health()[0][0] == worse

    def test_lost_hot_device_is_lost(self):
        node = make_node(gpus=1)
        read(node, 90)
        read(node, None, None, lost=True)
        assert health() == [("lost", False)]

    def test_ordinary_readings_do_not_write_devices(self):
        node = make_node(gpus=8)
        read(node, 60)
        versions = rows("SELECT id, xmin::text FROM nodes_device")
        read(node, 78)
        assert rows("SELECT id, xmin::text FROM nodes_device") == versions

    def test_measured_use_of_shared_devices_reaches_the_engine(self, user, tenant):
        node = make_node(gpus=2)
        submit(user, tenant, gpu_sharing="shared", gpu_memory_mb=1000)
        run_cycle()
        for percent, compute in ((57, 0.5), (83, 0.8)):  # which changes no row of the device
            read(node, 60, utilisation_percent=percent)
            [engine_node] = free_nodes.nodes(current_era())
            assert [device.compute for device in engine_node.devices] == [compute, None]
