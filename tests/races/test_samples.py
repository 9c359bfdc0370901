"""Two workers that take samples at once count each second once."""

from datetime import timedelta

import pytest
from django.utils import timezone

from nodes.models import Device, GpuClock, Rollup, Sample
from nodes.telemetry import samples
from tests.at_once import at_once
from tests.factories import make_node

pytestmark = pytest.mark.django_db(transaction=True)


def test_concurrent_ticks_count_the_time_once():
    make_node(gpus=4)
    began = timezone.now()
    Device.objects.update(known_since=began)
    samples.take_samples(1, began)
    at = began + timedelta(seconds=15)
    assert sorted(at_once(*[lambda: samples.take_samples(12, at)] * 3)) == [False, False, True]
    assert GpuClock.objects.get().free == 4 * 15


def test_concurrent_roll_ups_make_each_row_once():
    make_node(gpus=1)
    began = timezone.now()
    samples.take_samples(1, began)
    for seconds in (0, 15):
        Sample.objects.create(
            device=Device.objects.get(), at=began - timedelta(seconds=600 + seconds), cell="busy", seconds=15
        )
    created = at_once(*[lambda: samples.roll_up(began)] * 3)
    assert sum(created) == Rollup.objects.count() >= 1
