"""Edits of quotas and of the policy: their effect is shown first, nothing is stopped silently, nothing idle is set
(A07)."""

import json

import msgspec
import pytest
from django.test import Client

from gpusched.lib.api.problems import Problem
from jobs.models import Job
from scheduling.whatif import edit_effects
from tenants.models import Quota
from tenants.tenancy import tenants
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin():
    return make_user("root", admin=True)


def put(admin, body, query="?dry_run=true"):
    answer = Client().put(
        f"/api/v1/tenants/nlp/quota{query}",
        msgspec.json.encode(body),
        content_type="application/json",
        headers={"Authorization": f"Bearer {make_token(admin)}"},
    )
    assert answer.status_code == 200, answer.content
    return answer.json()


def run_jobs(user, tenant, count, **fields):
    ids = [submit(user, tenant, **fields) for _ in range(count)]
    run_cycle()
    return ids


def test_dry_run_shows_use_above_the_new_limit_and_changes_nothing(user, tenant, admin):
    make_node(gpus=8)
    running = run_jobs(user, tenant, 4)
    answer = put(admin, {"max_gpus": 2, "max_gpus_by_model": {"A100": 1}, "max_concurrent_jobs": 4})
    effect = answer["effect"]
    assert effect["running_over"] == [
        {"dimension": "GPUs", "in_use": 4, "limit": 2, "users": 0},
        {"dimension": "A100 GPUs", "in_use": 4, "limit": 1, "users": 0},
    ]
    assert effect["contradicts"] is True
    assert effect["sentences"][0] == (
        "tenant nlp uses 4 GPUs, more than the limit of 2: its running jobs continue,"
        " and it starts no new jobs that need GPUs until it uses less"
    )
    assert (answer["status"], answer["max_gpus"], answer["version"]) == ("would_be_changed", 2, 1)
    assert Quota.objects.get(tenant=tenant).max_gpus is None
    assert set(Job.objects.filter(pk__in=running).values_list("state", flat=True)) == {"scheduled"}


def test_edit_returns_its_effect_and_stops_no_job(user, tenant, admin):
    make_node(gpus=8)
    running = run_jobs(user, tenant, 4)
    answer = put(admin, {"max_gpus": 2}, query="")
    assert (answer["max_gpus"], answer["version"], answer["effect"]["contradicts"]) == (2, 2, True)
    run_cycle()
    assert set(Job.objects.filter(pk__in=running).values_list("state", flat=True)) == {"scheduled"}


def test_effect_counts_pending_jobs_that_would_start_or_wait(user, tenant, admin):
    tenants.change_quota(tenant.pk, {"max_gpus": 2}, actor="test")
    make_node(gpus=8)
    ids = run_jobs(user, tenant, 5)
    raised = put(admin, {"max_gpus": 4})["effect"]
    assert raised["would_start"] == {"jobs": 2, "gpus": 2, "ids": ids[2:4]}
    assert raised["sentences"] == ["2 waiting jobs (2 GPUs) would start now that otherwise wait"]
    assert raised["contradicts"] is False


def test_effect_lists_pending_jobs_that_could_never_start(user, tenant, admin):
    make_node(gpus=8)
    submit(user, tenant, gpu_count=8)
    effect = put(admin, {"max_gpus": 4})["effect"]
    assert effect["would_never_start"]["jobs"] == 1 and effect["contradicts"] is True
    assert any(sentence.startswith("1 waiting job (8 GPUs) would exceed") for sentence in effect["sentences"])


def test_effect_counts_users_above_a_limit_per_user(user, tenant, admin):
    make_node(gpus=8)
    run_jobs(user, tenant, 3)
    effect = put(admin, {"max_gpus_per_user": 2})["effect"]
    assert effect["running_over"] == [{"dimension": "GPUs per user", "in_use": 3, "limit": 2, "users": 1}]


def test_guarantee_that_would_stop_other_jobs_is_named(user, tenant, admin):
    """A raised guarantee may reclaim: 'stops nothing silently' holds for other tenants' jobs too."""
    from scheduling import policy

    policy.change({"min_runtime_seconds": 0, "preemption_delay_seconds": 0}, actor="root")
    node = make_node(gpus=2)
    other = make_tenant("other")
    borrowed = run_jobs(make_member(other), other, 1, gpu_count=2)
    node.start_all()
    submit(user, tenant, gpu_count=2)
    effect = put(admin, {"guaranteed_gpus": 2})["effect"]
    assert effect["would_stop"] == {"jobs": 1, "gpus": 2, "ids": borrowed}
    assert effect["contradicts"] is True


def test_limits_without_effect_on_this_cluster_are_named(tenant, admin):
    make_node(gpus=4)
    effect = put(admin, {"max_gpus": 64, "max_gpus_by_model": {"H200": 8}})["effect"]
    assert effect["sentences"] == [
        "the limit of 64 GPUs has no effect yet: there are 4",
        "the limit for H200 has no effect yet: no GPU is of that model",
    ]


def test_guarantees_beyond_the_cluster_are_named(tenant, admin):
    make_tenant("other", quota={"guaranteed_gpus": 3})
    make_node(gpus=4)
    assert (
        "the guarantees of all tenants are 5 GPUs together"
        in put(admin, {"guaranteed_gpus": 2})["effect"]["sentences"][0]
    )


def test_edit_without_a_change_makes_no_new_version(tenant, admin):
    first = put(admin, {"max_gpus": 4}, query="")
    assert put(admin, {"max_gpus": 4}, query="")["version"] == first["version"]


def test_effect_covers_only_running_jobs_with_too_many_pending_ones(user, tenant, admin, monkeypatch):
    from scheduling.whatif import current

    make_node(gpus=2)
    run_jobs(user, tenant, 4)
    monkeypatch.setattr(current, "MAX_JOBS", 1)
    effect = put(admin, {"max_gpus": 1})["effect"]
    assert effect["sentences"][1] == "2 jobs wait, too many to compute which would start or stop"
    assert effect["running_over"][0]["in_use"] == 2


def test_edit_is_not_refused_when_its_effect_is_unknown(user, tenant, admin, monkeypatch):
    def unanswered(*asked):
        raise Problem(503, "unanswered", "the answer could not be computed")

    make_node(gpus=2)
    run_jobs(user, tenant, 4)
    monkeypatch.setattr(edit_effects, "ask", unanswered)
    answer = put(admin, {"max_gpus": 1}, query="")
    assert answer["max_gpus"] == 1
    assert answer["effect"]["sentences"][1] == "which jobs would start or stop could not be computed now"
    assert answer["effect"]["contradicts"] is True
    unknown = put(admin, {"max_gpus": 2})["effect"]  # nothing exceeds it, and its effect is unknown
    assert (unknown["running_over"], unknown["contradicts"]) == ([], True)


@pytest.mark.parametrize(
    ("quota", "field"),
    [
        ({"max_gpus": 8, "max_gpus_per_user": 8}, "max_gpus_per_user"),
        ({"max_gpus": 8, "max_gpus_by_model": {"A100": 8}}, "max_gpus_by_model"),
        ({"max_gpus_by_model": {"A100": 4, "a100": 5}}, "max_gpus_by_model"),
        ({"max_gpus_by_model": {"A100": -1}}, "max_gpus_by_model"),
        ({"max_gpus_by_model": {"": 1}}, "max_gpus_by_model"),
        ({"max_gpus_by_model": {f"m{n}": 1 for n in range(51)}}, "max_gpus_by_model"),
        ({"max_gpus_by_model": {"A100": 2**70}}, "max_gpus_by_model"),
        ({"max_gpus_by_model": [1]}, "max_gpus_by_model"),
        ({"max_gpus_by_model": None}, "max_gpus_by_model"),
    ],
)
def test_wrong_limit_and_limit_without_effect_are_rejected(tenant, admin, quota, field):
    """A07, A55"""
    answer = Client().put(
        "/api/v1/tenants/nlp/quota",
        json.dumps(quota),
        content_type="application/json",
        headers={"Authorization": f"Bearer {make_token(admin)}"},
    )
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == field
    assert Quota.objects.get(tenant=tenant).version == 1


def test_preemption_budget_without_preemption_is_rejected(tenant, admin):
    """A07"""
    answer = Client().patch(
        "/api/v1/tenants/nlp",
        msgspec.json.encode({"allow_preemption": False, "preemption_budget_per_hour": 3}),
        content_type="application/json",
        headers={"Authorization": f"Bearer {make_token(admin)}"},
    )
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "preemption_budget_per_hour")
