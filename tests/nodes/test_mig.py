"""MIG instances as devices of a node, and readings as they are shown: what is not told is unknown."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.test import Client

from gpusched.protocol.agent_messages import DeviceFacts, Reading, Run
from gpusched.protocol.states import NodeIntent
from jobs.models import Job
from nodes import redaction
from nodes.health import auto_cordon, cordon
from nodes.models import Device, GpuClock, Incident
from nodes.models import Reading as NodeReading
from nodes.telemetry import samples
from tests.factories import make_node, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db


def instance(slot, size, memory_mb):
    return DeviceFacts(
        uuid=f"MIG-{slot}-{size}", index=100 + slot, model=f"NVIDIA H100 MIG {size}", memory_mb=memory_mb,
        mig_parent="GPU-0", mig_slices=int(size[0]), pci_bus_id="0000:01:00.0",
    )  # fmt: skip


def divided(*instances):
    """A node with a GPU of its own and one that is divided so."""
    node = make_node(gpus=1, model="NVIDIA H100")
    node.devices = [*node.devices, *instances]
    node.sync(facts=node.facts())
    return node


def represented(uuid):
    answer = Client().get("/api/v1/gpus", headers={"Authorization": f"Bearer {make_token(make_user())}"}).json()
    [found] = [row for row in answer["items"] if row["uuid"] == uuid]
    return found


def test_mig_instance_is_given_whole_to_a_job_that_fits(user, tenant):
    node = divided(instance(0, "1g.10gb", 9984), instance(1, "3g.40gb", 40448))
    asked = {"3g.40gb": 20000, "1g.10gb": 5000}
    jobs = {size: submit(user, tenant, gpu_model="MIG", gpu_memory_mb=memory) for size, memory in asked.items()}
    late = submit(user, tenant, gpu_model="MIG", gpu_memory_mb=5000)
    run_cycle()
    runs = {order.spec.job_id: order.spec for order in node.sync().assignments if isinstance(order, Run)}
    assert [runs[jobs[size]].device_uuids for size in asked] == [["MIG-1-3g.40gb"], ["MIG-0-1g.10gb"]]
    assert Job.objects.get(pk=late).state == "pending"


def test_memory_that_is_never_reported_stays_unknown():
    """As of a GPU that shares the memory of its machine."""
    node = divided(instance(0, "7g.80gb", None))
    node.sync(facts=node.facts())
    assert represented("MIG-0-7g.80gb")["memory_mb"] is None


def test_new_partitioning_replaces_the_old_instances(user, tenant):
    node = divided(instance(0, "3g.40gb", 40448))
    device = node.devices[:1]
    node.devices = [*device, instance(0, "1g.10gb", 9984), instance(1, "1g.10gb", 9984)]
    node.sync(facts=node.facts())
    assert [(row.uuid[:5], row.health) for row in Device.objects.order_by("index", "id")] == [
        ("GPU-n", "ok"), ("MIG-0", "lost"), ("MIG-0", "ok"), ("MIG-1", "ok"),
    ]  # fmt: skip
    job = submit(user, tenant, gpu_model="MIG", gpu_memory_mb=20000, max_retries=0)
    run_cycle()
    assert Job.objects.get(pk=job).state == "pending"


def test_instance_shows_its_parent_gpu():
    divided(instance(1, "3g.40gb", 40448))
    reading = represented("MIG-1-3g.40gb")
    assert (reading["mig_parent"], reading["mig_slices"], reading["index"]) == ("GPU-0", 3, 101)


def test_reading_is_shown_in_full_with_null_for_unknown_values():
    """A19: unknown is null, never zero; a reported zero is zero."""
    node = make_node(gpus=1)
    uuid = node.devices[0].uuid
    node.sync(readings=[Reading(uuid=uuid, sm_clock_mhz=1410, throttle_reasons=0x44, ecc_uncorrected=0)])
    reading = represented(uuid)["reading"]
    assert (reading["sm_clock_mhz"], reading["ecc_uncorrected"]) == (1410, 0)
    assert reading["throttled_by"] == ["power_cap", "hardware_thermal"]
    unknown = {"memory_clock_mhz", "power_limit_watts", "ecc_corrected", "process_count", "utilisation_percent"}
    assert all(reading[name] is None for name in unknown)
    node.sync(readings=[Reading(uuid=uuid)])
    assert represented(uuid)["reading"]["throttled_by"] is None


def test_impossible_numbers_are_unknown_and_affect_no_other_value():
    """A55: also of an agent gone wild."""
    node = make_node(gpus=1)
    uuid = node.devices[0].uuid
    wild: dict[str, Any] = {
        "sm_clock_mhz": 1 << 80,
        "ecc_corrected": -1,
        "power_limit_watts": float("1e300"),
        "memory_used_mb": 1 << 70,
    }
    node.sync(readings=[Reading(uuid=uuid, temperature_celsius=40, **wild)])
    reading = represented(uuid)["reading"]
    assert reading["temperature_celsius"] == 40
    assert [reading[name] for name in wild] == [None] * 4


def test_replaced_instances_keep_no_node_cordoned_and_count_no_time():
    """A39: recovery needs no admin, and the GPU-seconds are those of the existing devices."""
    node = divided(instance(0, "3g.40gb", 40448))
    node.sync(readings=[Reading(uuid=row.uuid) for row in node.devices])
    cordon.set_intent(node.name, NodeIntent.CORDONED, f"{redaction.AUTO_CORDON_NOTE}2 node faults")
    Incident.objects.update(since=F("since") - timedelta(hours=1))
    node.devices = [*node.devices[:1], instance(1, "1g.10gb", 9984)]
    node.sync(facts=node.facts())
    assert auto_cordon.uncordon_due() == 0, "it was read a moment ago"
    samples.take_samples(0)
    NodeReading.objects.update(read_at=F("read_at") - timedelta(minutes=2))
    Device.objects.update(known_since=F("known_since") - timedelta(hours=2))
    node.sync(readings=[Reading(uuid=node.devices[0].uuid, lost=True), Reading(uuid=node.devices[1].uuid)])
    assert auto_cordon.uncordon_due() == 0, "a GPU that is lost is another matter"
    node.sync(readings=[Reading(uuid=row.uuid) for row in node.devices])
    GpuClock.objects.update(counted_until=F("counted_until") - timedelta(seconds=100))
    samples.take_samples(0)
    assert sum(samples.gpu_seconds().values()) == pytest.approx(200, abs=20)
    assert auto_cordon.uncordon_due() == 1
