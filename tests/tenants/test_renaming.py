"""A renamed tenant is the same tenant: jobs, ledger, tokens and history stay, and the old name finds nothing."""

from dataclasses import replace
from decimal import Decimal

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError
from django.test import Client

from frontend.pages.tenants import details
from gpusched.lib.api.problems import Problem
from gpusched.lib.audit import log
from gpusched.protocol.states import Role
from jobs.models import Job
from tenants.billing import rates
from tenants.models import Membership, Tenant, UsageEntry
from tenants.people import users
from tenants.tenancy import rename as renaming
from tenants.tenancy import tenants
from tests.api.calls import call
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def nlp():
    return make_tenant("nlp")


def rename(admin, name="language", old="nlp"):
    return call("POST", f"/api/v1/tenants/{old}/rename", admin, {"name": name})


def test_id_stays_and_the_old_name_is_unknown(nlp, admin):
    assert (rename(admin).json()["id"], rename(admin).status_code) == (nlp.pk, 404)
    for path in ("tenants/nlp", "tenants/nlp/quota", "tenants/nlp/usage", "jobs?tenant=nlp"):
        assert call("GET", f"/api/v1/{path}", admin).status_code == 404
    assert call("GET", "/api/v1/tenants/language", admin).json()["name"] == "language"


def test_members_tokens_and_jobs_continue(nlp, admin):
    member = make_member(nlp, Role.OWNER)
    token, limited = make_token(member), make_token(member, tenant=nlp)
    job = submit(member, nlp)
    call("PUT", "/api/v1/tenants/nlp/secrets/wandb", token, {"value": "x"})
    rename(admin)
    assert call("GET", f"/api/v1/jobs/{job}", token).json()["tenant"] == "language"
    assert call("POST", "/api/v1/jobs", limited, {"command": ["x"], "secrets": ["wandb"]}).status_code == 201
    assert call("POST", "/api/v1/jobs", token, {"command": ["x"], "tenant": "nlp"}).status_code == 404


def test_ledger_reads_under_the_new_name(nlp, admin):
    node = make_node(gpus=1)
    submit(make_member(nlp), nlp)
    run_cycle()
    node.end(*node.start_all())
    rename(admin)
    assert UsageEntry.objects.get().tenant.name == "language"
    assert call("GET", "/api/v1/tenants/language/usage", admin).json()["total"]["jobs"] == 1


def test_service_accounts_are_renamed(nlp, admin):
    """Another tenant that takes the old name must not get them."""
    token = call("POST", "/api/v1/tenants/nlp/service-tokens", admin, {"name": "ci"}).json()["token"]
    rename(admin)
    assert call("GET", "/api/v1/me", token).json()["user"] == "ci@language"
    make_tenant("nlp")
    call("POST", "/api/v1/tenants/nlp/service-tokens", admin, {"name": "ci"})
    assert User.objects.filter(username__startswith="ci@").count() == 2
    assert call("GET", "/api/v1/tenants", token).json()["items"][0]["name"] == "language"


def test_user_with_the_name_of_a_service_account_blocks_the_rename(nlp, admin):
    call("POST", "/api/v1/tenants/nlp/service-tokens", admin, {"name": "ci"})
    make_user("ci@language")
    answer = rename(admin)
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")
    assert Tenant.objects.get().name == "nlp"


@pytest.mark.parametrize("name", ["", "NLP", "a b", "-a", "a" * 64, "a\x00", "../x", "a\n"])
def test_bad_name_is_rejected(nlp, admin, name):
    answer = rename(admin, name)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "name")


def test_taken_name_is_rejected(nlp, admin):
    make_tenant("language")
    assert (rename(admin).status_code, rename(admin, "nlp").status_code) == (409, 200)


def test_name_in_the_login_settings_is_not_changed(nlp, admin, monkeypatch):
    """Groups would decide on its members no more, and who has left would stay one."""
    monkeypatch.setattr(settings, "ENV", replace(settings.ENV, oidc_groups="ml=nlp:member"))
    assert rename(admin).json()["code"] == "named_in_settings"
    monkeypatch.setattr(settings, "ENV", replace(settings.ENV, oidc_groups="ml=language:member"))
    assert rename(admin).status_code == 200


def test_submit_repeated_after_the_rename_gets_the_first_answer(nlp, admin):
    """A03: a client whose answer was lost must not learn that nothing was submitted."""
    token = make_token(make_member(nlp))

    def post(body):
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "k1"}
        return Client().post("/api/v1/jobs", body, content_type="application/json", headers=headers)

    body = b'{"tenant": "nlp", "command": ["x"]}'
    first = post(body).json()["job_id"]
    rename(admin)
    repeated = post(body)
    assert (repeated.json()["job_id"], repeated["Idempotent-Replay"], Job.objects.count()) == (first, "true", 1)
    assert post(b'{"tenant": "nlp", "command": ["y"]}').status_code == 404


@pytest.mark.django_db(transaction=True)
def test_history_reads_under_each_name_and_not_under_another_tenants(admin):
    """The audit names things as they were called; another tenant may have the name by now."""
    nlp = make_tenant("nlp")
    call("PUT", "/api/v1/tenants/nlp/quota", admin, {"max_gpus": 4})
    rename(admin)
    call("PUT", "/api/v1/tenants/language/quota", admin, {"max_gpus": 5})
    other = make_tenant("nlp")
    call("PUT", "/api/v1/tenants/nlp/quota", admin, {"max_gpus": 6})

    def limits(tenant):
        return [after for edit in details.edits(tenant.pk) for name, _, after in edit["changes"] if name == "max_gpus"]

    assert (limits(nlp), limits(other)) == ([5, 4], [6])
    assert [edit["action"] for edit in details.edits(nlp.pk)] == [
        "quota.change", "tenant.rename", "quota.change", "tenant.create",
    ]  # fmt: skip
    first = details.edits(nlp.pk)[2]["id"]
    assert details.quota_before(nlp.pk, str(first)) is not None
    assert details.quota_before(other.pk, str(first)) is None


def test_repeated_key_gets_the_first_answer(nlp, admin):
    """A03"""
    headers = {"Authorization": f"Bearer {admin}", "Idempotency-Key": "k1"}
    answers = [
        Client().post(
            "/api/v1/tenants/nlp/rename", b'{"name": "language"}', content_type="application/json", headers=headers
        )
        for _ in range(2)
    ]
    assert answers[0].status_code == 200 and answers[0].content == answers[1].content


class TestConstraints:
    """If two concurrent edits pass the checks, PostgreSQL rejects the second one."""

    @pytest.fixture
    def who(self, nlp):
        return make_member(nlp)

    def test_name_taken_meanwhile_is_reported_as_taken(self, nlp, monkeypatch):
        make_tenant("language")
        monkeypatch.setattr(tenants, "check", lambda row: None)
        with pytest.raises(Problem) as caught:
            renaming.rename(nlp, "language", actor="root")
        assert caught.value.code == "name_taken"

    @pytest.mark.parametrize(
        "work",
        [
            lambda tenant: renaming.rename(tenant, "language", actor="root"),
            lambda _: tenants.create_tenant({"name": "vision"}, actor="root"),
            lambda _: users.create(users.NewAccount("kim")),
            lambda _: rates.set_rate("A100", Decimal(1), None, None, "root"),
        ],
    )
    def test_other_constraint_is_not_reported_as_a_taken_name(self, nlp, who, monkeypatch, work):
        def break_another(*_):
            Membership.objects.create(tenant=nlp, user=who, role=Role.MEMBER)

        monkeypatch.setattr(log, "record", break_another)
        with pytest.raises(IntegrityError, match="membership_once"):
            work(nlp)
