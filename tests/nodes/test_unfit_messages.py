"""Messages with values that fit no column: what is fit of them is written, and their node is alive."""

import pytest
from msgspec.structs import replace

from gpusched.protocol.agent_messages import Ended, Reading, Sync
from jobs.models import Job
from nodes.agents.sync import process_leniently
from nodes.models import Assignment, Device, Node
from tests.factories import make_node, now, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"exit_code": 1 << 40},
        {"exit_code": -(1 << 31) - 1},
        {"signal": 1 << 31},
        {"peak_memory_mb": -1},
        {"peak_memory_mb": 1 << 32},
        {"log_bytes": -5},
        {"log_bytes": (1 << 63) - 1},
        {"at": "0001-01-01T00:00:00+23:00"},
        {"started_at": "0001-01-01T00:00:00+23:00"},
    ],
)
def test_end_is_written_whatever_its_numbers(user, tenant, fields):
    node = make_node(gpus=1)
    job_id = submit(user, tenant)
    run_cycle()
    [key] = node.start_all()
    node.end(key, **fields)
    assert Job.objects.get(pk=job_id).state in ("completed", "failed")
    assert (Assignment.objects.get().log_bytes or 0) >= 0


def test_duplicate_device_uuids_are_a_single_device(user, tenant):
    node = make_node(gpus=1)
    node.devices = [*node.devices, *node.devices]
    node.sync(facts=node.facts())
    assert Device.objects.count() == 1


@pytest.mark.parametrize(
    "fields",
    [
        *({"memory_mb": mb} for mb in (-1, 0, 1 << 31, 1 << 44)),  # 2⁴⁴ MiB: NVML's "not available" in bytes
        *({"index": index} for index in (-1, 1 << 31)),
        *({name: value} for name in ("numa_node", "nvlink_island", "mig_slices") for value in (-1, 1 << 15)),
        *({name: "\0"} for name in ("uuid", "model", "pci_bus_id", "mig_parent")),
    ],
)
def test_facts_are_stored_whatever_one_device_says(fields):
    node = make_node(gpus=2)
    first, second = node.devices
    facts = replace(node.facts(), hostname="new", devices=[replace(first, **fields), replace(second, model="new")])
    assert node.sync(facts=facts).error is None
    assert Node.objects.get().hostname == "new"
    assert Device.objects.get(uuid=second.uuid).model == "new"


@pytest.mark.parametrize(
    ("field", "possible", "impossible"),
    [
        ("utilisation_percent", 100, (101, 255, -1, 1 << 32)),
        ("power_watts", 700.5, (4294967.295, -1.0, 1e308)),
        ("power_limit_watts", 700, (-1, 1e308)),
        ("temperature_celsius", 31, (1 << 32, (1 << 64) - 1)),
        ("memory_used_mb", 4, (-1, 1 << 44)),
        ("ecc_uncorrected", 0, ((1 << 64) - 1,)),
    ],
)
def test_impossible_reading_is_unknown(field, possible, impossible):
    node = make_node(gpus=1)
    stored = []
    for value in (possible, *impossible):
        assert node.sync(readings=[Reading(uuid=node.devices[0].uuid, **{field: value})]).error is None
        stored.append(getattr(Device.objects.get().reading, field))
    assert stored == [possible] + [None] * len(impossible)


@pytest.mark.parametrize(("memory_mb", "stored_mb"), [(10_000, 20_000), (0, 81_920), (30_000, 30_000)])
def test_facts_are_stored_when_a_shared_gpu_has_less_memory_than_is_held(user, tenant, memory_mb, stored_mb):
    node = make_node(gpus=1)
    submit(user, tenant, gpu_sharing="shared", gpu_memory_mb=20_000)
    run_cycle()
    node.start_all()
    node.devices = [replace(node.devices[0], memory_mb=memory_mb)]
    sync = Sync(seq=9, at=now(), boot_id="boot-1", facts=node.facts())
    assert process_leniently(node.id, sync).error is None
    assert Device.objects.get().memory_mb == stored_mb


def test_unwritable_part_blocks_neither_its_node_nor_other_parts(user, tenant):
    """The time is older than any stored one; PostgreSQL refuses the name."""
    node = make_node(gpus=1)
    Node.objects.update(last_seen_at=None)
    job_id = submit(user, tenant)
    run_cycle()
    [key] = node.start_all()
    sync = Sync(
        seq=9, at=now(), boot_id="boot-1", held=[key], running=[],
        reports=[Ended(key=key, at=now(), reason="exited", exit_code=0)],
        readings=[Reading(uuid="\0"), Reading(uuid=node.devices[0].uuid, lost=True)],
    )  # fmt: skip
    answer = process_leniently(node.id, sync)
    assert (answer.acknowledged, answer.error) == ([key], "not all of it could be written")
    assert Job.objects.get(pk=job_id).state == "completed"
    assert Device.objects.get().health == "lost"
    assert Node.objects.get().last_seen_at is not None
