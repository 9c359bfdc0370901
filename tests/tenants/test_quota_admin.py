"""Edits of quotas and of the policy in Django admin: their effect is shown first, nothing is undone silently (A07)."""

import re

import pytest
from django.test import Client

from gpusched.lib.db.sql import query
from gpusched.lib.models import AuditEntry
from scheduling.models import SchedulingPolicy
from tenants.models import Membership, Quota
from tenants.tenancy import tenants
from tests.factories import make_node, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin():
    return make_user("root", admin=True)


def run_jobs(user, tenant, count, **fields):
    ids = [submit(user, tenant, **fields) for _ in range(count)]
    run_cycle()
    return ids


@pytest.fixture
def browser(admin):
    client = Client()
    client.force_login(admin)
    return client


def tenant_form(tenant, **quota):
    prefix = {f"quota-0-{name}": value for name, value in quota.items()}
    return {
        "display_name": "", "weight": "1", "time_zone": "UTC", "tier": "standard", "allow_preemption": "on", "can_preempt_others": "on",
        "quota-TOTAL_FORMS": 1, "quota-INITIAL_FORMS": 1, "quota-0-id": tenant.quota.pk, "quota-0-tenant": tenant.pk,
        "quota-0-guaranteed_gpus": 0, "quota-0-max_gpus_by_model": "{}", "quota-0-seen_version": tenant.quota.version, **prefix,
        "memberships-TOTAL_FORMS": 0, "memberships-INITIAL_FORMS": 0,
    }  # fmt: skip


def test_admin_edit_against_running_work_is_saved_the_second_time(user, tenant, browser):
    make_node(gpus=8)
    run_jobs(user, tenant, 4)
    address = f"/admin/tenants/tenant/{tenant.pk}/change/"
    page = browser.post(address, tenant_form(tenant, max_gpus=2)).content.decode()
    assert "tenant nlp uses 4 GPUs, more than the limit of 2" in page
    assert Quota.objects.get(tenant=tenant).max_gpus is None
    saved = browser.post(address, tenant_form(tenant, max_gpus=2, go_ahead="on"), follow=True)
    assert "its running jobs continue" in saved.content.decode()
    quota = Quota.objects.get(tenant=tenant)
    assert (quota.max_gpus, quota.version) == (2, 2)


def test_admin_edit_without_effect_is_saved_at_once(tenant, browser):
    make_node(gpus=8)
    browser.post(f"/admin/tenants/tenant/{tenant.pk}/change/", tenant_form(tenant, max_gpus_by_model='{"A100": 4}'))
    assert Quota.objects.get(tenant=tenant).max_gpus_by_model == {"A100": 4}


def test_admin_edit_with_an_effect_shows_it_before_it_is_saved(user, tenant, browser):
    """Also one that contradicts nothing: waiting jobs would start."""
    make_node(gpus=8)
    tenants.change_quota(tenant.pk, {"max_gpus": 1}, actor="root")
    run_jobs(user, tenant, 2)
    tenant.quota.refresh_from_db()
    address = f"/admin/tenants/tenant/{tenant.pk}/change/"
    page = browser.post(address, tenant_form(tenant, max_gpus=4)).content.decode()
    assert "1 waiting job (1 GPU) would start" in page
    assert Quota.objects.get(tenant=tenant).max_gpus == 1
    browser.post(address, tenant_form(tenant, max_gpus=4, go_ahead="on"))
    assert Quota.objects.get(tenant=tenant).max_gpus == 4


def test_admin_edit_of_a_guarantee_alone_shows_its_effect(user, tenant, browser):
    """A07: also without the page's script; one that changes nothing for what runs is saved at once."""
    make_node(gpus=8)
    run_jobs(user, tenant, 4)
    address = f"/admin/tenants/tenant/{tenant.pk}/change/"
    page = browser.post(address, tenant_form(tenant, guaranteed_gpus=3)).content.decode()
    assert "1 of the 4 GPUs that it holds would be borrowed (4 now)" in page
    assert Quota.objects.get(tenant=tenant).guaranteed_gpus == 0
    browser.post(address, tenant_form(tenant, guaranteed_gpus=4, go_ahead="on"))
    assert Quota.objects.get(tenant=tenant).guaranteed_gpus == 4
    tenant.quota.refresh_from_db()
    browser.post(address, tenant_form(tenant, guaranteed_gpus=5))
    assert Quota.objects.get(tenant=tenant).guaranteed_gpus == 5


def test_admin_shows_the_effect_during_typing(user, tenant, browser):
    """A07: nothing is saved, and who may not edit learns nothing."""
    make_node(gpus=8)
    tenants.change_quota(tenant.pk, {"guaranteed_gpus": 4}, actor="root")
    run_jobs(user, tenant, 4)
    tenant.quota.refresh_from_db()
    address = f"/admin/tenants/tenant/{tenant.pk}/quota-effect/"
    assert "app/quota-preview.js" in browser.get(address.replace("quota-effect", "change")).content.decode()
    effect = browser.post(address, tenant_form(tenant, guaranteed_gpus=1)).json()
    assert effect["differs"]
    assert any("borrowed" in sentence for sentence in effect["sentences"])
    effect = browser.post(address, tenant_form(tenant, guaranteed_gpus=1, max_gpus=2)).json()
    assert effect["contradicts"]
    assert "tenant nlp uses 4 GPUs, more than the limit of 2" in " ".join(effect["sentences"])
    assert not browser.post(address, tenant_form(tenant, guaranteed_gpus=4)).json()["differs"]
    assert "GPUs at most:" in browser.post(address, tenant_form(tenant, max_gpus="x")).json()["errors"][0]
    quota = Quota.objects.get(tenant=tenant)
    assert (quota.guaranteed_gpus, quota.max_gpus, quota.version) == (4, None, 2)
    assert browser.get(address).status_code == 404
    member = Client()
    member.force_login(user)
    assert member.post(address, tenant_form(tenant, max_gpus=2)).status_code == 302


def test_admin_edit_of_an_outdated_version_is_rejected(tenant, browser):
    """A07: nothing is overwritten silently; the answer names who changed it."""
    address = f"/admin/tenants/tenant/{tenant.pk}/change/"
    assert 'name="quota-0-seen_version" value="1"' in browser.get(address).content.decode()
    tenants.change_quota(tenant.pk, {"guaranteed_gpus": 3, "max_gpus": 5}, actor="ann")
    page = browser.post(address, tenant_form(tenant, max_gpus=9, go_ahead="on")).content.decode()
    assert "changed meanwhile, by ann" in page and "guaranteed_gpus=3" in page
    quota = Quota.objects.get(tenant=tenant)
    assert (quota.guaranteed_gpus, quota.max_gpus, quota.version) == (3, 5, 2)


def test_admin_history_links_to_where_an_edit_is_reverted(tenant, browser):
    address = f"/admin/tenants/tenant/{tenant.pk}/change/"
    browser.post(address, tenant_form(tenant, max_cpu_cores=9, go_ahead="on"))
    [href] = re.findall(r'<a href="([^"]*)">Restore an earlier version', browser.get(address).content.decode())
    page = browser.get(href.partition("#")[0]).content.decode()
    assert f'id="{href.partition("#")[2]}"' in page
    [back] = re.findall(r'href="([^"]*)">Restore…', page)
    effect = browser.get(back).content.decode()
    assert "CPU cores: 9 → <b>no limit</b>" in effect


def test_admin_edit_is_audited_once_and_not_as_a_quota_edit_if_only_the_tenant_changes(tenant, browser):
    address = f"/admin/tenants/tenant/{tenant.pk}/change/"
    browser.post(address, {**tenant_form(tenant), "weight": "2"})
    assert Quota.objects.get(tenant=tenant).version == 1
    browser.post(address, tenant_form(tenant, max_cpu_cores=9, go_ahead="on"))
    quota = Quota.objects.get(tenant=tenant)
    assert (quota.max_cpu_cores, quota.version) == (9, 2)
    assert [row["action"] for row in query("SELECT action FROM lib_auditentry WHERE subject LIKE 'quota%%'")] == [
        "quota.change"
    ]


POLICY = {
    "policy": "fair", "aging_points_per_minute": 1, "usage_half_life_days": 7, "usage_window_minutes": 5,
    "dynamic_share_bound": 0, "cost_by_model": "{}", "online_percent": 0, "enable_gang_scheduling": "on",
    "enable_preemption": "on", "min_runtime_seconds": 600, "preemption_delay_seconds": 60, "enable_thermal_aware": "on",
    "thermal_threshold_celsius": 85, "thermal_moves": "monitor", "thermal_move_minutes": 10,
    "held_idle_policy": "monitor", "held_idle_percent": 5, "held_idle_minutes": 60,
    "held_idle_interactive_minutes": 240, "held_idle_grace_minutes": 20, "member_extend_minutes": 60, "load_threshold": 1, "load_threshold_shared": 0.85,
}  # fmt: skip
ADDRESS = "/admin/scheduling/schedulingpolicy/"


def test_admin_policy_edit_is_recorded_in_its_history(browser):
    assert browser.get(ADDRESS).status_code == 302
    assert SchedulingPolicy.objects.get().version == 0
    page = browser.post(f"{ADDRESS}1/change/", {**POLICY, "online_percent": 20}, follow=True)
    assert page.status_code == 200
    row = SchedulingPolicy.objects.get()
    assert (row.online_percent, row.version) == (20, 1)
    history = browser.get(f"{ADDRESS}1/change/").content.decode()
    assert "online_percent: 0 → 20" in history and "root" in history


def test_admin_setting_without_effect_is_rejected(browser):
    browser.get(ADDRESS)
    page = browser.post(f"{ADDRESS}1/change/", {**POLICY, "cost_by_model": '{"A100": 2}'}).content.decode()
    assert "would do nothing while the policy is fair" in page
    assert SchedulingPolicy.objects.get().version == 0


def test_admin_policy_that_would_stop_jobs_is_saved_the_second_time(user, tenant, browser):
    from scheduling import policy

    policy.change({"min_runtime_seconds": 3600, "preemption_delay_seconds": 0}, actor="root")
    node = make_node(gpus=1)
    run_jobs(user, tenant, 1, priority=100)
    node.start_all()
    submit(user, tenant, priority=2000)
    form = {**POLICY, "min_runtime_seconds": 0, "preemption_delay_seconds": 0}
    page = browser.post(f"{ADDRESS}1/change/", form).content.decode()
    assert "1 running job (1 GPU) would be stopped for others" in page
    assert SchedulingPolicy.objects.get().min_runtime_seconds == 3600
    browser.post(f"{ADDRESS}1/change/", {**form, "go_ahead": "on"})
    assert SchedulingPolicy.objects.get().min_runtime_seconds == 0


def test_admin_empty_fields_mean_defaults(tenant, browser):
    """A55"""
    browser.post(f"/admin/tenants/tenant/{tenant.pk}/change/", tenant_form(tenant, max_gpus=9, max_gpus_by_model=""))
    assert Quota.objects.get(tenant=tenant).max_gpus_by_model == {}
    browser.get(ADDRESS)
    browser.post(f"{ADDRESS}1/change/", {**POLICY, "online_percent": 5, "cost_by_model": ""})
    assert SchedulingPolicy.objects.get().cost_by_model == {}


@pytest.mark.parametrize("typed", ['{"A100": %s}' % ("9" * 5000), "[" * 100_000])
def test_json_that_python_cannot_decode_is_refused(browser, tenant, typed):
    answer = browser.post(f"/admin/tenants/tenant/{tenant.pk}/change/", tenant_form(tenant, max_gpus_by_model=typed))
    assert (answer.status_code, "Enter a valid JSON" in answer.content.decode()) == (200, True)
    browser.get(ADDRESS)
    answer = browser.post(f"{ADDRESS}1/change/", {**POLICY, "cost_by_model": typed})
    assert (answer.status_code, "Enter a valid JSON" in answer.content.decode()) == (200, True)


@pytest.mark.parametrize("typed", ["8", "0", "1.5", '["A100"]', '{"A100": "all"}'])
def test_limits_by_model_of_another_form_are_refused(browser, tenant, typed):
    address = f"/admin/tenants/tenant/{tenant.pk}/change/"
    response = browser.post(address, tenant_form(tenant, max_gpus_by_model=typed))
    assert response.status_code == 200
    assert "must be a" in response.content.decode()
    assert Quota.objects.get(tenant=tenant).version == tenant.quota.version
    preview = browser.post(address.replace("change", "quota-effect"), tenant_form(tenant, max_gpus_by_model=typed))
    assert "must be a" in preview.json()["errors"][0]
    browser.get(ADDRESS)
    response = browser.post(f"{ADDRESS}1/change/", {**POLICY, "cost_by_model": typed})
    assert response.status_code == 200
    assert "must be a" in response.content.decode()


@pytest.mark.parametrize("max_gpus", ["", "4"])
def test_tenant_created_in_admin_has_an_untouched_quota(browser, max_gpus):
    form = {
        "name": "vision", "display_name": "", "weight": "1", "time_zone": "UTC", "tier": "standard", "quota-TOTAL_FORMS": 1,
        "quota-INITIAL_FORMS": 0, "quota-0-max_gpus": max_gpus, "quota-0-guaranteed_gpus": 0,
        "quota-0-max_gpus_by_model": "{}", "memberships-TOTAL_FORMS": 0, "memberships-INITIAL_FORMS": 0,
    }  # fmt: skip
    assert browser.post("/admin/tenants/tenant/add/", form).status_code == 302
    assert Quota.objects.get(tenant__name="vision").max_gpus == (int(max_gpus) if max_gpus else None)


def test_member_removed_in_admin_is_audited(user, tenant, browser):
    """A56"""
    member = Membership.objects.get(user=user, tenant=tenant)
    form = {
        **tenant_form(tenant), "memberships-TOTAL_FORMS": 1, "memberships-INITIAL_FORMS": 1,
        "memberships-0-id": member.pk, "memberships-0-tenant": tenant.pk, "memberships-0-user": user.pk,
        "memberships-0-role": member.role, "memberships-0-DELETE": "on",
    }  # fmt: skip
    assert browser.post(f"/admin/tenants/tenant/{tenant.pk}/change/", form).status_code == 302
    assert not Membership.objects.filter(user=user, tenant=tenant).exists()
    entry = AuditEntry.objects.get(action="admin.delete")
    assert entry.before
    assert (entry.before["role"], entry.after) == (member.role, None)
