"""Limits on queued and deferred jobs: no user and no tenant can close the queue to others (A61)."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.states import JobState
from jobs.actions import job_actions
from jobs.models import Job
from jobs.submit import queue_limits
from jobs.submit.queue_limits import Incoming, Load
from jobs.submit.submit import simulate
from tenants.tenancy.tenants import change_quota
from tests.factories import identity_for, make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db
FAR = "2099-01-01T00:00:00Z"


@pytest.fixture
def limit(settings, monkeypatch):
    """Set limits by name; the total is counted at each submit."""
    monkeypatch.setattr(queue_limits, "_CACHE_SECONDS", 0.0)
    monkeypatch.setattr(queue_limits, "_PAUSE_PER_SECOND", 0.0)

    def set_limits(**limits):
        settings.ENV = replace(settings.ENV, **limits)

    return set_limits


def refused(user, tenant, **fields):
    with pytest.raises(Problem) as caught:
        submit(user, tenant, **fields)
    return caught.value


def fill(user, tenant, jobs, **fields):
    return [submit(user, tenant, **fields) for _ in range(jobs)]


class TestAnotherTenant:
    """A61."""

    def test_held_jobs_of_one_tenant_leave_the_queue_open_to_others(self, limit, user, tenant, identity):
        limit(max_queue_size=4, max_deferred_jobs=4, max_deferred_jobs_per_user=100, max_deferred_jobs_per_tenant=100)
        other = make_tenant("vision")
        for job_id in fill(user, tenant, 2):
            job_actions.hold(job_id, identity)
        fill(user, tenant, 2)
        fill(make_member(other), other, 2)

    def test_far_future_jobs_of_one_tenant_leave_the_queue_open_to_others(self, limit, user, tenant):
        limit(max_queue_size=4, max_deferred_jobs=4, max_deferred_jobs_per_user=100, max_deferred_jobs_per_tenant=100)
        other = make_tenant("vision")
        fill(user, tenant, 4, not_before=FAR)
        assert refused(user, tenant, not_before=FAR).code == "queue_full"
        fill(make_member(other), other, 2)
        fill(make_member(other), other, 2, not_before=FAR)

    def test_archived_tenant_has_no_share_of_the_queue(self, limit, user, tenant):
        limit(max_queue_size=6)
        make_tenant("gone", archived_at=timezone.now())
        other = make_tenant("vision")
        fill(user, tenant, 6)
        fill(make_member(other), other, 3)
        assert refused(make_member(other), other).code == "queue_full"

    def test_queued_jobs_of_one_tenant_leave_an_equal_share_to_each_other_tenant(self, limit, user, tenant):
        limit(max_queue_size=6)
        other_tenants = [make_tenant("vision"), make_tenant("speech")]
        fill(user, tenant, 6)
        problem = refused(user, tenant)
        assert (problem.status, problem.code) == (429, "queue_full")
        assert "all tenants together have 6 queued jobs, and at most 6 are allowed" in problem.detail
        for other in other_tenants:
            member = make_member(other)
            fill(member, other, 2)
            assert refused(member, other).code == "queue_full"

    def test_defaults_keep_one_tenant_below_the_total(self, settings):
        env = settings.ENV
        assert env.max_queued_jobs_per_user < env.max_queued_jobs_per_tenant < env.max_queue_size
        assert env.max_deferred_jobs_per_user < env.max_deferred_jobs_per_tenant < env.max_deferred_jobs


class TestHardLimits:
    def test_user_at_the_limit_is_refused_and_another_user_is_not(self, limit, user, tenant):
        limit(max_queued_jobs_per_user=2)
        fill(user, tenant, 2)
        problem = refused(user, tenant)
        assert (problem.status, problem.code, problem.retry_after) == (429, "too_many_queued_jobs", 30)
        assert problem.detail == (
            "ada in tenant nlp has 2 queued jobs; at most 2 are allowed (GPUSCHED_MAX_QUEUED_JOBS_PER_USER)"
        )
        assert "cancel some" in problem.next_step
        submit(make_member(tenant), tenant)

    def test_tenant_at_the_limit_is_refused(self, limit, user, tenant):
        limit(max_queued_jobs_per_tenant=2)
        fill(user, tenant, 2)
        problem = refused(make_member(tenant), tenant)
        assert problem.code == "too_many_queued_jobs"
        assert problem.detail.startswith("tenant nlp has 2 queued jobs; at most 2 are allowed")

    def test_quota_of_a_tenant_replaces_the_limit_of_the_server(self, limit, user, tenant):
        limit(max_queued_jobs_per_tenant=2, max_deferred_jobs_per_tenant=1)
        change_quota(tenant.pk, {"max_queued_jobs": 3, "max_deferred_jobs": 0}, actor="test")
        fill(user, tenant, 3)
        assert refused(user, tenant).code == "too_many_queued_jobs"
        assert refused(user, tenant, not_before=FAR).code == "too_many_deferred_jobs"

    def test_deferred_jobs_count_against_their_own_limit(self, limit, user, tenant):
        limit(max_queued_jobs_per_user=2, max_deferred_jobs_per_user=2)
        [first] = fill(user, tenant, 1)
        submit(user, tenant, not_before=FAR)
        submit(user, tenant, depends_on=[first])
        problem = refused(user, tenant, not_before=FAR)
        assert problem.code == "too_many_deferred_jobs"
        assert "ada in tenant nlp has 2 deferred jobs (held, before their not_before" in problem.detail
        submit(user, tenant)
        assert refused(user, tenant).code == "too_many_queued_jobs"

    def test_job_whose_time_has_come_counts_as_queued(self, limit, user, tenant):
        limit(max_queued_jobs_per_user=1)
        job_id = submit(user, tenant, not_before=FAR)
        Job.objects.filter(pk=job_id).update(not_before=timezone.now() - timedelta(seconds=1))
        assert refused(user, tenant).code == "too_many_queued_jobs"

    def test_running_job_makes_room(self, limit, user, tenant):
        limit(max_queued_jobs_per_user=1)
        make_node(gpus=2)
        submit(user, tenant)
        run_cycle()
        submit(user, tenant)

    def test_cancelled_job_makes_room_at_once(self, limit, user, tenant, identity):
        limit(max_queue_size=1, max_queued_jobs_per_user=1)
        [job_id] = fill(user, tenant, 1)
        job_actions.cancel(job_id, identity)
        submit(user, tenant)

    def test_array_counts_as_one_job(self, limit, user, tenant):
        limit(max_queued_jobs_per_user=2)
        submit(user, tenant, array=ArrayRequest(count=1000))
        submit(user, tenant)
        assert refused(user, tenant).code == "too_many_queued_jobs"

    def test_started_array_counts_while_elements_wait(self, limit, user, tenant):
        limit(max_queued_jobs_per_user=1)
        make_node(gpus=1)
        array = submit(user, tenant, array=ArrayRequest(count=2))
        run_cycle()
        assert Job.objects.get(pk=array).state == JobState.RUNNING
        assert refused(user, tenant).code == "too_many_queued_jobs"

    def test_simulation_is_refused_like_the_submit(self, limit, user, tenant, identity):
        limit(max_queued_jobs_per_user=1)
        fill(user, tenant, 1)
        with pytest.raises(Problem, match="at most 1 are allowed"):
            simulate(JobRequest(tenant="nlp", command=["x"], gpu_count=1), identity)


class TestHoldAndRelease:
    def test_release_is_refused_when_the_queue_of_the_user_is_full(self, limit, user, tenant, identity):
        limit(max_queued_jobs_per_user=1)
        [held_job] = fill(user, tenant, 1)
        job_actions.hold(held_job, identity)
        [queued] = fill(user, tenant, 1)
        with pytest.raises(Problem) as caught:
            job_actions.release(held_job, identity)
        assert caught.value.code == "too_many_queued_jobs"
        job_actions.cancel(queued, identity)
        job_actions.release(held_job, identity)

    def test_hold_is_refused_when_the_user_holds_too_many(self, limit, user, tenant, identity):
        limit(max_deferred_jobs_per_user=1)
        first, second = fill(user, tenant, 2)
        job_actions.hold(first, identity)
        with pytest.raises(Problem) as caught:
            job_actions.hold(second, identity)
        assert caught.value.code == "too_many_deferred_jobs"
        assert Job.objects.get(pk=second).state == JobState.PENDING

    def test_held_job_that_cannot_start_yet_is_released_whatever_is_queued(self, limit, user, tenant, identity):
        limit(max_queued_jobs_per_user=1)
        held_job = submit(user, tenant, not_before=FAR)
        job_actions.hold(held_job, identity)
        fill(user, tenant, 1)
        job_actions.release(held_job, identity)

    def test_admin_can_hold_and_release_whatever_is_queued(self, limit, user, tenant):
        limit(max_queued_jobs_per_user=1, max_deferred_jobs_per_user=1)
        admin = identity_for(make_user("root", admin=True))
        submit(user, tenant, not_before=FAR)
        [held_job] = fill(user, tenant, 1)
        job_actions.hold(held_job, admin)
        fill(user, tenant, 1)
        job_actions.release(held_job, admin)

    def test_retry_is_refused_when_the_queue_of_the_user_is_full(self, limit, user, tenant, identity):
        limit(max_queued_jobs_per_user=1)
        [ended] = fill(user, tenant, 1)
        job_actions.cancel(ended, identity)
        fill(user, tenant, 1)
        with pytest.raises(Problem) as caught:
            job_actions.retry(ended, identity)
        assert caught.value.code == "too_many_queued_jobs"

    def test_hold_of_a_job_that_has_ended_is_a_wrong_state_when_the_queue_is_full(self, limit, user, tenant, identity):
        limit(max_deferred_jobs_per_user=1)
        first, second = fill(user, tenant, 2)
        job_actions.hold(first, identity)
        job_actions.cancel(second, identity)
        with pytest.raises(Problem) as caught:
            job_actions.hold(second, identity)
        assert (caught.value.status, caught.value.code) == (409, "wrong_state")

    @pytest.mark.parametrize("fields", [{}, {"array": ArrayRequest(count=2)}])
    def test_retry_of_a_waiting_job_is_a_wrong_state_when_the_queue_is_full(
        self, limit, user, tenant, identity, fields
    ):
        limit(max_queued_jobs_per_user=1)
        job_id = submit(user, tenant, **fields)
        with pytest.raises(Problem) as caught:
            job_actions.retry(job_id, identity)
        assert (caught.value.status, caught.value.code) == (409, "wrong_state")

    def test_release_of_a_job_that_an_admin_holds_is_forbidden_when_the_queue_is_full(
        self, limit, user, tenant, identity
    ):
        limit(max_queued_jobs_per_user=1)
        [held_job] = fill(user, tenant, 1)
        job_actions.hold(held_job, identity_for(make_user("root", admin=True)))
        fill(user, tenant, 1)
        with pytest.raises(Problem) as caught:
            job_actions.release(held_job, identity)
        assert caught.value.status == 403

    def test_retry_of_an_element_of_a_waiting_array_is_accepted_at_the_limit(self, limit, user, tenant, identity):
        limit(max_queued_jobs_per_user=1)
        node = make_node(gpus=1)
        array = submit(user, tenant, array=ArrayRequest(count=3))
        run_cycle()
        [key] = node.start_all()
        node.end(key, exit_code=3)
        assert "1 element" in job_actions.retry(array, identity)

    def test_refused_retry_changes_nothing(self, limit, user, tenant, identity):
        limit(max_queued_jobs_per_user=1)
        [ended] = fill(user, tenant, 1)
        job_actions.cancel(ended, identity)
        fill(user, tenant, 1)
        with pytest.raises(Problem):
            job_actions.retry(ended, identity)
        assert Job.objects.get(pk=ended).state == JobState.CANCELLED


class TestBulk:
    def post(self, user, jobs):
        return Client().post(
            "/api/v1/jobs/bulk", json.dumps({"jobs": jobs}), content_type="application/json",
            headers={"authorization": f"Bearer {make_token(user)}"},
        )  # fmt: skip

    def test_bulk_that_exceeds_a_limit_submits_nothing(self, limit, user, tenant):
        limit(max_queued_jobs_per_user=3)
        fill(user, tenant, 1)
        answer = self.post(user, [{"command": ["x"]}] * 3)
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_queued_jobs")
        assert answer.headers["Retry-After"] == "30"
        assert "has 1 queued job, and 3 more are requested; at most 3 are allowed" in answer.json()["detail"]
        assert Job.objects.count() == 1
        assert self.post(user, [{"command": ["x"]}] * 2).status_code == 201

    def test_jobs_of_a_bulk_that_wait_for_each_other_count_as_deferred(self, limit, user, tenant):
        limit(max_queued_jobs_per_user=1, max_deferred_jobs_per_user=2)
        chain = [{"command": ["x"], "ref": "a"}, {"command": ["x"], "ref": "b", "depends_on": ["a"]},
                 {"command": ["x"], "depends_on": ["b"]}]  # fmt: skip
        assert self.post(user, chain).status_code == 201


class TestWarning:
    def post(self, user):
        return Client().post(
            "/api/v1/jobs", json.dumps({"command": ["x"]}), content_type="application/json",
            headers={"authorization": f"Bearer {make_token(user)}"},
        )  # fmt: skip

    def test_submit_near_the_limit_returns_a_warning(self, limit, user, tenant):
        limit(max_queued_jobs_per_user=5, queue_warning_percent=80)
        answers = [self.post(user) for _ in range(4)]
        assert "Queue-Warning" not in answers[2].headers
        assert answers[3].headers["Queue-Warning"] == "queued-per-user;used=4;limit=5"

    def test_submit_far_from_the_limit_returns_no_warning(self, user, tenant):
        assert "Queue-Warning" not in self.post(user).headers


def test_submit_far_from_its_limits_counts_no_more_than_once_a_second(user, tenant, django_assert_max_num_queries):
    submit(user, tenant)
    with django_assert_max_num_queries(4):
        submit(user, tenant)


class TestUsage:
    def get(self, user):
        answer = Client().get("/api/v1/queue/usage", headers={"authorization": f"Bearer {make_token(user)}"})
        return answer.json()["items"]

    def test_admin_sees_queue_usage_of_all_tenants(self, user, tenant, identity, limit):
        limit(max_queued_jobs_per_user=7)
        change_quota(tenant.pk, {"max_queued_jobs": 9}, actor="test")
        fill(user, tenant, 2)
        fill(user, tenant, 1, not_before=FAR)
        other = make_tenant("vision")
        fill(make_member(other, name="bob"), other, 1)
        first, second = self.get(make_user("root", admin=True))
        assert (first["tenant"], first["queued_jobs"], first["deferred_jobs"]) == ("nlp", 2, 1)
        assert (first["max_queued_jobs"], first["max_queued_jobs_per_user"]) == (9, 7)
        assert first["users"] == [{"user": "ada", "queued_jobs": 2, "deferred_jobs": 1}]
        assert second["users"] == [{"user": "bob", "queued_jobs": 1, "deferred_jobs": 0}]

    def test_member_sees_own_tenants_only(self, user, tenant):
        other = make_tenant("vision")
        fill(make_member(other), other, 1)
        fill(user, tenant, 1)
        assert [row["tenant"] for row in self.get(user)] == ["nlp"]

    def test_queue_page_shows_usage_to_admins_only(self, client, user, tenant):
        fill(user, tenant, 2)
        client.force_login(user)
        assert "Queued jobs by tenant and owner" not in client.get("/queue/").content.decode()
        client.force_login(make_user("root", admin=True))
        page = client.get("/queue/").content.decode()
        assert "Queued jobs by tenant and owner" in page
        assert ">50,000<" in page


def test_warning_is_a_sentence_on_the_page():
    assert queue_limits.sentence("queued-per-user;used=4;limit=5, deferred-per-tenant;used=8;limit=9") == (
        "you have 4 of at most 5 queued jobs; your tenant has 8 of at most 9 deferred jobs: beyond that, submits are refused"
    )


@pytest.fixture
def busy_threads():
    """Threads alternate far more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_counts_are_whole_while_other_threads_add_to_them(busy_threads):
    """Adding in place failed readers with "dictionary changed size during iteration"."""
    users, turns = range(1, 3), 1_000
    queue_limits._counts.put(7, replace(queue_limits._NO_COUNT, by_user={}))

    def add(user):
        for turn in range(turns):
            queue_limits.add(Incoming(7, user * turns + turn, Load(1, 0)))

    def read():
        totals = [queue_limits._counts.last(7, queue_limits._NO_COUNT).total().queued for _ in range(turns)]
        assert totals == sorted(totals)

    with ThreadPoolExecutor(4) as pool:
        for future in [*(pool.submit(add, user) for user in users), pool.submit(read), pool.submit(read)]:
            future.result(60)
    assert queue_limits._counts.last(7, queue_limits._NO_COUNT).total() == Load(len(users) * turns, 0)
