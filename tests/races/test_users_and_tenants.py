"""Concurrent edits of users and tenants, with two real connections each: no lockout, no job in an archived tenant."""

import json
import threading
import time

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.protocol.dependencies import Dependency
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.states import Role, Scope
from jobs.actions import archive_tenant, job_actions
from jobs.lifecycle import dependencies
from jobs.models import Job
from jobs.submit import bulk
from jobs.submit.submit import submit as submit_request
from tenants.auth import passwords, service_tokens
from tenants.auth.login_throttle import ThrottledLogin
from tenants.models import Membership, Tenant
from tenants.people import members, users
from tenants.tenancy import rename as renaming
from tests.at_once import at_once
from tests.factories import identity_for, make_member, make_tenant, make_token, make_user
from tests.factories import submit as submit_job

pytestmark = pytest.mark.django_db(transaction=True)
TURNS = range(5)


def codes(results):
    return sorted(result.code for result in results if isinstance(result, Problem))


@pytest.mark.parametrize("turn", TURNS)
def test_two_admins_who_remove_each_other_leave_one(turn):
    first, second = make_user(admin=True), make_user(admin=True)
    results = at_once(
        lambda: users.change(User.objects.get(pk=first.pk), {"is_admin": False}),
        lambda: users.disable(User.objects.get(pk=second.pk)),
    )
    assert codes(results) == ["last_admin"]
    assert User.objects.filter(is_superuser=True, is_active=True).count() == 1


@pytest.mark.parametrize("turn", TURNS)
def test_two_owners_who_remove_each_other_leave_one(turn):
    tenant = make_tenant()
    first, second = make_member(tenant, Role.OWNER), make_member(tenant, Role.OWNER)
    results = at_once(
        lambda: members.remove(tenant, first.username),
        lambda: members.set_role(tenant, second.username, Role.VIEWER),
    )
    assert codes(results) == ["last_owner"]
    assert Membership.objects.filter(tenant=tenant, role=Role.OWNER).count() == 1


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("kind", ["single", "keyed", "bulk"])
def test_submit_and_archive_at_once_leave_no_waiting_job(turn, kind):
    """Either the submit is first and archiving is refused, or the reverse."""
    tenant = make_tenant("nlp")
    identity, admin = identity_for(make_member(tenant)), identity_for(make_user(admin=True))
    request = JobRequest(tenant="nlp", command=["x"])
    submits = {
        "single": lambda: submit_request(request, identity),
        "keyed": lambda: submit_request(request, identity, "key", b"{}"),
        "bulk": lambda: bulk.submit_all([request], identity),
    }
    results = at_once(submits[kind], lambda: archive_tenant.archive(tenant.pk, admin, cancel_jobs=False))
    assert codes(results) in (["tenant_archived"], ["tenant_has_jobs"])
    assert Job.objects.exists() is (Tenant.objects.get().archived_at is None)


def test_submit_that_waits_for_archiving_is_refused():
    """The check of the request has passed; the INSERT checks again after its wait."""
    tenant = make_tenant("nlp")
    identity, admin = identity_for(make_member(tenant)), identity_for(make_user(admin=True))
    request = JobRequest(tenant="nlp", command=["x"])
    locked = threading.Event()

    def submit():
        locked.wait(10)
        return submit_request(request, identity)

    def archive():
        with transaction.atomic():
            archive_tenant.archive(tenant.pk, admin, cancel_jobs=False)
            locked.set()
            _wait_until_blocked()

    results = at_once(submit, archive)
    assert codes(results) == ["tenant_archived"]
    assert not Job.objects.exists()


@pytest.mark.parametrize("kind", ["single", "bulk"])
def test_submit_with_a_dependency_does_not_deadlock_with_archiving(kind, monkeypatch):
    """Both lock the tenant before the dependency: archiving waits, and then cancels both jobs."""
    tenant = make_tenant("nlp")
    member = make_member(tenant)
    identity, admin = identity_for(member), identity_for(make_user(admin=True))
    first = submit_job(member, tenant)
    request = JobRequest(tenant="nlp", command=["x"], depends_on=[Dependency(job=first)])
    states_of, cancel_all = dependencies.states_of, job_actions.cancel_all
    job_locked, tenant_locked, submitted = (threading.Event() for _ in range(3))

    def slow_states_of(job_ids, *, is_locked=True):
        result = states_of(job_ids, is_locked=is_locked)
        if is_locked:
            job_locked.set()
            _wait_until_blocked(or_set=tenant_locked)
        return result

    def slow_cancel_all(*args):
        tenant_locked.set()
        _wait_until_blocked(or_set=submitted)
        return cancel_all(*args)

    monkeypatch.setattr(dependencies, "states_of", slow_states_of)
    monkeypatch.setattr(job_actions, "cancel_all", slow_cancel_all)

    def submit():
        submits[kind]()
        submitted.set()

    def archive():
        job_locked.wait(10)
        return archive_tenant.archive(tenant.pk, admin, cancel_jobs=True)

    submits = {
        "single": lambda: submit_request(request, identity),
        "bulk": lambda: bulk.submit_all([request], identity),
    }
    results = at_once(submit, archive)
    assert [result for result in results if isinstance(result, Exception)] == []
    assert list(Job.objects.values_list("state", flat=True)) == ["cancelled", "cancelled"]


def _wait_until_blocked(or_set=None):
    """Return once another connection waits for a lock, or an event is set."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if or_set is not None and or_set.is_set():
            return
        [row] = query("SELECT count(*) AS n FROM pg_locks WHERE NOT granted")
        if row["n"]:
            return
    raise AssertionError("no transaction waits for a lock")


@pytest.fixture
def verified_at_once(monkeypatch):
    """Make two changes of a password write only after both have verified the old one."""
    barrier, is_good = threading.Barrier(2), passwords.require_good

    def wait(*arguments):
        is_good(*arguments)
        barrier.wait(20)

    monkeypatch.setattr(passwords, "require_good", wait)


def test_only_one_of_two_concurrent_logins_with_a_one_time_password_passes(verified_at_once):
    user = make_user("kim")
    passwords.assign(user, "one-time-2345", is_one_time=True)
    news = ["another horse battery", "a third horse battery"]
    results = at_once(
        *[lambda new=new: ThrottledLogin().authenticate(None, "kim", "one-time-2345", new) for new in news]
    )
    assert sorted(map(type, results), key=str) == sorted([User, type(None)], key=str)
    [winner] = [new for new, result in zip(news, results, strict=True) if result is not None]
    assert User.objects.get(pk=user.pk).check_password(winner)


def test_own_change_does_not_overwrite_a_password_that_was_reset_meanwhile(monkeypatch):
    user, admin_made = make_user("kim"), "reset by an admin"
    is_good = passwords.require_good

    def reset(*arguments):
        is_good(*arguments)
        monkeypatch.setattr(passwords, "require_good", is_good)
        users.reset_password(User.objects.get(pk=user.pk), admin_made, keep_tokens=True)

    monkeypatch.setattr(passwords, "require_good", reset)
    body = {"old_password": "correct horse battery", "new_password": "another horse battery"}
    answer = Client().put(
        "/api/v1/me/password", json.dumps(body), content_type="application/json",
        headers={"authorization": f"Bearer {make_token(user)}"},
    )  # fmt: skip
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "wrong_password")
    assert User.objects.get(pk=user.pk).check_password(admin_made)


@pytest.mark.parametrize("turn", TURNS)
def test_first_tokens_of_a_service_account_at_once_belong_to_one_account(turn):
    tenant = make_tenant()
    service_tokens.create(make_tenant(), "other", None, [Scope.READ], None)  # and with it the group of all
    results = at_once(*[lambda: service_tokens.create(tenant, "ci", None, [Scope.READ], None)] * 4)
    assert [result for result in results if isinstance(result, Exception)] == []
    assert User.objects.filter(username=f"ci@{tenant.name}").count() == 1
    assert len(service_tokens.list_tokens(tenant)) == 4


def test_service_account_created_during_a_rename_gets_the_new_name(monkeypatch):
    """Otherwise the next tenant with the old name would get the account."""
    tenant = make_tenant("nlp")
    renamed = threading.Event()
    rename_accounts = renaming._rename_accounts

    def slow_rename_accounts(*arguments):
        rename_accounts(*arguments)
        renamed.set()
        _wait_until_blocked()

    monkeypatch.setattr(renaming, "_rename_accounts", slow_rename_accounts)

    def create():
        renamed.wait(10)
        return service_tokens.create(tenant, "ci", None, [Scope.READ], None)

    at_once(create, lambda: renaming.rename(tenant, "language", actor="root"))
    assert [account.username for account in User.objects.all()] == ["ci@language"]
