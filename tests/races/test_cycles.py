"""Cycles never overlap, and no wake-up is lost (A51)."""

import random
import threading
import time

import pytest
from django.db import connection, connections

from scheduling.cycle import run
from tests.races.test_constraints import at_once

pytestmark = pytest.mark.django_db(transaction=True)


def test_cycles_never_overlap_and_see_every_request(monkeypatch):
    """A51: eight threads each write something and ask for a cycle. Whenever all of them have returned, every write has
    been seen by a cycle whose snapshot was taken after it. ("Lock held, so return" loses half of such trials.)"""
    running, overlaps, seen = [0], [], set()
    guard = threading.Lock()

    def fake_cycle(trigger):
        with guard:
            running[0] += 1
            if running[0] > 1:
                overlaps.append(running[0])
        with connection.cursor() as cursor:
            cursor.execute("SELECT id FROM wakes")
            ids = {row[0] for row in cursor.fetchall()}
        time.sleep(random.random() * 0.004)
        with guard:
            seen.update(ids)
            running[0] -= 1
        return None, None

    monkeypatch.setattr(run, "_run", fake_cycle)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE wakes (id bigserial PRIMARY KEY)")
    try:
        for _ in range(15):

            def ask():
                for _ in range(3):
                    with connection.cursor() as cursor:
                        cursor.execute("INSERT INTO wakes DEFAULT VALUES")
                    run.run("test")

            assert at_once(*[ask] * 8) == [None] * 8
            with connection.cursor() as cursor:
                cursor.execute("SELECT id FROM wakes")
                assert {row[0] for row in cursor.fetchall()} == seen
        assert overlaps == []
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE wakes")


def test_a_killed_holder_frees_the_lock_at_once():
    """A51: the lock is the connection's, and the connection dies with its process."""
    from gpusched.lib.db import locks

    taken, killed = threading.Event(), threading.Event()

    def holder():
        locks.acquire(locks.Lock.CYCLE_RUNNING)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])
        taken.set()
        killed.wait(10)
        connections.close_all()

    pids: list[int] = []
    thread = threading.Thread(target=holder)
    thread.start()
    assert taken.wait(10)
    assert not locks.try_acquire(locks.Lock.CYCLE_RUNNING)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", pids)
    deadline = time.monotonic() + 2
    while not (free := locks.try_acquire(locks.Lock.CYCLE_RUNNING)) and time.monotonic() < deadline:
        time.sleep(0.01)
    locks.release(locks.Lock.CYCLE_RUNNING)
    killed.set()
    thread.join(10)
    assert free
