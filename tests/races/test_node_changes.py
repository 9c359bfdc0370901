"""Changes of nodes and GPUs at the same moment, with two real connections."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute, query
from nodes.health import device_health
from nodes.inventory import retire
from nodes.models import Device
from tests.factories import make_node
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def is_blocked() -> bool:
    return bool(query("SELECT 1 FROM pg_locks WHERE NOT granted"))


def meanwhile(change: Callable[[], Any], work: Callable[[], Any]) -> Any:
    """Return the result of `work`, or its problem. It waits for the transaction of `change`."""
    results: list[Any] = []

    def attempt() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001 the test looks at it
            results.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=attempt)
    with transaction.atomic():
        change()
        thread.start()
        wait_for(is_blocked, 30, "the work to wait for the change")
    thread.join(30)
    return results[0]


@pytest.mark.parametrize("change", [device_health.clear, lambda device: device_health.quarantine(device, "", "root")])
def test_change_of_a_gpu_that_is_retired_meanwhile_is_a_404(change: Callable[[int], str]):
    make_node(gpus=1)
    execute("UPDATE nodes_device SET health = 'lost'")
    device_id = Device.objects.get().pk

    def work() -> str:
        with transaction.atomic():
            return change(device_id)

    answer = meanwhile(lambda: retire.retire(device_id), work)
    assert isinstance(answer, Problem) and answer.status == 404
