"""Job arrays: one row whose elements become jobs when placed; max_parallel; cancel and retry of some elements."""

from collections import Counter

import pytest
from django.db import transaction

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.protocol.agent_messages import Run
from gpusched.protocol.reasons import EndReason
from jobs.actions import job_actions
from jobs.arrays import materialize
from jobs.lifecycle.states import stop
from jobs.listing import representation
from jobs.models import Job, JobEvent
from scheduling.whatif.explain import explain
from tests.factories import make_member, make_node, make_tenant, run_cycle, submit
from tests.jobs.arrays import ends, submit_array

pytestmark = pytest.mark.django_db


def represented(job_id):
    return representation.select("j.id = %s", [job_id])[0]


def states(array_id):
    """Return {index: state} of the elements that are jobs."""
    return dict(Job.objects.filter(array_id=array_id).order_by("array_index").values_list("array_index", "state"))


def test_array_is_one_row_until_elements_are_placed(user, tenant):
    array = submit_array(user, tenant, 10_000)
    assert Job.objects.count() == 1
    assert represented(array)["array"] == {
        "count": 10_000, "max_parallel": None, "remaining": 10_000, "by_state": {"pending": 10_000},
    }  # fmt: skip
    node = make_node(gpus=4)
    run_cycle()
    job = represented(array)
    assert (job["state"], job["attempt"], job["nodes"]) == ("running", 0, [])
    assert job["array"]["by_state"] == {"scheduled": 4, "pending": 9_996}
    assert states(array) == dict.fromkeys(range(4), "scheduled")
    assert [element["name"] for element in representation.select("j.array_id = %s", [array], "ORDER BY j.id")][
        3
    ] == "sweep[3]"
    node.start_all()
    assert represented(array)["array"]["by_state"] == {"running": 4, "pending": 9_996}
    assert Job.objects.get(pk=array).started_at is not None


def test_element_gets_its_number_and_the_program_of_the_array(user, tenant):
    node = make_node(gpus=2)
    array = submit_array(user, tenant, 3, command=["python", "x.py"], environment={"LR": "1"})
    run_cycle()
    specs = {order.spec.job_id: order.spec for order in node.sync().assignments if isinstance(order, Run)}
    numbers = {job.pk: job.array_index for job in Job.objects.filter(array_id=array)}
    assert {numbers[job]: spec.environment["GPUSCHED_ARRAY_INDEX"] for job, spec in specs.items()} == {0: "0", 1: "1"}
    assert {(tuple(spec.argv), spec.environment["LR"]) for spec in specs.values()} == {(("python", "x.py"), "1")}


def test_array_completes_when_all_elements_have_completed(user, tenant):
    node, array = make_node(gpus=2), submit_array(user, tenant, 5)
    after = submit(user, tenant, depends_on=[array], gpu_count=0)
    for _ in range(3):
        run_cycle()
        ends(node, node.start_all())
    assert states(array) == dict.fromkeys(range(5), "completed")
    job = represented(array)
    assert (job["state"], job["reason"]["code"], job["array"]["remaining"]) == ("completed", "array_ended", 0)
    assert job["reason"]["sentence"].startswith("of its elements 5 completed, 0 failed")
    kinds = list(JobEvent.objects.filter(job_id=array).values_list("kind", flat=True))
    assert kinds == ["submitted", "started", "ended"]
    assert Job.objects.get(pk=after).state != "pending" or Job.objects.get(pk=after).open_dependencies == 0


def test_live_elements_never_exceed_max_parallel(user, tenant, identity):
    node, array = make_node(gpus=8), submit_array(user, tenant, 6, 2)
    run_cycle()
    run_cycle()
    assert Counter(states(array).values()) == {"scheduled": 2}
    reason = represented(array)["reason"]
    assert (reason["code"], reason["sentence"]) == (
        "max_parallel",
        "of this array, 2 placed or running; at most 2 may be at once",
    )
    explanation = explain(array, identity)
    assert explanation["counterfactual"] == {
        "change": "max_parallel", "to": 3, "starts": True, "sentence": "with max_parallel 3 it would start",
    }  # fmt: skip
    ends(node, node.start_all()[:1])
    assert Counter(states(array).values()) == {"running": 1, "completed": 1, "scheduled": 1}


def test_requeued_element_is_placed_before_the_next(user, tenant, identity):
    node, array = make_node(gpus=8), submit_array(user, tenant, 4, 1, max_retries=1)
    run_cycle()
    [key] = node.start_all()
    job_actions.requeue(Job.objects.get(array_id=array).pk, identity)
    node.end(key, reason="requeued", exit_code=None, signal=15)
    run_cycle()
    assert states(array) == {0: "scheduled"}
    assert Job.objects.get(array_id=array).attempt == 2


def test_elements_in_any_state_are_cancelled(user, tenant, identity):
    node, array = make_node(gpus=2), submit_array(user, tenant, 6)
    run_cycle()
    keys = node.start_all()
    message = job_actions.cancel(array, identity, "1-2,5")
    assert message == f"array {array}: 2 elements are cancelled, 1 element is being stopped"
    assert represented(array)["array"]["by_state"] == {"pending": 2, "running": 1, "stopping": 1, "cancelled": 2}
    assert job_actions.cancel(array, identity, "5").startswith(f"array {array}: 0 elements are cancelled")
    recorded = JobEvent.objects.filter(job_id=array, actor="ada").exclude(kind="submitted").values_list("kind", "data")
    named = {"reason": "cancelled", "by": "ada", "elements": "1-2,5", "cancelled": 2, "stopped": 1}
    assert list(recorded) == [("part_cancelled", named)], "neither the array's own end nor earlier ends count"
    node.end(keys[1], reason="cancelled", exit_code=None, signal=15)
    node.end(keys[0])
    run_cycle()
    assert states(array) == {0: "completed", 1: "cancelled", 3: "scheduled", 4: "scheduled"}
    ends(node, node.start_all())
    job = represented(array)
    assert (job["state"], job["array"]["by_state"]) == ("cancelled", {"completed": 3, "cancelled": 3})


def test_requeued_element_is_cancelled(user, tenant, identity):
    node, array = make_node(gpus=2), submit_array(user, tenant, 6)
    run_cycle()
    keys = node.start_all()
    job_actions.requeue(Job.objects.get(array_id=array, array_index=0).pk, identity)
    node.end(keys[0], reason="requeued", exit_code=None, signal=15)
    assert states(array)[0] == "pending"
    message = job_actions.cancel(array, identity, "0")
    assert message == f"array {array}: 1 element is cancelled, 0 elements are being stopped"
    run_cycle()
    assert states(array) == {0: "cancelled", 1: "running", 2: "scheduled"}


@pytest.mark.parametrize("action", [job_actions.hold, job_actions.cancel])
def test_materialize_skips_an_array_that_was_held_or_cancelled_meanwhile(user, tenant, identity, action):
    """As in a cycle whose snapshot is older than the action."""
    array, other = (submit_array(user, tenant, 6) for _ in range(2))
    action(array, identity)
    with transaction.atomic():
        assert list(materialize.materialize({array: 2, other: 2}).created) == [other]
    assert states(array) == {}


def test_cancelled_array_ends_with_its_last_element(user, tenant, identity):
    node, array = make_node(gpus=2), submit_array(user, tenant, 6)
    after = submit(user, tenant, depends_on=[array])
    run_cycle()
    keys = node.start_all()
    job_actions.cancel(array, identity)
    job_actions.cancel(array, identity)
    assert JobEvent.objects.filter(job_id=array, kind="stopping").count() == 1
    assert (represented(array)["state"], represented(array)["reason"]["sentence"]) == ("stopping", "cancelled by ada")
    for key in keys:
        ends(node, [key])
    assert Counter(states(array).values()) == {"completed": 2}
    assert (represented(array)["state"], represented(array)["array"]["by_state"]) == (
        "cancelled",
        {"completed": 2, "cancelled": 4},
    )
    assert Job.objects.get(pk=after).reason == "dependency_failed"
    assert job_actions.cancel(array, identity) == f"array {array} had already ended: cancelled"


def test_array_fails_when_an_element_is_preempted_for_good(user, tenant):
    node, array = make_node(gpus=2), submit_array(user, tenant, 2, requeue=False)
    run_cycle()
    first, second = node.start_all()
    stop([Job.objects.get(array_id=array, array_index=0).pk], EndReason.PREEMPTED, {}, "scheduler")
    node.end(first, reason="preempted", exit_code=None, signal=15)
    ends(node, [second])
    assert states(array) == {0: "preempted", 1: "completed"}
    assert represented(array)["state"] == "failed"


def test_waiting_array_is_cancelled_at_once(user, tenant, identity):
    array = submit_array(user, tenant, 6)
    job_actions.cancel(array, identity)
    job = represented(array)
    assert (job["state"], job["array"]["by_state"], job["array"]["remaining"]) == ("cancelled", {"cancelled": 6}, 0)


def test_array_is_cancelled_when_its_dependency_fails(user, tenant, identity):
    first = submit(user, tenant)
    array = submit_array(user, tenant, 6, depends_on=[first])
    assert represented(array)["reason"]["code"] == "dependency"
    job_actions.cancel(first, identity)
    assert (represented(array)["state"], represented(array)["array"]["by_state"]) == ("cancelled", {"cancelled": 6})


def test_retry_reruns_failed_elements_and_reopens_the_array(user, tenant, identity):
    node, array = make_node(gpus=4), submit_array(user, tenant, 4)
    run_cycle()
    keys = node.start_all()
    node.end(*keys[2:], exit_code=3)
    ends(node, keys[:2])
    assert represented(array)["state"] == "failed"
    assert job_actions.retry(array, identity, "failed") == f"array {array}: 2 elements are to run again"
    assert (represented(array)["state"], represented(array)["ended_at"]) == ("running", None)
    run_cycle()
    assert Counter(states(array).values()) == {"completed": 2, "scheduled": 2}
    ends(node, node.start_all())
    assert (represented(array)["state"], Job.objects.filter(array_id=array, attempt=2).count()) == ("completed", 2)
    with pytest.raises(Problem, match="none of these elements"):
        job_actions.retry(array, identity, "failed")


def test_retry_by_number_includes_elements_that_never_became_jobs(user, tenant, identity):
    node, array = make_node(gpus=1), submit_array(user, tenant, 4)
    run_cycle()
    [key] = node.start_all()
    job_actions.cancel(array, identity, "1-3")
    ends(node, [key])
    assert represented(array)["state"] == "cancelled"
    job_actions.retry(array, identity, "0,2")
    assert represented(array)["array"]["by_state"] == {"pending": 2, "cancelled": 2}
    for _ in range(2):
        run_cycle()
        ends(node, node.start_all())
    assert states(array) == {0: "completed", 2: "completed"}
    assert represented(array)["state"] == "cancelled"


def test_hold_keeps_waiting_elements_and_leaves_running_ones(user, tenant, identity):
    node, array = make_node(gpus=2), submit_array(user, tenant, 5)
    run_cycle()
    keys = node.start_all()
    assert job_actions.hold(array, identity) == f"array {array}: 3 elements are held"
    ends(node, keys)
    assert represented(array)["array"]["by_state"] == {"held": 3, "completed": 2}
    assert (represented(array)["state"], represented(array)["reason"]["code"]) == ("held", "held_by_user")
    job_actions.release(array, identity)
    run_cycle()
    assert represented(array)["array"]["by_state"] == {"pending": 1, "scheduled": 2, "completed": 2}


def test_running_element_of_a_held_array_is_held_when_it_returns_to_the_queue(user, tenant, identity):
    node, array = make_node(gpus=2), submit_array(user, tenant, 3, max_retries=1)
    run_cycle()
    failing, requeued = node.start_all()
    job_actions.hold(array, identity)
    job_actions.requeue(int(requeued.partition(".")[0]), identity)
    node.end(requeued, reason="requeued", exit_code=None)
    ends(node, [failing], code=1)
    assert represented(array)["array"]["by_state"] == {"held": 3}
    query("UPDATE jobs_job SET eligible_at = NULL WHERE array_id = %s RETURNING id", [array])
    job_actions.release(array, identity)
    run_cycle()
    assert represented(array)["array"]["by_state"] == {"pending": 1, "scheduled": 2}


def test_array_waits_for_the_reason_of_its_next_element(user, tenant, identity):
    make_node(gpus=2)
    submit(user, tenant, gpu_count=2)
    run_cycle()
    array = submit_array(user, tenant, 100)
    later = submit(user, tenant, gpu_count=2, priority=300)
    run_cycle()
    assert represented(array)["reason"]["code"] == "capacity"
    ahead = represented(later)["reason"]["evidence"]
    assert (ahead["jobs_ahead"], ahead["gpus_ahead"]) == (100, 100)
    assert explain(later, identity)["position"] == {"jobs": 100, "gpus": 100}
    assert explain(array, identity)["counterfactual"]["starts"] is True


def test_array_is_refused_when_its_elements_can_never_run(user, tenant):
    """A04"""
    make_node(gpus=2)
    with pytest.raises(Problem, match="can never start"):
        submit_array(user, tenant, 10, gpu_count=3)


def test_elements_count_against_limits_like_jobs(user, tenant):
    """A02"""
    small = make_tenant("small", quota={"max_gpus": 3})
    member = make_member(small)
    make_node(gpus=8)
    array = submit_array(member, small, 10)
    run_cycle()
    run_cycle()
    assert Counter(states(array).values()) == {"scheduled": 3}
    assert represented(array)["reason"]["code"] == "quota_wait"


def test_element_becomes_a_job_when_others_are_preempted_for_it(user, tenant):
    """A14"""
    node = make_node(gpus=2)
    for _ in range(2):
        submit(user, tenant, priority=100)
    run_cycle()
    node.start_all()
    array = submit_array(user, tenant, 3, priority=3000)
    query("UPDATE jobs_job SET submitted_at = submitted_at - interval '1 hour' RETURNING id")
    query("UPDATE jobs_attempt SET started_at = started_at - interval '1 hour' RETURNING id")
    query("UPDATE jobs_job SET started_at = started_at - interval '1 hour' WHERE started_at IS NOT NULL RETURNING id")
    for _ in range(3):
        run_cycle()
    stopping = list(Job.objects.filter(state="stopping"))
    assert len(stopping) == 2
    assert {job.stop_evidence["by_job"] for job in stopping} == set(
        Job.objects.filter(array_id=array).values_list("pk", flat=True)
    )
    assert represented(array)["array"]["by_state"] == {"pending": 3}
    node.end(*node.held, reason="preempted", exit_code=None, signal=15)
    run_cycle()
    assert states(array) == {0: "scheduled", 1: "scheduled"}


@pytest.mark.parametrize("max_parallel", [None, 3])
def test_element_that_waits_again_starts_before_the_next_new_one(user, tenant, identity, max_parallel):
    node, array = make_node(gpus=2), submit_array(user, tenant, 4, max_parallel)
    run_cycle()
    first, _ = node.start_all()
    job_actions.requeue(int(first.split(".")[0]), identity)
    node.end(first, reason="requeued", exit_code=None, signal=15)
    run_cycle()
    assert states(array) == {0: "scheduled", 1: "running"}
