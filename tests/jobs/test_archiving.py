"""An archived tenant accepts no jobs, has no guarantee, is omitted from lists, and keeps its history."""

import pytest
from django.test import Client

from gpusched.lib.api.problems import Problem
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.states import Role
from jobs.models import Job, JobEvent
from jobs.submit import bulk
from jobs.submit.submit import submit as submit_request
from scheduling.cycle import tenants
from scheduling.engine.model import Policy
from tests.api.calls import call
from tests.factories import identity_for, make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def nlp():
    return make_tenant("nlp", quota={"guaranteed_gpus": 4, "max_gpus": 8})


@pytest.fixture
def member(nlp):
    return make_member(nlp, name="ada")


@pytest.fixture
def admin():
    return make_token(make_user("root", admin=True))


def archive(admin, query="", **body):
    return call("POST", f"/api/v1/tenants/nlp/archive{query}", admin, body)


def refused(answer):
    return answer.status_code, answer.json()["code"]


class TestNewJobs:
    @pytest.mark.parametrize("path", ["jobs", "jobs/simulate", "jobs?dry_run=true", "jobs/bulk"])
    def test_submit_is_refused_with_the_next_step(self, member, admin, path):
        assert archive(admin).status_code == 200
        job = {"tenant": "nlp", "command": ["x"]}
        body = {"jobs": [job]} if path == "jobs/bulk" else job
        for token in (make_token(member), admin):
            answer = call("POST", f"/api/v1/{path}", token, body)
            assert refused(answer) == (409, "tenant_archived")
            assert "unarchive" in answer.json()["next_step"]
        assert not Job.objects.exists()

    def test_stranger_learns_nothing(self, nlp, admin):
        """A08"""
        archive(admin)
        stranger = make_token(make_member(make_tenant("other")))
        for name in ("nlp", "nothing"):
            answer = call("POST", "/api/v1/jobs", stranger, {"tenant": name, "command": ["x"]})
            assert answer.status_code == 404

    def test_submit_without_a_tenant_uses_the_only_open_one(self, nlp, member, admin):
        from tenants.tenancy.tenants import set_member

        set_member(make_tenant("other"), member, Role.MEMBER)
        token = make_token(member)
        assert call("POST", "/api/v1/jobs", token, {"command": ["x"]}).status_code == 400
        archive(admin)
        assert call("POST", "/api/v1/jobs", token, {"command": ["x"]}).json()["job"]["tenant"] == "other"

    def test_ended_job_is_not_retried(self, nlp, member, admin):
        job = submit(member, nlp)
        archive(admin, cancel_jobs=True)
        assert refused(call("POST", f"/api/v1/jobs/{job}/retry", make_token(member))) == (409, "tenant_archived")

    def test_submit_is_refused_when_the_tenant_is_archived_meanwhile(self, nlp, member, admin, monkeypatch):
        """The INSERT checks again, because the check of the request may be outdated."""
        caller = identity_for(member)
        archive(admin)
        from jobs.submit import job_row

        monkeypatch.setattr(job_row, "_tenant_named", lambda name, identity: (nlp.pk, False))
        request = JobRequest(tenant="nlp", command=["x"])
        for work in (
            lambda: submit_request(request, caller),
            lambda: submit_request(request, caller, "key", b"{}"),
            lambda: bulk.submit_all([request], caller),
        ):
            with pytest.raises(Problem) as problem:
                work()
            assert problem.value.code == "tenant_archived"
        assert not Job.objects.exists()

    def test_repeated_submit_returns_the_first_answer_when_the_tenant_is_archived(self, member, admin):
        """A03"""
        headers = {"Authorization": f"Bearer {make_token(member)}", "Idempotency-Key": "k1"}

        def post():
            body = b'{"tenant": "nlp", "command": ["x"]}'
            return Client().post("/api/v1/jobs", body, content_type="application/json", headers=headers)

        first = post()
        archive(admin, cancel_jobs=True)
        assert (post().content, Job.objects.count()) == (first.content, 1)


class TestUnfinishedJobs:
    def test_archiving_is_refused_with_the_number_of_unfinished_jobs(self, nlp, member, admin):
        node = make_node(gpus=1)
        for _ in range(3):
            submit(member, nlp)
        run_cycle()
        node.start_all()
        answer = archive(admin)
        assert refused(answer) == (409, "tenant_has_jobs")
        assert "2 jobs that wait and 1 job that run" in answer.json()["detail"]
        assert "cancel_jobs" in answer.json()["next_step"]
        assert call("GET", "/api/v1/tenants/nlp", admin).json()["archived_at"] is None

    def test_cancel_jobs_cancels_all_unfinished_jobs(self, nlp, member, admin):
        node = make_node(gpus=2)
        running, array = submit(member, nlp), submit(member, nlp, array=ArrayRequest(count=3, max_parallel=1))
        run_cycle()
        node.start_all()
        pending, held_job, later = (
            submit(member, nlp),
            submit(member, nlp),
            submit(member, nlp, not_before="2099-01-01"),
        )
        call("POST", f"/api/v1/jobs/{held_job}/hold", admin)
        other = make_tenant("other")
        foreign = submit(make_member(other), other)
        answer = archive(admin, cancel_jobs=True).json()
        assert (answer["cancelled_jobs"], answer["stopping_jobs"]) == (3, 2)
        states = dict(Job.objects.values_list("id", "state"))
        assert [states[job] for job in (pending, held_job, later, running, foreign)] == [
            "cancelled", "cancelled", "cancelled", "stopping", "pending",
        ]  # fmt: skip
        assert not Job.objects.filter(tenant=nlp, state__in=("pending", "held", "scheduled", "running")).exists()
        node.end(*node.held, reason="cancelled", exit_code=None)
        run_cycle()
        assert set(Job.objects.filter(tenant=nlp).values_list("state", flat=True)) == {"cancelled"}
        assert Job.objects.get(pk=array).state == "cancelled"

    def test_events_record_the_actor_and_the_channel(self, nlp, member, admin):
        job = submit(member, nlp)
        archive(admin, cancel_jobs=True)
        event = JobEvent.objects.get(job_id=job, kind="cancelled")
        assert (event.actor, event.via) == ("root", f"token {admin.split('.')[0]}")

    def test_dry_run_cancels_nothing(self, nlp, member, admin):
        job = submit(member, nlp)
        assert archive(admin, "?dry_run=true", cancel_jobs=True).json()["cancelled_jobs"] == 1
        assert Job.objects.get(pk=job).state == "pending"
        assert call("GET", "/api/v1/tenants/nlp", admin).json()["archived_at"] is None

    def test_repeated_archiving_is_harmless(self, nlp, admin):
        first, second = (archive(admin).json() for _ in range(2))
        assert first["archived_at"] == second["archived_at"] is not None


class TestGuarantee:
    def test_engine_ignores_the_guarantee_of_an_archived_tenant(self, nlp, admin):
        def guaranteed():
            return {tenant.name: tenant.guaranteed_gpus for tenant in tenants.load_tenants(Policy())}

        assert guaranteed() == {"nlp": 4}
        archive(admin)
        assert guaranteed() == {"nlp": 0}
        assert call("GET", "/api/v1/tenants/nlp/quota", admin).json()["guaranteed_gpus"] == 4
        call("POST", "/api/v1/tenants/nlp/unarchive", admin)
        assert guaranteed() == {"nlp": 4}

    def test_quota_preview_ignores_the_guarantee_of_an_archived_tenant(self, nlp, admin):
        """Otherwise the sum of all guarantees would exceed the capacity."""
        make_node(gpus=4)
        make_tenant("other", quota={"guaranteed_gpus": 4})
        archive(admin)
        body = {"guaranteed_gpus": 3}
        answer = call("PUT", "/api/v1/tenants/nlp/quota?dry_run=true", admin, body).json()
        assert not any("guarantees of all tenants" in sentence for sentence in answer["effect"]["sentences"])


class TestLists:
    def test_lists_omit_archived_tenants_by_default(self, nlp, member, admin):
        make_tenant("other")
        archive(admin)
        assert [item["name"] for item in call("GET", "/api/v1/tenants", admin).json()["items"]] == ["other"]
        everyone = call("GET", "/api/v1/tenants?archived=true", admin).json()["items"]
        assert [(item["name"], item["archived_at"] is None) for item in everyone] == [("nlp", False), ("other", True)]
        shares = call("GET", "/api/v1/scheduling/shares", admin).json()["items"]
        assert [item["tenant"] for item in shares] == ["other"]
        assert 'tenant="nlp"' not in call("GET", "/metrics", admin).content.decode()
        assert call("GET", "/api/v1/me", make_token(member)).json()["tenants"] == []

    def test_member_sees_own_archived_tenants_only(self, nlp, member, admin):
        make_tenant("other")
        archive(admin)
        items = call("GET", "/api/v1/tenants?archived=true", make_token(member)).json()["items"]
        assert [item["name"] for item in items] == ["nlp"]

    def test_history_and_use_stay_readable(self, nlp, member, admin):
        node = make_node(gpus=1)
        job = submit(member, nlp)
        run_cycle()
        node.end(*node.start_all())
        archive(admin)
        token = make_token(member)
        for path in ("tenants/nlp", "tenants/nlp/usage", "tenants/nlp/members", f"jobs/{job}", "jobs?tenant=nlp"):
            assert call("GET", f"/api/v1/{path}", token).status_code == 200
        assert call("GET", "/api/v1/tenants/nlp/usage", token).json()["total"]["jobs"] == 1

    def test_pages_mark_archived_tenants(self, nlp, member, admin):
        archive(admin)
        browser = Client()
        browser.force_login(member)
        assert 'href="/tenants/nlp/"' not in browser.get("/tenants/").content.decode()
        assert "Show archived (1)" in browser.get("/tenants/").content.decode()
        everyone = browser.get("/tenants/?archived=true").content.decode()
        assert 'href="/tenants/nlp/"' in everyone and "archived</span>" in everyone
        assert "accepts no jobs" in browser.get("/tenants/nlp/").content.decode()
        for page in ("/", "/mine/", "/submit/", "/usage/?tenant=nlp"):
            assert browser.get(page, follow=True).status_code == 200, page


def test_restored_tenant_submits_again(nlp, member, admin):
    archive(admin)
    assert call("POST", "/api/v1/tenants/nlp/unarchive", admin).json()["archived_at"] is None
    assert call("POST", "/api/v1/jobs", make_token(member), {"command": ["x"]}).status_code == 201
    assert call("POST", "/api/v1/tenants/nlp/unarchive", admin).status_code == 200
