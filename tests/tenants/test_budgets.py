"""Budgets of GPU-hours: what counts, notices, and which jobs wait or continue."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from gpusched.lib.db.sql import execute, query
from gpusched.lib.hooks import hook
from jobs.models import Job
from tenants.billing import budgets
from tenants.models import Budget, BudgetCrossing, UsageRefund
from tests.api.calls import call
from tests.factories import make_member, make_node, make_tenant, make_token, run_cycle, submit
from tests.tenants.test_usage import entry

pytestmark = pytest.mark.django_db
PATH = "/api/v1/tenants/nlp/budget"


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch):
    monkeypatch.setattr(budgets._hard_budgets, "seconds", 0.0)
    monkeypatch.setattr("scheduling.admission._clusters.seconds", 0.0)


def put(admin, status=200, query="", **fields):
    answer = call("PUT", PATH + query, admin, fields)
    assert answer.status_code == status, answer.content
    return answer.json()


def recent(tenant, user, hours, **more):
    return entry(tenant, user, hours=hours, at=timezone.now() - timedelta(hours=hours), **more)


@pytest.mark.parametrize(
    ("used", "state"),
    [(4.999, "within"), (5.0, "soft_exceeded"), (9.999, "soft_exceeded"), (10.0, "hard_exceeded")],
)
def test_budget_used_to_the_last_hour_is_exhausted(used, state):
    standing = budgets.BudgetStatus(1, "nlp", 5.0, 10.0, None, 1, timezone.now(), None, used)
    assert standing.state == state


class TestWhatCounts:
    def test_use_is_the_periods_ledger_without_refunds_plus_running_jobs(self, tenant, user, admin):
        node = make_node(gpus=2)
        submit(user, tenant, gpu_count=2)
        run_cycle()
        node.start_all()
        recent(tenant, user, 5)
        UsageRefund.objects.create(entry=recent(tenant, user, 7, job=2), reason="node_lost")
        entry(tenant, user, at=timezone.now() - timedelta(days=40), hours=50, job=3)
        entry(tenant, user, at=timezone.now() - timedelta(days=2, hours=10), hours=13, job=4)
        recent(make_tenant("other"), user, 100, job=5)
        status = put(admin, soft_gpu_hours=1000, days=2)
        assert status["used_gpu_hours"] == pytest.approx(5 + 3, abs=0.1)
        [standing] = budgets.statuses([tenant.pk])
        from gpusched.lib.db.sql import execute

        execute("UPDATE nodes_assignment SET started_at = now() - interval '3 days'")
        assert budgets.statuses([tenant.pk])[0].used_gpu_hours == pytest.approx(5 + 3 + 2 * 48, abs=0.1), standing

    def test_month_begins_on_its_first_day_in_utc(self, tenant, user, admin):
        month = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        entry(tenant, user, at=month - timedelta(hours=3), hours=3 + 0.001)
        status = put(admin, hard_gpu_hours=10)
        assert datetime.fromisoformat(status["since"]) == month
        assert datetime.fromisoformat(status["renews_at"]) == (month + timedelta(days=32)).replace(day=1)
        assert status["used_gpu_hours"] == 0.001


class TestHard:
    def test_exhausted_budget_refuses_submits_and_keeps_jobs_pending(self, tenant, user, admin):
        node = make_node(gpus=4)
        running = submit(user, tenant, gpu_count=2)
        run_cycle()
        node.start_all()
        waiting = submit(user, tenant, gpu_count=2)
        recent(tenant, user, 20)
        put(admin, hard_gpu_hours=20, days=30)

        run_cycle()

        answer = call("GET", f"/api/v1/jobs/{waiting}/explain", admin).json()
        assert answer["code"] == "budget"
        assert answer["sentence"] == "the budget of tenant nlp is used up: 20 of 20 GPU-hours in the last 30 days"
        assert answer["counterfactual"]["change"] == "budget"
        refused = call("POST", "/api/v1/jobs", make_token(user), {"command": ["x"], "gpu_count": 1})
        assert (refused.status_code, refused.json()["code"]) == (403, "budget_used_up")
        assert "budget of tenant nlp is used up" in refused.json()["detail"]
        assert call("POST", "/api/v1/jobs", make_token(user), {"command": ["x"], "gpu_count": 0}).status_code == 201
        assert Job.objects.get(pk=running).state == "running"

    def test_exhausted_budget_refuses_hard_reservations_until_it_is_renewed(self, tenant, user, admin):
        make_node(gpus=4)
        entry(tenant, user, hours=20, at=timezone.now())
        put(admin, hard_gpu_hours=20)
        body = {"tenant": "nlp", "gpus": 1, "for_seconds": 3600}
        renews_at = budgets.statuses([tenant.pk])[0].renews_at
        assert renews_at is not None

        def book(**more):
            answer = call("POST", "/api/v1/reservations", make_token(user), {**body, **more})
            return answer.status_code, answer.json()

        for more in ({}, {"lease": True}, {"from": (renews_at - timedelta(seconds=1)).isoformat()}):
            status, refused = book(**more)
            assert (status, refused["code"]) == (403, "budget_used_up"), more
        assert f"reserve from {renews_at:%Y-%m-%d}" in refused["next_step"]
        assert book(kind="soft")[0] == 201
        assert book(**{"from": renews_at.isoformat()})[0] == 201
        put(admin, hard_gpu_hours=21)
        assert book()[0] == 201

    @pytest.mark.django_db(transaction=True)
    def test_exhausted_budget_keeps_an_idle_lease_from_being_renewed(self, tenant, user, admin):
        node, token = make_node(gpus=4), make_token(user)
        lease = {"tenant": "nlp", "gpus": 1, "for_seconds": 600, "lease": True}
        number = call("POST", "/api/v1/reservations", token, lease).json()["id"]

        def renew(seconds):
            answer = call("POST", f"/api/v1/reservations/{number}/renew", token, {"for_seconds": seconds})
            return answer.status_code, answer.json().get("code")

        recent(tenant, user, 20)
        put(admin, hard_gpu_hours=20, days=30)
        assert renew(3600) == (403, "budget_used_up")
        assert renew(300)[0] == 200, "an earlier end"
        put(admin, hard_gpu_hours=50, days=30)
        submit(user, tenant, max_runtime_minutes=1)
        run_cycle()
        node.start_all()
        put(admin, hard_gpu_hours=20, days=30)
        assert renew(3600)[0] == 200, "its job continues"

    def test_exhausted_rolling_budget_refuses_hard_reservations_of_the_next_day(self, tenant, user, admin):
        make_node(gpus=4)
        recent(tenant, user, 20)
        put(admin, hard_gpu_hours=20, days=30)
        for hours, status in ((1, 403), (25, 201)):
            start = (timezone.now() + timedelta(hours=hours)).isoformat()
            body = {"tenant": "nlp", "gpus": 1, "for_seconds": 3600, "from": start}
            assert call("POST", "/api/v1/reservations", make_token(user), body).status_code == status

    def test_larger_budget_applies_at_once(self, tenant, user, admin, monkeypatch):
        monkeypatch.setattr(budgets._hard_budgets, "seconds", 3600.0)
        make_node(gpus=4)
        job = submit(user, tenant)
        recent(tenant, user, 20)
        put(admin, hard_gpu_hours=5, days=30)
        run_cycle()
        assert Job.objects.get(pk=job).state == "pending"
        put(admin, hard_gpu_hours=50, days=30)
        run_cycle()
        assert Job.objects.get(pk=job).state == "scheduled"

    def test_other_tenants_do_not_wait(self, tenant, admin):
        make_node(gpus=1)
        put(admin, hard_gpu_hours=0)
        other = make_tenant("other")
        job = submit(make_member(other), other)
        run_cycle()
        assert Job.objects.get(pk=job).state == "scheduled"


class TestSmall:
    def test_small_budget_keeps_its_digits(self, tenant, user, admin):
        """A60: 0.0 of 0.01 is not used up."""
        recent(tenant, user, 0.02)
        status = put(admin, hard_gpu_hours=0.01, days=30)
        assert status["sentence"] == (
            "tenant nlp has used 0.02 GPU-hours in the last 30 days, all of its budget of 0.01: "
            "it starts nothing more on GPUs"
        )
        refused = call("POST", "/api/v1/jobs", make_token(user), {"command": ["x"], "gpu_count": 1})
        assert "used up: 0.02 of 0.01 GPU-hours" in refused.json()["detail"]


class TestSoft:
    def test_soft_budget_is_reported_and_stops_nothing(self, tenant, user, admin):
        make_node(gpus=1)
        recent(tenant, user, 9)
        status = put(admin, soft_gpu_hours=8, hard_gpu_hours=10, days=30)
        assert (status["state"], status["version"]) == ("soft_exceeded", 1)
        assert status["sentence"] == (
            "tenant nlp has used 9.0 GPU-hours in the last 30 days, more than its soft budget of 8; "
            "from 10 on it starts nothing more"
        )
        job = submit(user, tenant)
        run_cycle()
        assert Job.objects.get(pk=job).state == "scheduled"

    def test_crossing_is_recorded_once_per_period(self, tenant, user, admin):
        recent(tenant, user, 9)
        put(admin, soft_gpu_hours=8, hard_gpu_hours=10)
        for _ in range(3):
            budgets.note_crossings()
        answer = call("GET", PATH, make_token(user)).json()
        assert [(row["bound"], row["gpu_hours"]) for row in answer["crossings"]] == [("soft", 8.0)]
        recent(tenant, user, 2, job=2)
        budgets.note_crossings()
        assert list(BudgetCrossing.objects.values_list("bound", flat=True)) == ["hard", "soft"]

    def test_crossing_at_the_end_of_a_month_is_not_of_the_next_one(self, tenant, user, admin, monkeypatch):
        put(admin, soft_gpu_hours=8)
        recent(tenant, user, 9)
        [status] = budgets.statuses()
        last_month = (status.since - timedelta(days=1)).replace(day=1)
        read = budgets.statuses
        monkeypatch.setattr(budgets, "statuses", lambda: [replace(status, since=last_month, used_gpu_hours=9.0)])
        budgets.note_crossings()
        monkeypatch.setattr(budgets, "statuses", read)
        assert BudgetCrossing.objects.get().period == last_month


class TestEdits:
    def test_dry_run_returns_the_new_status_and_changes_nothing(self, tenant, user, admin):
        recent(tenant, user, 9)
        status = put(admin, query="?dry_run=true", hard_gpu_hours=1, days=30)
        assert (status["state"], status["status"]) == ("hard_exceeded", "would_be_changed")
        assert not Budget.objects.exists()

    def test_concurrent_edit_is_not_overwritten(self, tenant, admin):
        assert put(admin, hard_gpu_hours=5, version=0)["version"] == 1
        assert put(admin, 412, hard_gpu_hours=6, version=0)["code"] == "version_conflict"
        assert put(admin, hard_gpu_hours=5, version=1)["version"] == 1, "what changes nothing is no edit"
        assert put(admin)["version"] == 2, "no bounds any more"
        assert put(admin, 412, hard_gpu_hours=5, version=1)

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"soft_gpu_hours": 5, "hard_gpu_hours": 5}, "soft_gpu_hours"),
            ({"hard_gpu_hours": -1}, "hard_gpu_hours"),
            ({"hard_gpu_hours": 1e300}, "hard_gpu_hours"),
            ({"hard_gpu_hours": 5, "days": 0}, "days"),
            ({"hard_gpu_hours": 5, "days": 2**40}, "days"),
            ({"gpu_hours": 5}, "gpu_hours"),
        ],
    )
    def test_wrong_budget_and_budget_without_effect_are_rejected(self, tenant, admin, fields, field):
        """A07, A55"""
        assert put(admin, 400, **fields)["errors"][0]["field"] == field

    def test_edits_are_recorded_with_their_actor(self, tenant, admin):
        put(admin, hard_gpu_hours=5)
        put(admin, hard_gpu_hours=6)
        from pghistory.models import Events

        event = Events.objects.tracks(Budget.objects.get()).filter(pgh_label="update").get()
        assert event.pgh_diff["hard_gpu_hours"] == [5.0, 6.0]
        assert event.pgh_context["actor"] == "root"

    def test_admin_saves_a_budget_by_the_same_rules(self, tenant, admin):
        browser = Client()
        browser.force_login(User.objects.get(username="root"))
        form = {"tenant": tenant.pk, "soft_gpu_hours": "9", "hard_gpu_hours": "5", "days": ""}
        page = browser.post("/admin/tenants/budget/add/", form)
        assert "would do nothing" in page.content.decode()
        assert browser.post("/admin/tenants/budget/add/", {**form, "soft_gpu_hours": "2"}).status_code == 302
        budget = Budget.objects.get()
        address = f"/admin/tenants/budget/{budget.pk}/change/"
        assert browser.post(address, {**form, "soft_gpu_hours": ""}).status_code == 302
        budget.refresh_from_db()
        assert (budget.soft_gpu_hours, budget.hard_gpu_hours, budget.version) == (None, 5.0, 2)


def test_sum_of_the_ledger_needs_its_index_alone():
    """Each row of a million costs a page of the table otherwise, and cycles wait for the sum."""
    nlp = make_tenant("nlp")
    Budget.objects.create(tenant=nlp, hard_gpu_hours=1)
    recent(nlp, make_member(nlp), hours=1)
    # A history long enough that the index pays: on a table of one row, the planner takes any.
    execute("""INSERT INTO tenants_usageentry
                 (tenant_id, job_id, attempt, rank, node, gpu_model, gpus, started_at, ended_at, cause)
               SELECT tenant_id, job_id, attempt, nth, node, gpu_model, gpus,
                      started_at - nth * interval '1 day', ended_at - nth * interval '1 day', cause
               FROM tenants_usageentry, generate_series(1, 5000) AS nth""")
    execute("ANALYZE tenants_usageentry")
    for scan in ("seqscan", "bitmapscan"):
        execute(f"SET LOCAL enable_{scan} = off")
    sql = budgets._USED.format(running=hook("running_use"))
    plan = query(f"EXPLAIN {sql}", {"ids": [nlp.pk], "with_archived": True})
    assert "Index Only Scan using usage_of_tenant on tenants_usageentry" in str(plan)
