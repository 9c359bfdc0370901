"""Jobs that wait for jobs: what they say meanwhile, when they are let go, and when they can never start."""

import msgspec
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gpusched.protocol.bulk import MAX_EDGES, bulk_problems
from gpusched.protocol.dependencies import After, cycle_in, is_met
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.states import JobState, Role
from jobs.actions import job_actions
from jobs.models import Dependency, Job, JobEvent
from scheduling.cycle import snapshot
from scheduling.whatif import explain
from tests.factories import identity_for, make_member, make_node, make_tenant, make_token, run_cycle, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def node():
    return make_node(gpus=8)


@pytest.fixture
def post(user):
    """Posts to an address below /api/v1 and gives (status, answer)."""
    token = make_token(user)

    def post(path, body, **headers):
        response = Client().post(
            f"/api/v1/{path}",
            msgspec.json.encode(body),
            content_type="application/json",
            headers={"Authorization": f"Bearer {token}", **headers},
        )
        return response.status_code, response.json()

    return post


def after(job_id, kind="after_ok"):
    return {"command": ["x"], "depends_on": [{"job": job_id, "kind": kind}]}


def state_of(job_id):
    job = Job.objects.get(pk=job_id)
    return job.state, job.reason


def run_to_end(node, job_id, exit_code=0):
    """Places and runs what may run, and ends one job."""
    run_cycle()
    node.start_all()
    [key] = [held for held in node.held if held.startswith(f"{job_id}/") or held.split(".")[0] == str(job_id)]
    node.end(key, exit_code=exit_code)


def test_it_waits_and_says_for_which_jobs(post, user, tenant, node):
    """A20: with evidence, a next step and what would cure it."""
    first, second = submit(user, tenant), submit(user, tenant)
    status, answer = post("jobs", {"command": ["x"], "depends_on": [second, first]})

    assert status == 201
    assert answer["job"]["depends_on"] == [{"job": one, "kind": "after_ok"} for one in (second, first)]
    reason = answer["job"]["reason"]
    assert (reason["code"], reason["sentence"]) == ("dependency", f"waits for 2 jobs, job {first} first to end")
    assert reason["evidence"]["jobs"] == 2
    assert {job.id for job in snapshot.load()[0].jobs} == {first, second}
    run_cycle()
    assert state_of(answer["job_id"]) == ("pending", "dependency")
    assert [state_of(one)[0] for one in (first, second)] == ["scheduled"] * 2
    told = explain.explain(answer["job_id"], identity_for(user))
    assert told["counterfactual"]["change"] == "dependencies_ended"
    assert (
        told["counterfactual"]["sentence"] == "once the 2 jobs that it waits for have ended as it needs it would start"
    )
    assert told["estimate"] is None


def test_it_starts_when_the_last_one_has_ended(post, user, tenant, node):
    first, second = submit(user, tenant), submit(user, tenant)
    _, answer = post("jobs", {"command": ["x"], "depends_on": [first, second]})
    waiting = answer["job_id"]
    later = submit(user, tenant, depends_on=[first], not_before="2100-01-01")

    run_to_end(node, first)
    job = Job.objects.get(pk=waiting)
    assert (job.reason, job.evidence["on"], job.open_dependencies) == ("dependency", f"job {second}", 1)
    run_to_end(node, second)
    assert state_of(waiting) == ("pending", "scheduler_behind")
    run_cycle()
    assert state_of(waiting)[0] == "scheduled"
    assert state_of(later) == ("pending", "not_before"), "its own time stays"
    assert not Dependency.objects.exists()
    assert "eligible" in JobEvent.objects.filter(job_id=waiting).values_list("kind", flat=True)


@pytest.mark.parametrize(
    ("kind", "exit_code", "becomes"),
    [
        ("after_ok", 0, ("pending", "scheduler_behind")),
        ("after_ok", 1, ("cancelled", "dependency_failed")),
        ("after_any", 0, ("pending", "scheduler_behind")),
        ("after_any", 1, ("pending", "scheduler_behind")),
        ("after_fail", 0, ("cancelled", "dependency_failed")),
        ("after_fail", 1, ("pending", "scheduler_behind")),
    ],
)
def test_how_the_other_ends_decides(post, user, tenant, node, kind, exit_code, becomes):
    first = submit(user, tenant)
    _, answer = post("jobs", after(first, kind))
    run_to_end(node, first, exit_code)
    assert state_of(answer["job_id"]) == becomes


def test_what_can_never_start_ends_down_the_whole_line_and_says_after_which(post, user, tenant):
    first = submit(user, tenant)
    second = post("jobs", after(first))[1]["job_id"]
    third = post("jobs", after(second))[1]["job_id"]
    anyway = post("jobs", after(third, "after_any"))[1]["job_id"]

    job_actions.cancel(first, identity_for(user))

    assert state_of(second) == state_of(third) == ("cancelled", "dependency_failed")
    assert state_of(anyway) == ("pending", "scheduler_behind")
    told = explain.current_reason(second, identity_for(user))["sentence"]
    assert told == f"can never start: job {first}, after which it was to start if that completed, is cancelled"
    assert Job.objects.get(pk=third).evidence["on"] == second


def test_a_job_that_is_queued_again_has_not_ended(post, user, tenant, node):
    first = submit(user, tenant, max_retries=1)
    _, answer = post("jobs", after(first, "after_any"))
    run_to_end(node, first, exit_code=1)
    assert state_of(first)[0] == "pending"
    assert state_of(answer["job_id"]) == ("pending", "dependency")


def test_a_hold_in_between_does_not_forget_what_it_waits_for(post, user, tenant, node):
    first, second = submit(user, tenant), submit(user, tenant)
    waiting = post("jobs", {"command": ["x"], "depends_on": [first, second]})[1]["job_id"]
    job_actions.hold(waiting, identity_for(user))
    run_to_end(node, first)
    assert state_of(waiting) == ("held", "held_by_user")
    job_actions.release(waiting, identity_for(user))
    assert state_of(waiting) == ("pending", "dependency")
    job_actions.hold(waiting, identity_for(user))
    run_to_end(node, second)
    assert state_of(waiting) == ("held", "held_by_user")
    job_actions.release(waiting, identity_for(user))
    assert state_of(waiting) == ("pending", "scheduler_behind")


def test_a_job_of_another_tenant_is_like_one_that_does_not_exist(post):
    other = make_tenant("other")
    theirs = submit(make_member(other, Role.MEMBER), other)
    answers = [post("jobs", after(job_id)) for job_id in (theirs, 2**40)]
    assert [status for status, _ in answers] == [404, 404]
    for (_, answer), job_id in zip(answers, (theirs, 2**40), strict=True):
        [error] = answer["errors"]
        assert (error["field"], error["message"].replace(str(job_id), "N")) == (
            "depends_on",
            "there is no job N of this tenant, or you may not see it",
        )
    assert Job.objects.count() == 1


def test_after_one_that_has_ended_it_waits_not_at_all_or_is_refused(post, user, tenant, node):
    first = submit(user, tenant)
    run_to_end(node, first)
    status, answer = post("jobs", after(first))
    assert (status, answer["job"]["reason"]["code"]) == (201, "scheduler_behind")
    status, answer = post("jobs", after(first, "after_fail"))
    assert (status, answer["code"], answer["errors"][0]["field"]) == (422, "dependency_failed", "depends_on")


@pytest.mark.parametrize(
    "depends_on", [["ref"], [0], [-1], [2**63], [1, 1], [1, "1"], [{"job": 1, "kind": "after"}], [1.5], "1", [{}]]
)
def test_what_names_no_job_is_a_400(post, depends_on):
    """A55"""
    status, answer = post("jobs", {"command": ["x"], "depends_on": depends_on})
    assert (status, answer["errors"][0]["field"]) in ((400, "depends_on"), (400, "job"))


def test_repeated_with_its_key_the_first_answer_comes_again_even_when_it_waits_no_more(post, user, tenant, node):
    """A05"""
    first = submit(user, tenant)
    answer = post("jobs", after(first), **{"Idempotency-Key": "k"})
    run_to_end(node, first, exit_code=1)
    assert post("jobs", after(first), **{"Idempotency-Key": "k"}) == answer


def test_a_simulation_says_that_it_would_wait(post, user, tenant, node):
    first = submit(user, tenant)
    status, answer = post("jobs/simulate", after(first))
    assert (status, answer["starts_now"], answer["reason"]["code"]) == (200, False, "dependency")
    assert answer["sentence"] == f"it would wait for job {first} to end"


# --- workflows ----------------------------------------------------------------------------------------------------


def test_a_workflow_is_one_bulk(post, user, tenant, node):
    earlier = submit(user, tenant)
    status, answer = post(
        "jobs/bulk",
        {
            "jobs": [
                {"command": ["report"], "depends_on": [{"job": "train", "kind": "after_any"}]},
                {"ref": "train", "command": ["train"], "depends_on": ["prepare", f"after_any:{earlier}"]},
                {"ref": "prepare", "command": ["prepare"]},
            ]
        },
    )
    assert status == 201
    report, train, prepare = answer["job_ids"]
    jobs = Job.objects.in_bulk()
    assert jobs[report].depends_on == [{"job": train, "kind": "after_any"}]
    assert [one["job"] for one in jobs[train].depends_on] == [prepare, earlier]
    assert [(jobs[one].reason, jobs[one].open_dependencies) for one in (report, train, prepare)] == [
        ("dependency", 1), ("dependency", 2), ("scheduler_behind", 0),
    ]  # fmt: skip
    job_actions.cancel(prepare, identity_for(user))
    assert state_of(train) == ("cancelled", "dependency_failed")
    assert state_of(report) == ("pending", "scheduler_behind")


@pytest.mark.parametrize(
    ("jobs", "field", "message"),
    [
        ([{"ref": "a", "depends_on": ["b"]}, {"ref": "b", "depends_on": ["a"]}], "jobs[0].depends_on", "a -> b -> a"),
        ([{"ref": "a", "depends_on": ["a"]}], "jobs[0].depends_on", "a -> a"),
        ([{"ref": "a"}, {"depends_on": ["c"]}], "jobs[1].depends_on", "no job of this request has the ref 'c'"),
        ([{"ref": "a"}, {"ref": "a"}], "jobs[1].ref", "another job has the ref 'a'"),
        ([{"ref": "7"}], "jobs[0].ref", "not digits alone"),
        ([{}, {"depends_on": [2**40]}], "jobs[1].depends_on", "there is no job"),
    ],
)
@pytest.mark.parametrize("query", ["", "?dry_run=true"])
def test_a_wrong_workflow_is_refused_by_name_and_nothing_is_submitted(post, jobs, field, message, query):
    status, answer = post(f"jobs/bulk{query}", {"jobs": [{"command": ["x"], **job} for job in jobs]})
    assert (status, answer["errors"][0]["field"]) in ((400, field), (404, field))
    assert message in answer["errors"][0]["message"]
    assert not Job.objects.exists()


def test_the_jobs_of_a_bulk_name_no_more_than_so_many(post):
    """A20: one request is no transaction of a minute."""
    first = [{"ref": f"j{n}", "command": ["x"]} for n in range(1_000)]
    names = [one["ref"] for one in first]
    rest = [{"command": ["x"], "depends_on": names} for _ in range(MAX_EDGES // 1_000)]
    too_many = [*first, *rest, {"command": ["x"], "depends_on": ["j0"]}]
    status, answer = post("jobs/bulk", {"jobs": too_many})
    assert (status, answer["errors"][0]["field"], Job.objects.exists()) == (400, "jobs", False)
    assert "50001 jobs, at most 50000" in answer["errors"][0]["message"]
    assert not bulk_problems(msgspec.convert(too_many[:-1], list[JobRequest]))


def test_a_long_chain_ends_at_once(post, user):
    """A20: in the transaction of the end, by the same few statements however long it is, each job saying after which."""
    counts = []
    for length in (3, 2_000):
        chain = [{"ref": "j0", "command": ["x"]}]
        chain += [{"ref": f"j{n}", "command": ["x"], "depends_on": [f"j{n - 1}"]} for n in range(1, length)]
        chain.append({"ref": "at-last", "command": ["x"], "depends_on": [f"after_any:j{length - 1}", "after_ok:j0"]})
        chain.append({"ref": "anyway", "command": ["x"], "depends_on": [f"after_any:j{length - 1}"]})
        ids = post("jobs/bulk", {"jobs": chain})[1]["job_ids"]
        with CaptureQueriesContext(connection) as done:
            job_actions.cancel(ids[0], identity_for(user))
        counts.append(len(done))

        *line, at_last, anyway = Job.objects.filter(pk__in=ids).order_by("id")
        assert {job.state for job in [*line, at_last]} == {"cancelled"}
        assert [job.evidence["on"] for job in line[1:]] == ids[: length - 1]
        assert at_last.evidence == {"on": ids[0], "wanted": "completed", "ended": "cancelled"}
        assert (anyway.state, anyway.open_dependencies) == ("pending", 0)
        events = JobEvent.objects.filter(job_id__in=ids, kind="cancelled").values_list("data__on", flat=True)
        assert sorted(events, key=lambda on: on or 0) == [None, ids[0], *ids[: length - 1]]
    assert counts[0] == counts[1]
    assert not Dependency.objects.exists()


def test_cycles_are_found_and_nothing_else_is():
    assert cycle_in({"a": ["b"], "b": ["c"], "c": ["a"]}) == ["a", "b", "c", "a"]
    assert cycle_in({"x": ["a"], "a": ["b"], "b": ["a"]}) == ["a", "b", "a"]
    assert cycle_in({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": ["elsewhere"]}) == []
    assert cycle_in({f"n{i}": [f"n{i + 1}"] for i in range(20_000)}) == []


def test_which_ends_are_what_a_job_waits_for():
    ends = {kind: {str(state) for state in JobState if is_met(kind, state)} for kind in After}
    bad = {"failed", "cancelled", "preempted"}
    assert ends == {After.OK: {"completed"}, After.FAIL: bad, After.ANY: {"completed", *bad}}
