"""Edits of people and tenants at once, with two real connections each: nobody is locked out, no job slips in."""

import threading
import time

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from gpusched.lib.problems import Problem
from gpusched.lib.sql import query
from gpusched.protocol.jobs import JobRequest
from gpusched.protocol.states import Role
from jobs import archiving, bulk, services
from jobs.models import Job
from tenants import members, users
from tenants.models import Membership, Tenant
from tests.factories import identity_for, make_member, make_tenant, make_user
from tests.races.test_constraints import at_once

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
    """Either the submit is first, and archiving is refused, or it comes too late, and is."""
    tenant = make_tenant("nlp")
    who, admin = identity_for(make_member(tenant)), identity_for(make_user(admin=True))
    request = JobRequest(tenant="nlp", command=["x"])
    submits = {
        "single": lambda: services.submit(request, who),
        "keyed": lambda: services.submit(request, who, "key", b"{}"),
        "bulk": lambda: bulk.submit_all([request], who),
    }
    results = at_once(submits[kind], lambda: archiving.archive(tenant.pk, admin, cancel_jobs=False))
    assert codes(results) in (["tenant_archived"], ["tenant_has_jobs"])
    assert Job.objects.exists() is (Tenant.objects.get().archived_at is None)


def test_submit_that_waits_for_the_archiver_is_refused():
    """The check of the request passed before: the statement that writes the job asks again after its wait."""
    tenant = make_tenant("nlp")
    who, admin = identity_for(make_member(tenant)), identity_for(make_user(admin=True))
    request = JobRequest(tenant="nlp", command=["x"])
    locked = threading.Event()

    def submit():
        locked.wait(10)
        return services.submit(request, who)

    def archive():
        with transaction.atomic():
            archiving.archive(tenant.pk, admin, cancel_jobs=False)
            locked.set()
            _until_somebody_waits()

    results = at_once(submit, archive)
    assert codes(results) == ["tenant_archived"]
    assert not Job.objects.exists()


def _until_somebody_waits():
    """Return once another connection waits for a lock."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        [row] = query("SELECT count(*) AS n FROM pg_locks WHERE NOT granted")
        if row["n"]:
            return
    raise AssertionError("nobody came to wait")
