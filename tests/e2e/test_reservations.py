"""A reservation with real processes: others wait, the owner's job starts at once, and ends with it (A72)."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.system.stack import Stack
from tests.waiting import assert_stays, wait_for

pytestmark = pytest.mark.e2e
# Minutes of a reservation would be minutes of the test.
_END_SOON = """
    WITH ended AS (UPDATE scheduling_reservation SET ends_at = now() + interval '4 s' WHERE id = %s RETURNING ends_at)
    UPDATE scheduling_reserveddevice SET ends_at = (SELECT ends_at FROM ended) WHERE reservation_id = %s
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One pretend node of eight GPUs."""
    with Stack() as running:
        running.fleet(1)
        yield running


def test_reservation_keeps_its_gpus_from_its_start_to_its_end(stack: Stack) -> None:
    """A72"""
    client = stack.client()
    client.create_tenant("others")
    start = datetime.now(UTC) + timedelta(seconds=8)
    booked = client.reserve(8, start=start, for_seconds=600, tenant="default")
    assert (booked.state, len(booked.devices)) == ("planned", 8)

    # 1. Before the start: a job of others without a time limit waits, also after the start.
    other = client.submit(["sleep", "600"], gpus=8, tenant="others")
    mine = client.submit(["sleep", "600"], gpus=8, tenant="default", reservation=booked.id, grace_seconds=1)
    wait_for(lambda: client.get(other.id).reason is not None, 20, "a reason")
    wait_for(lambda: client.why(other.id).code == "reserved_soon", 20, "the reason reserved_soon")
    assert client.why(mine.id).code == "reservation_pending"

    # 2. At the start the job of the owner starts at once.
    wait_for(lambda: client.get(mine.id).state == "running", 40, "the job of the owner to run")
    started = client.get(mine.id).started_at
    assert started is not None and timedelta(0) <= started - start < timedelta(seconds=5)
    wait_for(lambda: client.reservation(booked.id).state == "active", 20, "the reservation to be active")
    assert client.reservation(booked.id).jobs == [mine.id]
    assert_stays(lambda: client.get(other.id).state == "pending", 1)

    # 3. At the end it is stopped and waits again, and the other one starts.
    with psycopg.connect(stack.database_url(), autocommit=True) as database:
        database.execute(_END_SOON, [booked.id, booked.id])
    wait_for(lambda: client.reservation(booked.id).state == "expired", 40, "the reservation to end")
    wait_for(lambda: client.get(mine.id).state == "pending", 40, "the job of the owner to wait again")
    [first] = [attempt for attempt in client.attempts(mine.id) if attempt.number == 1]
    assert first.sentence == f"requeued by the end of reservation {booked.id}"
    for job in (mine, other):
        client.cancel(job.id)
        assert client.wait(job.id, timeout=60).state == "cancelled"
    used = client.usage("default", by="user")
    assert used.total.gpu_hours > 0
