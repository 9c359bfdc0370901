"""Changes are published to all listeners after the commit, once, whatever fails meanwhile."""

import asyncio
import json
import multiprocessing
import time
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connection, transaction

from gpusched.lib.bus import events, wake
from gpusched.lib.bus.changes import MAX_IDS
from gpusched.lib.bus.listener import Listener
from gpusched.lib.bus.notifier import CHANNEL, CYCLE_CHANNEL, notifier
from gpusched.lib.db.connections import connection_parameters

pytestmark = pytest.mark.django_db(transaction=True)
TIMEOUT_SECONDS = 20.0


@contextmanager
def listening():
    """Yield a function that waits until a condition holds for all notifications: [(channel, payload)]."""
    notifier.flush()
    with psycopg.connect(**connection_parameters(), autocommit=True) as ear:
        ear.execute(f"LISTEN {CHANNEL}")
        ear.execute(f"LISTEN {CYCLE_CHANNEL}")
        received: list[tuple[str, str]] = []

        def until(condition):
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while not condition(received):
                assert time.monotonic() < deadline, received
                received.extend(
                    (notification.channel, notification.payload)
                    for notification in ear.notifies(timeout=0.2, stop_after=1)
                )
            return received

        yield until


def ids_of(received, topic="jobs"):
    """Return the ids of `topic` in notifications."""
    return {
        number for channel, payload in received if channel == CHANNEL for number in json.loads(payload).get(topic, ())
    }


def test_change_is_published_after_its_commit_only(django_assert_num_queries):
    """It runs no statement: a NOTIFY would make other transactions with one wait for this one's disk."""
    with listening() as until:
        with transaction.atomic():
            events.changed("jobs", [1])
            transaction.set_rollback(True)
        with transaction.atomic():
            with django_assert_num_queries(0):
                events.changed("jobs", [2])
                wake.request_cycle()
            assert notifier.flush()
            assert not ids_of(until(lambda received: True))
        received = until(lambda received: ids_of(received) and (CYCLE_CHANNEL, "") in received)
        assert ids_of(received) == {2}


def test_concurrent_changes_are_published_together():
    with listening() as until:
        for number in range(1, 301):
            events.changed("jobs", [number])
        received = until(lambda received: ids_of(received) == set(range(1, 301)))
        assert len(received) < 200


def test_too_many_ids_are_published_as_any():
    with listening() as until:
        events.changed("nodes", range(MAX_IDS + 1))
        assert until(len)[0] == (CHANNEL, '{"nodes":[]}')


def test_change_of_no_rows_is_not_one_of_any():
    """A hold of a job for which no other one waits made every page read all jobs."""
    with listening() as until:
        events.changed("jobs", [])
        events.changed("jobs", [1])
        events.changed("tenants")
        messages = [json.loads(payload) for _, payload in until(lambda received: "tenants" in str(received))]
    assert [message["jobs"] for message in messages if "jobs" in message] == [[1]]
    assert messages[-1]["tenants"] == []


def test_notifier_survives_a_lost_connection():
    with listening() as until:
        events.changed("jobs", [1])
        until(lambda received: ids_of(received) == {1})
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_notify%'"
            )
            assert cursor.fetchall()
        events.changed("jobs", [2])
        until(lambda received: ids_of(received) == {1, 2})


def test_forked_process_publishes_before_it_exits():
    with listening() as until:
        events.changed("jobs", [1])
        connection.close()
        child = multiprocessing.get_context("fork").Process(target=events.changed, args=("jobs", [2]))
        child.start()
        child.join(TIMEOUT_SECONDS)
        assert child.exitcode == 0
        until(lambda received: ids_of(received) == {1, 2})


def test_listener_hears_of_direct_changes_of_its_process_at_once_and_only_once(monkeypatch):
    """Others come through PostgreSQL, after the notifier's pause."""
    monkeypatch.setattr("gpusched.lib.bus.notifier.PACE_SECONDS", 0.0)
    heard: list[dict[str, list[int]]] = []

    async def scenario():
        listener = Listener()
        listener.subscribe(heard.append)
        await until(lambda: heard)  # it listens
        heard.clear()
        notifier.notify("tasks", [1])
        await asyncio.sleep(0)
        assert heard == [{"tasks": [1]}]
        for number in range(2, 5):  # the last one comes after the echoes of those before it
            notifier.notify("tasks", [number])
            notifier.notify("jobs", [number])
            await until(lambda number=number: {"jobs": [number]} in heard)
        assert listener._task is not None
        listener._task.cancel()

    async def until(condition):
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not condition():
                await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert [message["tasks"] for message in heard if "tasks" in message] == [[1], [2], [3], [4]]


def test_listener_hears_another_process_whose_backend_has_the_number_of_its_old_one(monkeypatch):
    """As after a restart of PostgreSQL in a container, where process numbers begin anew."""
    heard: list[dict[str, list[int]]] = []

    async def scenario(other):
        monkeypatch.setattr(notifier, "backend_pid", other.info.backend_pid)
        listener = Listener()
        listener.subscribe(heard.append)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not heard:  # it listens
                await asyncio.sleep(0.01)
            for message in ({"tasks": [7]}, {"jobs": [8]}):
                other.execute("SELECT pg_notify(%s, %s)", [CHANNEL, json.dumps(message)])
            while {"jobs": [8]} not in heard:
                await asyncio.sleep(0.01)
        assert listener._task is not None
        listener._task.cancel()

    notifier.flush()
    with psycopg.connect(**connection_parameters(), autocommit=True) as other:
        asyncio.run(scenario(other))
    assert heard[1:] == [{"tasks": [7]}, {"jobs": [8]}]


def test_listener_hears_of_equal_direct_changes_once_a_turn():
    """As of submits to one endpoint by many clients."""
    heard: list[dict[str, list[int]]] = []

    async def scenario():
        listener = Listener()
        listener.subscribe(heard.append)
        for topic, number in (("endpoints", 1), ("tasks", 7), ("endpoints", 1), ("endpoints", 2)):
            notifier.notify(topic, [number])
        await asyncio.sleep(0)
        notifier.notify("endpoints", [1])
        await asyncio.sleep(0)
        assert listener._task is not None
        listener._task.cancel()

    asyncio.run(scenario())
    first_turn = [{"endpoints": [1]}, {"tasks": [7]}, {"endpoints": [2]}]
    assert heard == [*first_turn, {"endpoints": [1]}]
