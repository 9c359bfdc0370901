"""Joins, removals and changes of GPUs at the same moment, with two real connections."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute, query
from gpusched.protocol.agent_messages import Desired, Join, Reading
from nodes.health import device_health
from nodes.inventory import join, removal, retire
from nodes.models import Device, Node
from nodes.models import Reading as StoredReading
from tests.factories import FakeAgent, make_node
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


def test_messages_are_written_while_a_gpu_that_they_read_is_retired():
    agent = make_node(gpus=2)
    readings = [Reading(uuid=device.uuid, utilisation_percent=1) for device in agent.devices]
    agent.sync(readings=readings)
    retired, kept = Device.objects.order_by("pk")
    Device.objects.filter(pk=retired.pk).update(health="lost")
    answer = meanwhile(lambda: retire.retire(retired.pk), lambda: agent.sync(readings=readings))
    assert isinstance(answer, Desired) and answer.error is None
    assert list(StoredReading.objects.values_list("device_id", flat=True)) == [kept.pk]


def join_again(agent: FakeAgent, token: str) -> Any:
    return join.join_node(Join(name=agent.name, node_key=agent.key, facts=agent.facts()), 2.0, token)


def test_agent_that_joins_during_the_removal_of_its_node_is_refused():
    token, _ = join.create_join_token(1, "root")
    agent = make_node(gpus=1)
    execute("UPDATE nodes_node SET state = 'lost'")
    answer = meanwhile(lambda: removal.remove(agent.name), lambda: join_again(agent, token.prefix))
    assert isinstance(answer, Problem) and answer.code == "node_removed"
    assert not Node.objects.filter(removed_at=None).exists()


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


def test_join_is_retried_after_a_deadlock():
    agent = make_node(gpus=2)
    holds = threading.Event()

    def in_another_order() -> None:
        try:
            with transaction.atomic():
                # PostgreSQL ends the transaction that has waited for its own, shorter time: the join.
                execute("SET LOCAL deadlock_timeout = '60s'")
                execute("UPDATE nodes_device SET memory_mb = memory_mb")
                holds.set()
                wait_for(is_blocked, 30, "the join to wait for the devices")
                execute("UPDATE nodes_node SET labels = labels")
        finally:
            connections.close_all()

    thread = threading.Thread(target=in_another_order)
    thread.start()
    assert holds.wait(30)
    assert join_again(agent, "").node_id == agent.id
    thread.join(30)
