"""GPU-seconds held per day and holder, and their idle part, counted by the ticks of samples."""

import pytest

from gpusched.lib.db.sql import query
from nodes.telemetry import samples
from tests.factories import make_node, run_cycle, submit
from tests.nodes.test_samples import NOON, after, counters, look, read_all

pytestmark = pytest.mark.django_db


def days():
    return query("SELECT day::text, gpu_model, held_seconds, idle_seconds FROM nodes_heldday ORDER BY day")


def test_held_time_counts_for_the_holder_with_idle_time_apart(user, tenant):
    """The same seconds as those of the four counters, over midnight, too."""
    agent = make_node(gpus=2)
    counters()
    submit(user, tenant, gpu_count=1)
    run_cycle()
    read_all(agent, utilisation_percent=50)
    samples.take_samples(1, after(0))
    look(10, utilisation_percent=50, idle_since=None)
    samples.take_samples(1, after(10))
    look(40, utilisation_percent=0, idle_since=after(-300))
    samples.take_samples(1, after(40))
    midnight = 12 * 3600
    look(midnight + 5, utilisation_percent=0, idle_since=after(-300))
    samples.take_samples(1, after(midnight + 5))
    first, second = days()
    assert (first["day"], first["held_seconds"], first["idle_seconds"]) == ("2030-01-31", 40, 30)
    assert (second["day"], second["held_seconds"]) == ("2030-02-01", midnight + 5 - 40)
    assert first["gpu_model"] == "NVIDIA A100-SXM4-80GB"
    counted_idle = sum(row["idle_seconds"] for row in days())
    assert counted_idle == pytest.approx(samples.gpu_seconds()["held_idle"])
    [told] = samples.held_gpu_seconds([tenant.pk], NOON.date(), NOON.date(), "user")
    assert (told["key"], told["held_seconds"]) == (user.username, 40)
    assert samples.held_gpu_seconds([tenant.pk + 1], NOON.date(), NOON.date(), "user") == []


def test_shared_device_counts_by_its_fraction(user, tenant):
    """A53: as in the ledger."""
    make_node(gpus=1, memory_mb=80_000)
    counters()
    submit(user, tenant, gpu_count=1, gpu_sharing="shared", gpu_memory_mb=20_000)
    run_cycle()
    samples.take_samples(1, after(0))
    look(100, utilisation_percent=50, idle_since=None)
    samples.take_samples(1, after(100))
    assert days()[0]["held_seconds"] == 25


def test_free_devices_count_for_no_holder():
    make_node(gpus=1)
    counters()
    samples.take_samples(1, after(0))
    samples.take_samples(1, after(100))
    assert days() == []
