"""What changed is told after the commit, once and to everybody, whatever dies meanwhile."""

import json
import multiprocessing
import time
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connection, transaction

from gpusched.lib.bus import events, wake
from gpusched.lib.bus.changes import MAX_IDS
from gpusched.lib.bus.notifier import CHANNEL, CYCLE_CHANNEL, ringer
from gpusched.lib.db.connections import connection_parameters

pytestmark = pytest.mark.django_db(transaction=True)
TIMEOUT_SECONDS = 20.0


@contextmanager
def listening():
    """Gives what waits until the condition holds of all that was heard: [(channel, payload)]."""
    ringer.flush()
    with psycopg.connect(**connection_parameters(), autocommit=True) as ear:
        ear.execute(f"LISTEN {CHANNEL}")
        ear.execute(f"LISTEN {CYCLE_CHANNEL}")
        heard: list[tuple[str, str]] = []

        def until(condition):
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while not condition(heard):
                assert time.monotonic() < deadline, heard
                heard.extend((one.channel, one.payload) for one in ear.notifies(timeout=0.2, stop_after=1))
            return heard

        yield until


def told(heard, topic="jobs"):
    """Ids of `topic` in what was heard."""
    return {number for channel, payload in heard if channel == CHANNEL for number in json.loads(payload).get(topic, ())}


def test_a_change_is_told_after_its_commit_and_never_without_one(django_assert_num_queries):
    """A transaction that notified would make all others that do wait for its disk: it asks the database for nothing."""
    with listening() as until:
        with transaction.atomic():
            events.changed("jobs", [1])
            transaction.set_rollback(True)
        with transaction.atomic():
            with django_assert_num_queries(0):
                events.changed("jobs", [2])
                wake.request_cycle()
            assert ringer.flush()
            assert not told(until(lambda heard: True))
        heard = until(lambda heard: told(heard) and (CYCLE_CHANNEL, "") in heard)
        assert told(heard) == {2}


def test_many_changes_of_a_moment_are_told_together():
    with listening() as until:
        for number in range(1, 301):
            events.changed("jobs", [number])
        heard = until(lambda heard: told(heard) == set(range(1, 301)))
        assert len(heard) < 200


def test_beyond_some_hundred_ids_it_says_any_of_them():
    with listening() as until:
        events.changed("nodes", range(MAX_IDS + 1))
        assert until(len)[0] == (CHANNEL, '{"nodes":[]}')


def test_its_connection_may_be_cut():
    with listening() as until:
        events.changed("jobs", [1])
        until(lambda heard: told(heard) == {1})
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_notify%'"
            )
            assert cursor.fetchall()
        events.changed("jobs", [2])
        until(lambda heard: told(heard) == {1, 2})


def test_a_forked_process_that_ends_at_once_has_told_it():
    with listening() as until:
        events.changed("jobs", [1])
        connection.close()
        child = multiprocessing.get_context("fork").Process(target=events.changed, args=("jobs", [2]))
        child.start()
        child.join(TIMEOUT_SECONDS)
        assert child.exitcode == 0
        until(lambda heard: told(heard) == {1, 2})
