"""Time limits that change while a job runs: who may, by how much, what is promised to others, and what agents hear."""

from datetime import datetime, timedelta

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.protocol.agent_messages import Limit
from gpusched.protocol.states import Role
from jobs.models import Job, JobEvent
from nodes.models import Assignment
from scheduling import policy
from scheduling.whatif import extend as extending
from tests.api.calls import call
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def node(user, tenant):
    return make_node(gpus=8)


@pytest.fixture
def running(user, tenant, node):
    """A job of the member's on all 8 GPUs, for an hour at most."""
    job = submit(user, tenant, gpu_count=8, max_runtime_minutes=60)
    run_cycle()
    node.start_all()
    return job


def extend(job, who, query="", **body):
    return call("POST", f"/api/v1/jobs/{job}/extend{query}", make_token(who), body)


def minutes(job):
    limit = Job.objects.get(pk=job).max_runtime_seconds
    return None if limit is None else limit / 60


def test_new_limit_is_sent_until_the_agent_has_it(user, tenant, node, running):
    """A36: each answer says it again, until the agent says that it is in force; an order says the newest."""
    answer = extend(running, user, add_minutes=30).json()
    assert (answer["status"], minutes(running)) == ("changed", 90)
    assert answer["job"]["max_runtime_minutes"] == 90
    [key] = node.held
    for _ in range(2):
        assert node.sync().limits == [Limit(key=key, version=1, max_runtime_seconds=5400)]
    assert node.sync(limits={key: 1}).limits == []
    extend(running, user, max_runtime_minutes=45)
    assert node.sync(limits={key: 1}).limits == [Limit(key=key, version=2, max_runtime_seconds=2700)]


def test_limit_in_force_comes_only_from_the_agent(user, node, running):
    """However often it says so, and whatever else it claims: no version that there is not, and none of before."""
    extend(running, user, add_minutes=30)
    [key] = node.held

    def in_force(limits: dict[str, int]) -> int:
        node.sync(limits=limits)
        return Assignment.objects.get(job_id=running).limit_version

    assert [in_force({}), in_force({"9.9.9": 1}), in_force({key: -5})] == [0, 0, 0]
    assert [in_force({key: 2**70}), in_force({key: 1}), in_force({key: 0}), in_force({})] == [1, 1, 1, 1]


def test_running_job_shows_when_its_limit_ends(user, tenant, node, running):
    def deadline(job):
        read = call("GET", f"/api/v1/jobs/{job}", make_token(user)).json()
        started_at, deadline_at = read["started_at"], read["deadline_at"]
        return deadline_at and (datetime.fromisoformat(deadline_at) - datetime.fromisoformat(started_at)) / MINUTE

    assert deadline(running) == 60
    extend(running, user, add_minutes=30)
    assert deadline(running) == 90
    assert deadline(submit(user, tenant, gpu_count=8, max_runtime_minutes=5)) is None, "it waits"
    unlimited = submit(user, tenant, gpu_count=0)
    run_cycle()
    node.start_all()
    assert (Job.objects.get(pk=unlimited).state, deadline(unlimited)) == ("running", None)
    node.end(*node.held)
    assert deadline(running) is None


def test_pending_job_starts_with_its_new_limit(user, tenant, node, running):
    waiting = submit(user, tenant, gpu_count=8, max_runtime_minutes=10)
    answer = extend(waiting, user, max_runtime_minutes=6000)
    assert (answer.status_code, answer.json()["ends_at"]) == (200, None)
    node.end(*node.held)
    run_cycle()
    [order] = node.sync().assignments
    assert (order.spec.max_runtime_seconds, order.spec.limit_version) == (360_000, 1)


def test_member_extension_is_limited_in_total_and_owners_are_not(user, tenant, running):
    policy.change({"member_extend_minutes": 30}, actor="root")
    assert extend(running, user, add_minutes=20).status_code == 200
    refused = extend(running, user, add_minutes=11)
    assert (refused.status_code, refused.json()["code"]) == (403, "extension_too_long")
    assert refused.json()["detail"] == "members may extend a running job by 30 minutes in all, this one to 90 minutes"
    assert extend(running, user, add_minutes=10).status_code == 200
    assert extend(running, user, add_minutes=-40).status_code == 200, "shorter is always allowed"
    assert extend(running, user, max_runtime_minutes=90).status_code == 200, "and back to what it was"
    assert extend(running, make_member(tenant, Role.OWNER), add_minutes=600).status_code == 200
    policy.change({"member_extend_minutes": 0}, actor="root")
    assert extend(running, user, add_minutes=1).json()["detail"] == "members may not extend running jobs"


def test_other_users_cannot_extend(user, tenant, running):
    """A08"""
    assert extend(running, make_member(tenant), add_minutes=1).status_code == 403
    assert extend(running, make_member(make_tenant("other")), add_minutes=1).status_code == 404
    assert extend(running, make_member(tenant, Role.OWNER), add_minutes=1, force=True).status_code == 403


def test_promise_to_a_pending_job_is_kept_unless_an_admin_forces_it(user, tenant, running):
    """A12: the promised job is named only to viewers who may see it."""
    other = make_tenant("other")
    promised = submit(make_member(other), other, gpu_count=8, max_runtime_minutes=10)
    run_cycle()
    owner, admin = make_member(tenant, Role.OWNER), make_user(admin=True)
    refused = extend(running, owner, add_minutes=60)
    assert (refused.status_code, refused.json()["code"]) == (409, "promised")
    assert refused.json()["detail"].startswith("a job of another tenant is promised a start at ")
    assert f"job {promised} is promised" in extend(running, admin, add_minutes=60).json()["detail"]
    assert extend(running, owner, add_minutes=0.5).status_code == 200, "a moment is no delay"
    assert minutes(running) == 60.5
    answer = extend(running, admin, add_minutes=60, force=True).json()
    assert [delay["job_id"] for delay in answer["delays"]] == [promised]
    assert answer["message"].endswith("; 1 waiting job starts later")
    assert JobEvent.objects.filter(job_id=running, kind="limit_changed").latest("id").data["forced"] is True


def test_admin_can_force_an_extension_with_unknown_effects(user, tenant, running, monkeypatch):
    """A job is not lost because the process that works out what would be cannot run."""

    def unanswered(*asked, **how):
        raise Problem(503, "unanswered", "the answer could not be computed")

    submit(user, tenant, gpu_count=8)
    run_cycle()
    monkeypatch.setattr(extending, "ask", unanswered)
    admin = make_user(admin=True)
    assert extend(running, admin, add_minutes=60).status_code == 503
    assert extend(running, admin, "?dry_run=true", add_minutes=60, force=True).status_code == 503
    assert minutes(running) == 60
    answer = extend(running, admin, add_minutes=60, force=True)
    assert (answer.status_code, minutes(running)) == (200, 120)
    assert answer.json()["message"].endswith("; the delays of other jobs could not be computed")
    assert JobEvent.objects.filter(job_id=running, kind="limit_changed").latest("id").data["forced"] is True


@pytest.mark.parametrize("is_own", [True, False])
def test_delay_that_breaks_no_promise_is_reported(user, tenant, node, is_own):
    """Two wait for the ends of two; the second one's place is not promised to any job. Of other tenants only how many."""
    jobs = [submit(user, tenant, gpu_count=4, max_runtime_minutes=limit) for limit in (60, 120)]
    run_cycle()
    node.start_all()
    whose = tenant if is_own else make_tenant("other")
    who = user if is_own else make_member(whose)
    _, second = [submit(who, whose, gpu_count=4, max_runtime_minutes=600) for _ in range(2)]
    run_cycle()
    dry = extend(jobs[1], make_user(admin=True), "?dry_run=true", add_minutes=60).json()
    assert (dry["status"], minutes(jobs[1])) == ("would_be_changed", 120)
    assert [delay["job_id"] for delay in dry["delays"]] == [second]
    answer = extend(jobs[1], user, add_minutes=60).json()
    assert (answer["status"], minutes(jobs[1])) == ("changed", 180)
    assert ([delay["job_id"] for delay in answer["delays"]], answer["others_delayed"]) == (
        ([second], 0) if is_own else ([], 1)
    )


def test_wrong_values_are_named(user, tenant, running):
    """A55"""
    Job.objects.filter(pk=running).update(started_at="2020-01-01T00:00:00Z")
    wrong: list[dict[str, object]] = [{}, {"add_minutes": 1, "max_runtime_minutes": 1}, {"max_runtime_minutes": 70}, {"add_minutes": -60},
             {"max_runtime_minutes": 1e9}, {"max_runtime_minutes": "70"}, {"add_minutes": True}, {"until": 1}]  # fmt: skip
    for body in wrong:
        answer = extend(running, user, **body)
        assert (answer.status_code, len(answer.json()["errors"])) == (400, 1), body
    assert "has run for" in extend(running, user, max_runtime_minutes=70).json()["detail"]
    unlimited = submit(user, tenant)
    assert "no time limit to extend" in extend(unlimited, user, add_minutes=5).json()["detail"]
    call("POST", f"/api/v1/jobs/{running}/cancel", make_token(user))
    assert extend(running, user, add_minutes=1).json()["code"] == "wrong_state"
    assert JobEvent.objects.filter(kind="limit_changed").count() == 0


def test_repeated_request_with_the_same_key_adds_once(user, tenant, running):
    """A03"""
    headers = {"Authorization": f"Bearer {make_token(user)}", "Idempotency-Key": "k"}
    from django.test import Client

    for _ in range(2):
        path = f"/api/v1/jobs/{running}/extend"
        assert Client().post(path, '{"add_minutes": 10}', content_type="application/json", headers=headers).json()
    assert minutes(running) == 70


def test_change_is_recorded_with_its_actor(user, tenant, running):
    extend(running, user, add_minutes=10)
    [event] = JobEvent.objects.filter(job_id=running, kind="limit_changed")
    assert (event.actor, event.attempt) == (user.username, 1)
    assert event.data == {"from_seconds": 3600, "to_seconds": 4200}
