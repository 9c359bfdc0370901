"""Concurrent placements, cancels and ends of arrays: no element is duplicated, lost or beyond max_parallel."""

import threading

import pytest
from django.db import connections, transaction

from gpusched.lib.db.sql import execute, query
from gpusched.protocol.agent_messages import Stop
from gpusched.protocol.arrays import ArrayRequest
from jobs.actions import job_actions
from jobs.arrays import materialize
from jobs.listing import representation
from jobs.models import Job, JobEvent
from tests.factories import identity_for, make_node, run_cycle, submit
from tests.races.elsewhere import Elsewhere, blocked, wait_until_blocked
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def submit_array(user, tenant, count, max_parallel=None):
    return submit(user, tenant, array=ArrayRequest(count=count, max_parallel=max_parallel))


def together(*works):
    """Run the works at once, each on its own connection. Raise the first exception of any."""
    start, failed = threading.Barrier(len(works)), []

    def run(work):
        try:
            start.wait()
            work()
        except Exception as error:  # noqa: BLE001 - raised in the test
            failed.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failed:
        raise failed[0]


def test_concurrent_materialize_makes_no_element_twice_and_observes_max_parallel(user, tenant):
    """A02. As with two cycles: the second waits for the array's lock, and then sees the elements of the first."""
    array = submit_array(user, tenant, 10, 6)
    first = Elsewhere(lambda: _live(materialize.materialize({array: 4}).created[array]))
    assert first.is_done.wait(20)
    second = Elsewhere(lambda: materialize.materialize({array: 4}))
    wait_until_blocked(second)
    first.commit()
    second.commit()
    assert list(Job.objects.filter(array_id=array).order_by("pk").values_list("array_index", flat=True)) == list(
        range(6)
    )


def _live(ids):
    Job.objects.filter(pk__in=ids).update(state="scheduled", attempt=1)


def test_element_is_cancelled_or_placed_but_not_both(user, tenant):
    """A06. A cancel during a placement waits, and then stops the placed elements."""
    array = submit_array(user, tenant, 4)
    placing = Elsewhere(lambda: _live(materialize.materialize({array: 2}).created[array]))
    assert placing.is_done.wait(20)
    cancelling = Elsewhere(lambda: job_actions.cancel(array, identity_for(user), "1-2"))
    wait_until_blocked(cancelling)
    placing.commit()
    cancelling.commit()
    assert dict(Job.objects.filter(array_id=array).values_list("array_index", "state")) == {
        0: "scheduled",
        1: "stopping",
    }
    job = Job.objects.get(pk=array)
    assert (job.state, str(job.array_waiting), str(job.array_cancelled)) == ("running", "{[3, 4)}", "{[2, 3)}")


def test_concurrent_cycles_cancels_and_retries_run_each_element_once(user, tenant):
    """A50"""
    node, identity = make_node(gpus=6), identity_for(user)
    array = submit_array(user, tenant, 40, 4)
    for turn in range(12):
        part = f"{turn}-{turn + 8}"
        together(run_cycle, lambda: job_actions.cancel(array, identity, part), run_cycle)  # noqa: B023
        assert Job.objects.filter(array_id=array, state__in=["scheduled", "running", "stopping"]).count() <= 4
        keys = node.start_all()
        node.end(*[key for key in node.held if key in keys])
        stopped = {
            order.key for order in node.sync().assignments if isinstance(order, Stop)
        }  # also before they started
        node.end(*stopped, reason="cancelled", exit_code=None, signal=15)
        run_cycle()
    together(run_cycle, lambda: job_actions.retry(array, identity, "0-9"))
    for _ in range(40):
        run_cycle()
        node.end(*node.start_all())
    run_cycle()
    counts = representation.select("j.id = %s", [array])[0]["array"]["by_state"]
    assert Job.objects.get(pk=array).state == ("cancelled" if "cancelled" in counts else "completed")
    assert (sum(counts.values()), set(counts) - {"completed", "cancelled"}) == (40, set())
    assert Job.objects.filter(array_id=array, array_index__lt=10, state="completed").count() == 10


def test_array_ends_when_its_last_elements_end_at_once(user, tenant):
    nodes = [make_node(gpus=1), make_node(gpus=1)]
    array = submit_array(user, tenant, 2)
    run_cycle()
    keys = [node.start_all() for node in nodes]
    together(*(lambda node=node, key=key: node.end(*key) for node, key in zip(nodes, keys, strict=True)))
    together(run_cycle, run_cycle)
    assert Job.objects.get(pk=array).state == "completed"


@pytest.mark.parametrize("action", [job_actions.cancel, job_actions.hold])
def test_key_share_lock_does_not_block_actions(user, tenant, action):
    """An agent's report holds such locks until its commit, for the foreign keys of its rows."""
    make_node(gpus=1)
    array = submit_array(user, tenant, 3)
    run_cycle()
    sql = "SELECT id FROM jobs_job WHERE id = %s OR array_id = %s FOR KEY SHARE"
    referring = Elsewhere(lambda: query(sql, [array, array]))
    assert referring.is_done.wait(20)
    acting = Elsewhere(lambda: action(array, identity_for(user)))
    wait_until_blocked(acting)
    assert acting.is_done.is_set()
    referring.commit()
    acting.commit()


def test_first_start_of_an_array_waits_for_an_action_on_it_without_a_deadlock(user, tenant):
    """An action locks the array and then its elements, and so does the report: a deadlock delays both by a second, and
    with the report the messages of other nodes."""
    node = make_node(gpus=2)
    array = submit_array(user, tenant, 2)
    run_cycle()
    with transaction.atomic():
        query("SELECT id FROM jobs_job WHERE id = %s FOR NO KEY UPDATE", [array])
        starting = Elsewhere(node.start_all)
        wait_until_blocked(starting)
        query("SELECT id FROM jobs_job WHERE array_id = %s ORDER BY id FOR NO KEY UPDATE NOWAIT", [array])
    starting.commit()
    assert Job.objects.get(pk=array).started_at is not None
    assert set(Job.objects.filter(array_id=array).values_list("state", flat=True)) == {"running"}


def test_cancel_is_retried_after_a_deadlock(user, tenant):
    make_node(gpus=1)
    array = submit_array(user, tenant, 3)
    run_cycle()
    holds = threading.Event()

    def in_the_other_order():
        # PostgreSQL ends the one that has waited this long: the cancel, however slow the machine is.
        execute("SET LOCAL deadlock_timeout = '60s'")
        query("SELECT id FROM jobs_job WHERE array_id = %s FOR UPDATE", [array])
        holds.set()
        wait_for(blocked)
        query("SELECT id FROM jobs_job WHERE id = %s FOR UPDATE", [array])

    other = Elsewhere(in_the_other_order)
    other.may_commit.set()
    assert holds.wait(20)
    execute("SET deadlock_timeout = '2s'")
    try:
        result = job_actions.cancel(array, identity_for(user))
    finally:
        execute("RESET deadlock_timeout")
    assert result.endswith("2 elements are cancelled, 1 element is being stopped")
    other.commit()
    assert other.is_done.is_set()
    assert JobEvent.objects.filter(job_id=array, kind="stopping").count() == 1
