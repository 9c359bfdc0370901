"""Dependencies between jobs: the reason while they wait, the release, and jobs that can never start."""

import msgspec
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gpusched.lib.bus import events
from gpusched.protocol.bulk import MAX_EDGES, bulk_problems
from gpusched.protocol.dependencies import After, cycle_in, is_met
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.states import JobState, Role
from jobs.actions import job_actions
from jobs.listing import representation
from jobs.models import Dependency, Job, JobEvent
from scheduling.cycle import snapshot
from scheduling.whatif import explain
from tests.factories import identity_for, make_member, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def post(user):
    """Return a function that posts to a path below /api/v1 and returns (status, answer)."""
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
    """Place and start all jobs that can run, and end one of them."""
    run_cycle()
    node.start_all()
    [key] = [rank for rank in node.held if rank.startswith(f"{job_id}/") or rank.split(".")[0] == str(job_id)]
    node.end(key, exit_code=exit_code)


def test_job_with_dependencies_waits_and_names_them(post, user, tenant, node):
    """A20: with evidence, a next step and a counterfactual."""
    first, second = submit(user, tenant), submit(user, tenant)
    status, answer = post("jobs", {"command": ["x"], "depends_on": [second, first]})

    assert status == 201
    assert answer["job"]["depends_on"] == [{"job": job_id, "kind": "after_ok"} for job_id in (second, first)]
    reason = answer["job"]["reason"]
    assert (reason["code"], reason["sentence"]) == ("dependency", f"waits for 2 jobs, job {first} first to end")
    assert reason["evidence"]["jobs"] == 2
    assert {job.id for job in snapshot.load()[0].jobs} == {first, second}
    run_cycle()
    assert state_of(answer["job_id"]) == ("pending", "dependency")
    assert [state_of(job_id)[0] for job_id in (first, second)] == ["scheduled"] * 2
    explanation = explain.explain(answer["job_id"], identity_for(user))
    assert explanation["counterfactual"]["change"] == "dependencies_ended"
    assert (
        explanation["counterfactual"]["sentence"]
        == "after the required end of the 2 jobs that it waits for it would start"
    )
    assert explanation["estimate"] is None


def test_job_starts_when_its_last_dependency_has_ended(post, user, tenant, node):
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
    assert state_of(later) == ("pending", "not_before"), "its not_before still applies"
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
def test_dependency_kind_decides_by_the_end_of_the_other_job(post, user, tenant, node, kind, exit_code, becomes):
    first = submit(user, tenant)
    _, answer = post("jobs", after(first, kind))
    run_to_end(node, first, exit_code)
    assert state_of(answer["job_id"]) == becomes


def test_dependents_are_cancelled_when_they_can_never_start(post, user, tenant):
    first = submit(user, tenant)
    second = post("jobs", after(first))[1]["job_id"]
    third = post("jobs", after(second))[1]["job_id"]
    anyway = post("jobs", after(third, "after_any"))[1]["job_id"]

    job_actions.cancel(first, identity_for(user))

    assert state_of(second) == state_of(third) == ("cancelled", "dependency_failed")
    assert state_of(anyway) == ("pending", "scheduler_behind")
    sentence = explain.current_reason(second, identity_for(user))["sentence"]
    assert sentence == f"can never start: job {first}, after which it was to start if that completed, is cancelled"
    assert Job.objects.get(pk=third).evidence["on"] == second


def test_dependency_stays_open_when_the_other_job_is_requeued(post, user, tenant, node):
    first = submit(user, tenant, max_retries=1)
    _, answer = post("jobs", after(first, "after_any"))
    run_to_end(node, first, exit_code=1)
    assert state_of(first)[0] == "pending"
    assert state_of(answer["job_id"]) == ("pending", "dependency")


def test_held_job_keeps_its_dependencies(post, user, tenant, node):
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


def test_dependency_on_another_tenants_job_is_a_404_like_a_missing_one(post):
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


def test_dependency_on_an_ended_job_is_resolved_at_submit(post, user, tenant, node):
    first = submit(user, tenant)
    run_to_end(node, first)
    status, answer = post("jobs", after(first))
    assert (status, answer["job"]["reason"]["code"]) == (201, "scheduler_behind")
    status, answer = post("jobs", after(first, "after_fail"))
    assert (status, answer["code"], answer["errors"][0]["field"]) == (422, "dependency_failed", "depends_on")


@pytest.mark.parametrize(
    "depends_on", [["ref"], [0], [-1], [2**63], [1, 1], [1, "1"], [{"job": 1, "kind": "after"}], [1.5], "1", [{}]]
)
def test_malformed_dependency_is_a_400(post, depends_on):
    """A55"""
    status, answer = post("jobs", {"command": ["x"], "depends_on": depends_on})
    assert (status, answer["errors"][0]["field"]) in ((400, "depends_on"), (400, "job"))


def test_repeated_submit_returns_the_first_answer_when_the_job_no_longer_waits(post, user, tenant, node):
    """A05"""
    first = submit(user, tenant)
    answer = post("jobs", after(first), **{"Idempotency-Key": "k"})
    run_to_end(node, first, exit_code=1)
    assert post("jobs", after(first), **{"Idempotency-Key": "k"}) == answer


def test_simulation_predicts_the_wait_for_dependencies(post, user, tenant, node):
    first = submit(user, tenant)
    status, answer = post("jobs/simulate", after(first))
    assert (status, answer["starts_now"], answer["reason"]["code"]) == (200, False, "dependency")
    assert answer["sentence"] == f"it would wait for job {first} to end"


# --- workflows ----------------------------------------------------------------------------------------------------


def test_workflow_is_submitted_as_one_bulk(post, user, tenant, node):
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
    assert [item["job"] for item in jobs[train].depends_on] == [prepare, earlier]
    assert [(jobs[item].reason, jobs[item].open_dependencies) for item in (report, train, prepare)] == [
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
def test_invalid_workflow_names_the_field_and_submits_nothing(post, jobs, field, message, query):
    status, answer = post(f"jobs/bulk{query}", {"jobs": [{"command": ["x"], **job} for job in jobs]})
    assert (status, answer["errors"][0]["field"]) in ((400, field), (404, field))
    assert message in answer["errors"][0]["message"]
    assert not Job.objects.exists()


def test_bulk_is_refused_when_it_has_too_many_dependencies(post):
    """A20: one request must not be a transaction of a minute."""
    first = [{"ref": f"j{n}", "command": ["x"]} for n in range(1_000)]
    names = [job["ref"] for job in first]
    dependents = [{"command": ["x"], "depends_on": names} for _ in range(MAX_EDGES // 1_000)]
    too_many = [*first, *dependents, {"command": ["x"], "depends_on": ["j0"]}]
    status, answer = post("jobs/bulk", {"jobs": too_many})
    assert (status, answer["errors"][0]["field"], Job.objects.exists()) == (400, "jobs", False)
    assert "50001 jobs, at most 50000" in answer["errors"][0]["message"]
    assert not bulk_problems(msgspec.convert(too_many[:-1], list[JobRequest]))


def test_long_chain_is_cancelled_by_a_constant_number_of_statements(post, user):
    """A20: in the transaction of the end; each job names the one that it depended on."""
    counts = []
    for length in (3, 2_000):
        chain = [{"ref": "j0", "command": ["x"]}]
        chain += [{"ref": f"j{n}", "command": ["x"], "depends_on": [f"j{n - 1}"]} for n in range(1, length)]
        chain.append({"ref": "at-last", "command": ["x"], "depends_on": [f"after_any:j{length - 1}", "after_ok:j0"]})
        chain.append({"ref": "anyway", "command": ["x"], "depends_on": [f"after_any:j{length - 1}"]})
        ids = post("jobs/bulk", {"jobs": chain})[1]["job_ids"]
        with CaptureQueriesContext(connection) as statements:
            job_actions.cancel(ids[0], identity_for(user))
        counts.append(len(statements))

        *chain_jobs, at_last, anyway = Job.objects.filter(pk__in=ids).order_by("id")
        assert {job.state for job in [*chain_jobs, at_last]} == {"cancelled"}
        assert [job.evidence["on"] for job in chain_jobs[1:]] == ids[: length - 1]
        assert at_last.evidence == {"on": ids[0], "wanted": "completed", "ended": "cancelled"}
        assert (anyway.state, anyway.open_dependencies) == ("pending", 0)
        events = JobEvent.objects.filter(job_id__in=ids, kind="cancelled").values_list("data__on", flat=True)
        assert sorted(events, key=lambda on: on or 0) == [None, ids[0], *ids[: length - 1]]
    assert counts[0] == counts[1]
    assert not Dependency.objects.exists()


def test_cycle_in_finds_only_cycles():
    assert cycle_in({"a": ["b"], "b": ["c"], "c": ["a"]}) == ["a", "b", "c", "a"]
    assert cycle_in({"x": ["a"], "a": ["b"], "b": ["a"]}) == ["a", "b", "a"]
    assert cycle_in({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": ["elsewhere"]}) == []
    assert cycle_in({f"n{i}": [f"n{i + 1}"] for i in range(20_000)}) == []


def test_each_dependency_kind_accepts_its_final_states():
    ends = {kind: {str(state) for state in JobState if is_met(kind, state)} for kind in After}
    bad = {"failed", "cancelled", "preempted"}
    assert ends == {After.OK: {"completed"}, After.FAIL: bad, After.ANY: {"completed", *bad}}


def test_next_step_of_a_waiting_job_is_the_release_of_a_held_one_before_it(user, tenant, identity):
    """A20, also through other jobs: nothing that it waits for would ever happen by itself."""
    root = identity_for(make_user("root", admin=True))
    first = submit(user, tenant)
    middle = submit(user, tenant, depends_on=[first])
    last = submit(user, tenant, depends_on=[submit(user, tenant), middle])

    def next_steps():
        return {explain.current_reason(job, identity)["next_step"] for job in (middle, last)}

    assert next_steps() == {"nothing to do; it becomes eligible then"}
    job_actions.hold(first, identity)
    assert next_steps() == {f"release job {first}, which is held and must end before this one starts"}
    job_actions.hold(first, root)
    assert next_steps() == {f"ask an admin to release job {first}, which is held and must end before this one starts"}
    assert [job["reason"]["evidence"]["held"] for job in representation.select_few([middle, last])] == [first, first]
    job_actions.release(first, root)
    assert next_steps() == {"nothing to do; it becomes eligible then"}


def test_hold_and_release_announce_the_jobs_that_wait_for_the_held_one(user, tenant, identity, monkeypatch):
    """Pages that show them then show the other next step."""
    first = submit(user, tenant)
    middle = submit(user, tenant, depends_on=[first])
    last = submit(user, tenant, depends_on=[middle])
    announced = []
    monkeypatch.setattr(events, "changed", lambda topic, ids=(): announced.append((topic, [*ids])))
    for act in (job_actions.hold, job_actions.release):
        announced.clear()
        act(first, identity)
        assert {job for topic, ids in announced if topic == "jobs" for job in ids} == {first, middle, last}
