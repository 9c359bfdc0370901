"""Samples, GPU-seconds and roll-ups: time that is passed in, through the real tables."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from gpusched.lib.db.sql import execute, query
from gpusched.protocol.agent_messages import Reading
from gpusched.protocol.states import NodeIntent
from nodes.health import cordon
from nodes.models import Device, GpuClock, Incident, Rollup, Sample
from nodes.models import Reading as Kept
from nodes.telemetry import samples
from tests.factories import make_node, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db
NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def after(seconds):
    return NOON + timedelta(seconds=seconds)


def counters(*devices):
    """The devices of tests are as old as the simulated time."""
    Device.objects.update(known_since=NOON)


def look(at, **fields):
    """Mark all devices as read at that time, as if their nodes had just sent messages."""
    Kept.objects.update(read_at=after(at), **fields)
    execute("UPDATE nodes_node SET last_seen_at = %s", [after(at)])


def counted():
    return {name: round(seconds, 6) for name, seconds in samples.gpu_seconds().items() if seconds}


def read_all(*nodes, **fields):
    for node in nodes:
        node.sync(readings=[Reading(uuid=device.uuid, **fields) for device in node.devices])


class TestGpuSeconds:
    def test_each_gpu_second_counts_for_its_status(self, user, tenant):
        node, closed = make_node(gpus=2), make_node(gpus=1)
        cordon.set_intent(closed.name, NodeIntent.CORDONED)
        submit(user, tenant)
        run_cycle()
        node.start_all()
        counters()
        samples.take_samples(1, after(0))
        samples.take_samples(1, after(15))
        assert counted() == {"busy": 15, "free": 15, "unavailable": 15}

    def test_idle_for_a_minute_while_held_is_held_idle_and_unknown_is_busy(self, user, tenant):
        node = make_node(gpus=1)
        submit(user, tenant)
        run_cycle()
        node.start_all()
        read_all(node, utilisation_percent=0)
        counters()
        samples.take_samples(1, after(0))
        look(10, idle_since=after(-49))
        samples.take_samples(1, after(10))
        assert counted() == {"busy": 10}
        look(11, idle_since=after(-49))
        samples.take_samples(1, after(20))
        assert counted() == {"busy": 10, "held_idle": 10}
        read_all(node)
        look(25)
        samples.take_samples(1, after(30))
        assert counted() == {"busy": 20, "held_idle": 10}

    @pytest.mark.parametrize("seed", range(3))
    def test_four_counters_add_up_to_wall_time_times_gpus(self, seed):
        """Whatever the GPUs are, whenever they came, however irregular the ticks, with the clock set back now and
        then."""
        rng = random.Random(seed)
        make_node(gpus=4)
        counters()
        now, latest, since = 0.0, 0.0, [0.0] * 4
        samples.take_samples(1, after(0))
        for _ in range(25):
            now += rng.choice([-40, 0.25, 1, 15, 15, 15.000007, 900])
            ids = list(Device.objects.order_by("id").values_list("id", flat=True))
            Device.objects.filter(id__in=rng.sample(ids, 2)).update(health=rng.choice(["ok", "hot", "lost", "dirty"]))
            if rng.random() < 0.3 and now > latest:
                born = rng.uniform(latest, now)
                make_node(gpus=1)
                Device.objects.filter(id__gt=ids[-1]).update(known_since=after(born))
                since.append(born)
            if samples.take_samples(1, after(now)):
                latest = now
            assert sum(samples.gpu_seconds().values()) == pytest.approx(
                sum(max(latest - born, 0) for born in since), abs=1e-4
            )
        assert latest > 100

    def test_early_tick_of_another_worker_counts_and_stores_nothing(self):
        read_all(make_node(gpus=1), utilisation_percent=1)
        counters()
        samples.take_samples(1, after(0))
        look(15)
        assert samples.take_samples(12, after(15))
        assert not samples.take_samples(12, after(16))
        assert not samples.take_samples(12, after(-3600))
        assert (counted(), Sample.objects.count()) == ({"free": 15}, 1)

    def test_time_counts_again_after_the_clock_was_a_year_ahead(self):
        make_node(gpus=1)
        counters()
        for at in (365 * 86400, 0, 15):
            samples.take_samples(12, after(at))
        assert counted() == {"free": 15}

    def test_counters_are_a_metric_that_outlives_the_web_process(self):
        make_node(gpus=3)
        counters()
        samples.take_samples(1, after(0))
        samples.take_samples(1, after(20))
        text = Client().get("/metrics").content.decode()
        assert 'gpu_scheduler_gpu_seconds_total{state="free"} 60.0' in text
        assert 'gpu_scheduler_gpu_seconds_total{state="busy"} 0.0' in text
        assert GpuClock.objects.get().counted_until == after(20)


class TestSamples:
    def test_sample_has_only_the_values_that_were_read(self):
        """A19: what was not told, or too long ago, is unknown."""
        node = make_node(gpus=1)
        counters()
        samples.take_samples(1, after(0))
        read_all(node, utilisation_percent=40, temperature_celsius=0)
        look(15)
        samples.take_samples(1, after(15))
        samples.take_samples(1, after(44))
        samples.take_samples(1, after(46))
        values = Sample.objects.order_by("at").values_list("utilisation_percent", "temperature_celsius", "power_watts")
        assert list(values) == [(40, 0, None), (40, 0, None)]

    def test_held_device_without_readings_has_empty_samples(self, user, tenant):
        node = make_node(gpus=1)
        submit(user, tenant)
        run_cycle()
        node.start_all()
        counters()
        samples.take_samples(1, after(0))
        samples.take_samples(1, after(15))
        [row] = Sample.objects.all()
        assert (row.cell, row.seconds, row.utilisation_percent) == ("busy", 15, None)


def take(device, *rows):
    """(seconds after noon, cell, utilisation, temperature)"""
    for at, cell, utilisation, celsius in rows:
        Sample.objects.create(
            device=device, at=after(at), cell=cell, seconds=15, utilisation_percent=utilisation,
            temperature_celsius=celsius,
        )  # fmt: skip


class TestRollups:
    @pytest.fixture
    def device(self):
        make_node(gpus=1)
        samples.take_samples(1, NOON)
        return Device.objects.get()

    def test_five_minutes_become_a_single_row(self, device):
        take(
            device, (0, "busy", 10, None), (15, "held_idle", 0, None), (30, "free", None, None), (299, "busy", 60, None)
        )
        assert samples.roll_up(after(300)) == 1
        [row] = Rollup.objects.all()
        assert (row.at, row.samples, row.held_seconds, row.busy_seconds) == (NOON, 4, 45, 30)
        assert (row.utilisation_min, row.utilisation_max) == (0, 60)
        assert row.utilisation_mean == pytest.approx(70 / 3)
        assert (row.temperature_min, row.temperature_mean, row.temperature_max) == (None, None, None)

    def test_period_is_rolled_up_once_and_only_when_complete(self, device):
        take(device, (0, "busy", 10, 50))
        assert samples.roll_up(after(299)) == 0
        take(device, (301, "busy", 20, 50))
        assert samples.roll_up(after(302)) == 1
        assert samples.roll_up(after(303)) == 0
        assert samples.roll_up(after(600)) == 1
        assert [row.utilisation_max for row in Rollup.objects.order_by("at")] == [10, 20]

    def test_roll_up_continues_after_the_clock_was_a_year_ahead(self, device):
        year = 365 * 86400
        take(device, (year, "busy", 10, 50))
        assert samples.roll_up(after(year + 300)) == 1
        take(device, (0, "busy", 20, 50))
        assert samples.roll_up(after(300)) == 1
        take(device, (300, "busy", 20, 50))
        assert samples.roll_up(after(600)) == 1

    def test_roll_up_continues_after_a_pause_of_any_length(self, device):
        take(device, (0, "busy", 10, 50))
        samples.roll_up(after(300))
        week = 7 * 86400
        take(device, (week, "busy", 20, 50), (week + 300, "busy", 30, 50))
        assert samples.roll_up(after(week + 600)) == 2

    def test_rows_older_than_the_retention_are_deleted_and_others_stay(self, device):
        now = timezone.now()
        for days in (0.9, 1.1, 5):
            Sample.objects.create(device=device, at=now - timedelta(days=days), cell="busy", seconds=15)
            Rollup.objects.create(
                device=device, at=now - timedelta(days=days), samples=1, held_seconds=1, busy_seconds=1
            )
        assert samples.drop_old(1, 3) == 3
        assert (Sample.objects.count(), Rollup.objects.count()) == (1, 2)

    def test_one_run_deletes_as_many_samples_as_a_large_cluster_adds_until_the_next(self, device, monkeypatch):
        """In batches, until its time is over."""
        monkeypatch.setattr(samples, "MAX_DROPPED", 2)
        old = timezone.now() - timedelta(days=2)
        rows = [Sample(device=device, at=old - timedelta(seconds=n), cell="busy", seconds=15) for n in range(9)]
        Sample.objects.bulk_create(rows)
        monkeypatch.setattr(samples, "DROP_SECONDS", -1.0)
        assert samples.drop_old(1, 3) == 2
        monkeypatch.setattr(samples, "DROP_SECONDS", 60.0)
        assert samples.drop_old(1, 3) == 7
        assert not Sample.objects.exists()

    def test_closed_incidents_are_deleted_like_roll_ups_and_0_days_keeps_all(self, device):
        now = timezone.now()
        for days in (1, 5, None):
            until = None if days is None else now - timedelta(days=days)
            Incident.objects.create(
                node=device.node, device=device, kind="hot", since=now - timedelta(days=9), until=until
            )
        Sample.objects.create(device=device, at=now - timedelta(days=9), cell="busy", seconds=15)
        assert samples.drop_old(0, 0) == 0
        assert samples.drop_old(0, 3) == 1
        assert Incident.objects.filter(until=None).count() == 1


class TestApi:
    @pytest.fixture
    def ask(self):
        token = make_token(make_user())

        def get(device_id, **parameters):
            return Client().get(
                f"/api/v1/gpus/{device_id}/samples", parameters, headers={"Authorization": f"Bearer {token}"}
            )

        return get

    @pytest.fixture
    def device(self):
        make_node(gpus=1)
        return Device.objects.get()

    def test_pages_continue_to_the_end(self, ask, device):
        take(device, *((at, "busy", at, None) for at in range(0, 75, 15)))
        params = {"since": after(15).isoformat(), "limit": 2}
        first = ask(device.pk, **params).json()
        second = ask(device.pk, limit=2, cursor=first["next_cursor"]).json()
        third = ask(device.pk, limit=2, cursor=second["next_cursor"]).json()
        answer = [[row["utilisation_percent"] for row in page["items"]] for page in (first, second, third)]
        assert answer == [[15, 30], [45, 60], []]
        assert (first["items"][0]["at"], third["next_cursor"]) == ("2030-01-31T12:00:15Z", None)

    def test_roll_ups_default_to_the_last_day(self, ask, device):
        for hours in (1, 25):
            at = timezone.now() - timedelta(hours=hours)
            Rollup.objects.create(
                device=device, at=at, samples=hours, held_seconds=1, busy_seconds=1, utilisation_mean=2.5
            )
        [row] = ask(device.pk, resolution="5m").json()["items"]
        assert (row["samples"], row["utilisation_mean"], row["power_max"]) == (1, 2.5, None)

    @pytest.mark.parametrize(
        "wrong", [{"resolution": "1h"}, {"since": "yesterday"}, {"limit": 1001}, {"cursor": "x"}, {"until": "now"}]
    )
    def test_invalid_parameters_are_rejected_by_name(self, ask, device, wrong):
        """A55"""
        answer = ask(device.pk, **wrong)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, next(iter(wrong)))

    def test_unknown_device_is_not_found(self, ask):
        """A08"""
        assert ask(4711).status_code == 404


def test_joined_device_is_counted_from_its_join_on():
    make_node(gpus=1)
    [row] = query("SELECT now() - known_since < interval '1 minute' AS is_new FROM nodes_device")
    assert row["is_new"]
