"""The sentence of an attempt's end names everything: in the list of attempts, in the explanation, and in the events."""

import pytest

from frontend.pages.job.rows import sentence as event_sentence
from gpusched.lib.db.sql import query
from jobs.actions import job_actions
from jobs.lifecycle import states
from jobs.models import Job
from scheduling.whatif import explain
from tests.factories import identity_for, make_node, run_cycle, submit
from tests.nodes.test_classes import last_attempt

pytestmark = pytest.mark.django_db(transaction=True)


def run_one(user, tenant):
    node, job_id = make_node(), submit(user, tenant, max_runtime_minutes=1)
    run_cycle()
    [key] = node.start_all()
    return node, job_id, key


def end_sentences(job_id, user):
    """Return that of the attempt, of the explanation and of the event."""
    rows = query("SELECT kind, actor, data FROM jobs_jobevent WHERE job_id = %s AND kind = 'ended'", [job_id])
    events = [event_sentence(row["kind"], row["actor"], row["data"]) for row in rows]
    return [last_attempt(job_id)["sentence"], explain.explain(job_id, identity_for(user))["sentence"], *events]


def test_time_limit_is_named_also_after_it_was_changed(user, tenant):
    node, job_id, key = run_one(user, tenant)
    node.end(key, reason="time_limit", exit_code=None, signal=15)
    Job.objects.filter(pk=job_id).update(max_runtime_seconds=7200)
    assert end_sentences(job_id, user) == ["reached its time limit of 1 min"] * 3


@pytest.mark.parametrize("first", ["requeued", "preempted", "held_idle"])
def test_cancel_replaces_an_earlier_order_to_stop(user, tenant, first):
    """The process got the first order, and ends for it in its grace period."""
    node, job_id, key = run_one(user, tenant)
    states.stop([job_id], first, {"by": "a job", "why": "is more urgent"}, "scheduler")
    job_actions.cancel(job_id, identity_for(user))
    node.end(key, reason=first, exit_code=None, signal=15)
    assert end_sentences(job_id, user) == [f"cancelled by {user.username}"] * 3
    assert last_attempt(job_id)["class"] is None
